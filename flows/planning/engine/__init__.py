"""One engine: cover fixed demands with columns at least cost, and prove how good that is.

Entries, models on pools, turns, slices and open seats are planned on it; sub-clusters have loops of
their own (DECISIONS). The engine knows no model and no GPU. A family says what is asked (`Cover`)
and brings a `Pricer`, which answers prices with columns; the engine does the rest, file by file in
the order of a run:

    columns    what a column is, many of them as arrays, each kept once
    pricing    what a pricer must be able to do
    master     the linear master program, kept warm, and the whole one
    cover      column generation: prices and a bound that no plan beats
    level      the highest level of demand that is within reach
    rounding   whole plans: programs over chosen columns, dives
    proof      the bound raised until it meets the plan, or said how far it is

Costs are minimised. A throughput is a `Free` column of cost -1 that takes from every demand.
"""
