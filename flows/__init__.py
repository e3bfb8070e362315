"""The offline half: thin Prefect flows over plain step packages, and the command line."""
