"""Dispatch policies: every file here that states `POLICIES` adds what it lists (`registry`).

Nothing is imported here, because the command line reads `SERVING_POLICY` when it starts.
"""

# What a gateway runs unless its settings name another. Under `reservation` a backlog once there,
# after a stall say, stays while the overload does: late heads allow small batches only, which make
# all later ones late.
SERVING_POLICY = "reservation-ahead"
