"""Many models at prices of GPUs: each is planned alone, on the engine (`flows.planning.engine`).

A column is all that one model runs; models meet only in the GPUs that they share. `stages` begins,
`search` has the mathematics, `pricer` is what the engine asks.
"""
