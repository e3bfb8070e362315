"""The pure centre: types both halves speak, and the scheduler.

No clock, thread, I/O or randomness.
"""
