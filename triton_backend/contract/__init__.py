"""Types of both halves: checked when built, to and from plain dictionaries. No numba."""
