"""The estimate follows from past uploads of at least 64 KB."""

import pytest

from triton_backend.client.bandwidth import LEAST_BYTES, Bandwidth


def test_the_harmonic_mean_of_the_last_five() -> None:
    known = Bandwidth()
    assert known.mbit_per_s is None
    for number, rate in enumerate([9.0, 8.0, 6.0, 7.0, 8.0, 8.0], 1):
        known.note(number * 1_000_000, LEAST_BYTES, round(8 * LEAST_BYTES / rate))
    assert known.mbit_per_s == pytest.approx(5 / (3 / 8 + 1 / 6 + 1 / 7), rel=1e-3)


@pytest.mark.parametrize(("rate", "expected"), [(12.0, 9.6), (12.2, 12.2), (5.4, 6.4), (5.2, 5.2)])
def test_another_pace_begins_the_mean_anew(rate: float, expected: float) -> None:
    known = Bandwidth()
    for number, paced in enumerate([8.0, rate], 1):
        known.note(number * 1_000_000, LEAST_BYTES, round(8 * LEAST_BYTES / paced))
    assert known.mbit_per_s == pytest.approx(expected, rel=1e-2)


def test_smaller_uploads_and_those_of_no_time_are_no_measurement() -> None:
    known = Bandwidth()
    known.note(1_000, LEAST_BYTES - 1, 1_000)
    known.note(1_000, LEAST_BYTES, 0)
    assert known.mbit_per_s is None


def test_an_upload_that_was_given_up_counts_with_what_left() -> None:
    known = Bandwidth()
    known.note(1_000_000, 100_000, 500_000, sent=1_000)
    assert known.mbit_per_s == pytest.approx(0.016)
    known.note(1_100_000, 100_000, 100_000, sent=0)
    assert known.mbit_per_s == 0.0


def test_after_five_seconds_of_silence_the_mean_begins_anew() -> None:
    known = Bandwidth()
    assert known.probe_due(0)
    known.note(1_000_000, 100_000, 500_000, sent=0)
    assert not known.probe_due(5_999_999)
    assert known.probe_due(6_000_000)
    known.note(6_010_000, LEAST_BYTES, 10_000)
    assert known.mbit_per_s == pytest.approx(8 * LEAST_BYTES / 10_000)
