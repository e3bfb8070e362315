"""Thin Prefect flows, and what is Prefect's own."""
