"""Interference between parts of a GPU: its tables, and the model fitted to them."""
