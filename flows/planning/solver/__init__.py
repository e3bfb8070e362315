"""Sparse programs and the solvers that take them."""
