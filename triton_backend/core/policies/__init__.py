"""Dispatch policies by name, one file each."""

from triton_backend.core.errors import InputError

POLICIES = ("reservation", "reservation-ahead")


def policy_number(name: str) -> int:
    """Number of a policy in `POLICIES`, as the kernels know it.

    Raises:
        InputError: there is no such policy.
    """
    if name not in POLICIES:
        raise InputError("policy", f"{name!r} is none of {', '.join(POLICIES)}")
    return POLICIES.index(name)
