"""Liveness: processes that are alive, slow or silent."""
