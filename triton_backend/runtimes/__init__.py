"""Runtimes that execute one stage; profiling and workers share them."""
