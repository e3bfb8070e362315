"""What both halves speak: types checked when built, to and from plain dictionaries. No numba."""
