"""Conversions between the units of files and messages and the integer microseconds inside.

Every duration and instant inside the core is an integer number of microseconds; every size is
bytes; every link rate is Gbit/s as users write it. Conversions live here and nowhere else.
"""

import math

US_PER_MS = 1_000
US_PER_S = 1_000_000
BITS_PER_BYTE = 8

# Upper bounds of the buckets in which times are counted: 0.2 ms to 5 s, six to a factor of ten.
TIME_BOUNDS_US = (
    *(step * 10**power for power in range(2, 6) for step in (2, 3, 5, 7, 10, 15)),
    *(step * 10**6 for step in (2, 3, 5)),
)

# Decimal milliseconds such as 165.577 become 165576.99999999997 in binary; a floor would lose one.
_ROUND_OFF = 1e-6


def ms_to_us(value_ms: float) -> int:
    """Whole microseconds in `value_ms`, rounded down (a deadline never grows)."""
    return math.floor(value_ms * US_PER_MS + _ROUND_OFF)


def us_to_ms(value_us: float) -> float:
    """Milliseconds, for people and files."""
    return value_us / US_PER_MS


def s_to_us(value_s: float) -> int:
    """Whole microseconds nearest to `value_s`."""
    return round(value_s * US_PER_S)


def us_to_s(value_us: float) -> float:
    """Seconds, for people and files."""
    return value_us / US_PER_S


def transfer_us(size_bytes: int, rate_gbps: float) -> int:
    """Microseconds to move `size_bytes` over a link of `rate_gbps`, rounded up.

    One Gbit/s moves 1,000 bits per microsecond.
    """
    return math.ceil(size_bytes * BITS_PER_BYTE / (rate_gbps * 1e3) - _ROUND_OFF)
