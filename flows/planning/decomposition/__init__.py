"""Decomposition by blocks.

A master over resource vectors, one pricing program per block, a proven bound. A block (a model;
later an application, an entry, a sub-cluster) meets the others only in the resources they share.
See `decompose` for the mathematics, `blocks` for what a block must be able to do.
"""
