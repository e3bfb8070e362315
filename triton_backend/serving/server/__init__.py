"""Triton: the server process and the models it loads."""
