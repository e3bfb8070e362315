"""Dispatch policies by name, one file each."""

from triton_backend.contract.errors import InputError

POLICIES = ("reservation", "reservation-ahead")
# What a gateway runs unless it is told otherwise. Under `reservation` a backlog once there, after a
# stall say, stays while the overload does: late heads allow small batches only, which make all late.
SERVING_POLICY = "reservation-ahead"


def policy_number(name: str) -> int:
    """Number of a policy in `POLICIES`, as the kernels know it.

    Raises:
        InputError: there is no such policy.
    """
    if name not in POLICIES:
        raise InputError("policy", f"{name!r} is none of {', '.join(POLICIES)}")
    return POLICIES.index(name)
