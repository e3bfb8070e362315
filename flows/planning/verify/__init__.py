"""A plan recomputed from profiles, without a solver and without what made it.

numbers       all checks; what differs, a sentence each
pipelines     blocks, latencies, transfers; the time that a pipeline may take
profiled      latencies of stages as profiles have them
applications  models and budgets of applications, rows in the order of ranks
rates         of pipelines, of entries, on pools that are shared, on demand or in turns
capacity      what vGPUs and links can deliver
objective     value, bound, gap; rates asked for
gpus          number, slots, shares, slices, memory, neighbours, links
bound         what prices in its certificate prove
phases        entries in time at any phases
parts         parts of a plan that were planned by themselves
differences   a stated number and the derived one
"""
