"""Shares of a GPU: whole 300ths, so that 1/v (v up to 4) and whole percents are both exact.

    share   1/1   1/2   1/3   1/4    20 %   1 %
    300ths  300   150   100    75     60      3

Files say `vgpu_divisor: 3` or `vgpu_percent: 20`; inside, a share is an int.
"""

from typing import Any

from triton_backend.contract.errors import InputError
from triton_backend.contract.fields import Fields

WHOLE_GPU = 300
PER_PERCENT = WHOLE_GPU // 100
MAX_DIVISOR = 4
MAX_PERCENT = 100
LOADED = "loaded"  # a latency measured while equal copies kept the other parts of the GPU busy
SOLO = "solo"  # a latency measured while the rest of the GPU was idle
BASES = (LOADED, SOLO)

Part = tuple[int, str]
"""What latencies are measured on: share in 300ths, and basis."""


def share_of_divisor(divisor: int) -> int:
    """1/v of a GPU.

    Raises:
        InputError: v is not from 1 to 4.
    """
    if not 1 <= divisor <= MAX_DIVISOR:
        raise InputError("vgpu_divisor", f"{divisor} is not from 1 to {MAX_DIVISOR}")
    return WHOLE_GPU // divisor


def share_of_percent(percent: int) -> int:
    """Whole percents of a GPU.

    Raises:
        InputError: not from 1 to 100.
    """
    if not 1 <= percent <= MAX_PERCENT:
        raise InputError("vgpu_percent", f"{percent} is not from 1 to {MAX_PERCENT}")
    return percent * PER_PERCENT


def divisor_of(share: int) -> int | None:
    """v where a share is 1/v for v from 1 to 4, else None."""
    divisor, rest = divmod(WHOLE_GPU, share)
    return divisor if rest == 0 and divisor <= MAX_DIVISOR else None


def percent_of(share: int) -> float:
    """Percents of a GPU."""
    return share / PER_PERCENT


def share_text(share: int) -> str:
    """For people: `1/3`, `20 %`, `1/1` for a whole GPU."""
    divisor = divisor_of(share)
    return f"{percent_of(share):g} %" if divisor is None else f"1/{divisor}"


def check_share(where: str, share: int) -> None:
    """Whether a share can be written in a file.

    Raises:
        InputError: it is neither 1/v nor whole percents.
    """
    whole_percents = 1 <= share <= WHOLE_GPU and share % PER_PERCENT == 0
    if not whole_percents and (share < 1 or divisor_of(share) is None):
        raise InputError(where, f"a share of {share}/{WHOLE_GPU} is neither 1/v nor whole percents")


def read_share(fields: Fields) -> int:
    """`vgpu_divisor` or `vgpu_percent` of a file's object; one of the two.

    Raises:
        InputError: both, neither, or out of range.
    """
    divisor, percent = fields.has("vgpu_divisor"), fields.has("vgpu_percent")
    if divisor and percent:
        raise fields.wrong("vgpu_percent", "stands beside vgpu_divisor; one of the two is allowed")
    if percent:
        return fields.integer("vgpu_percent", least=1, most=MAX_PERCENT) * PER_PERCENT
    return WHOLE_GPU // fields.integer("vgpu_divisor", least=1, most=MAX_DIVISOR)


def share_to_dict(share: int) -> dict[str, Any]:
    """Inverse of `read_share`: 1/v where it is that, else percents."""
    divisor = divisor_of(share)
    if divisor is not None:
        return {"vgpu_divisor": divisor}
    return {"vgpu_percent": share // PER_PERCENT}
