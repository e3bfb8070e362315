"""Conversions between units."""

import pytest

from triton_backend.contract import units


def test_milliseconds_become_whole_microseconds_and_a_deadline_never_grows() -> None:
    assert units.ms_to_us(165.577) == 165_577
    assert units.ms_to_us(0.0019) == 1
    assert units.us_to_ms(1_500) == 1.5


def test_seconds_go_there_and_back() -> None:
    assert units.s_to_us(1.2345678) == 1_234_568
    assert units.us_to_s(units.s_to_us(30.0)) == 30.0


@pytest.mark.parametrize(
    ("size_bytes", "rate_gbps", "expected_us"), [(0, 10, 0), (1, 10, 1), (125_000, 1, 1_000)]
)
def test_a_transfer_takes_bits_over_rate_rounded_up(
    size_bytes: int, rate_gbps: float, expected_us: int
) -> None:
    assert units.transfer_us(size_bytes, rate_gbps) == expected_us
