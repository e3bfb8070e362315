"""Many models at prices of GPUs: each is planned alone, on the engine (`flows.planning.engine`).

A column is all that one model runs; models meet only in the GPUs that they share. `search`
has the order of steps and the mathematics, `pricer` is what the engine asks.
"""
