"""Home, server, limits and registration of Prefect."""
