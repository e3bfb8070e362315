"""Policies of others that only the simulator runs: each its state, its loop and its result."""
