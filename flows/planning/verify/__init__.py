"""A plan recomputed from profiles, without a solver and without what made it.

numbers    every number of a plan again; what differs, a sentence each
bound      what prices in its certificate prove
phases     entries in time at any phases
"""
