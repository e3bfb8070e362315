"""An emulated link against a sum over every microsecond."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from triton_backend.client.errors import ClientError
from triton_backend.client.link import EmulatedLink, Trace, Upload, read_trace

LATE_US = 10**9


def slow_end_us(rows: list[tuple[float, float]], start_us: int, size: int) -> int:
    """Adds up each microsecond's bits."""
    rates = [rate for _, rate in rows]
    edges = [round((time - rows[0][0]) * 1e6) for time, _ in rows]
    left, now_us = 8.0 * size, start_us
    while left > 1e-6:
        left -= rates[max(i for i, edge in enumerate(edges) if edge <= now_us)]
        now_us += 1
    return now_us


def test_an_upload_ends_when_the_integral_of_the_rate_is_its_bits() -> None:
    rng = np.random.default_rng(2)
    for _ in range(20):
        times = np.cumsum(rng.integers(1, 40, size=5)) * 1e-5
        rows = [(float(t), float(rng.integers(0, 4))) for t in times[:-1]] + [
            (float(times[-1]), 1.0)
        ]
        start_us, size = int(rng.integers(0, 900)), int(rng.integers(1, 200))
        got = EmulatedLink(Trace(rows)).upload(start_us, size, LATE_US)
        assert abs(got.end_us - slow_end_us(rows, start_us, size)) <= 1
        assert got.sent == size


def test_uploads_leave_one_after_the_other() -> None:
    link = EmulatedLink(Trace([(0.0, 8.0)]))
    assert link.upload(0, 1_000, LATE_US) == Upload(start_us=0, end_us=1_000, sent=1_000)
    assert link.upload(400, 500, LATE_US) == Upload(start_us=1_000, end_us=1_500, sent=500)
    assert link.upload(9_000, 1, LATE_US) == Upload(start_us=9_000, end_us=9_001, sent=1)


def test_what_is_given_up_frees_the_link_then() -> None:
    link = EmulatedLink(Trace([(5.0, 8.0), (5.001, 0.0)]))  # 1,000 bytes, and no more
    assert link.upload(0, 2_000, 3_000) == Upload(start_us=0, end_us=2_100, sent=1_000)
    assert link.upload(10, 4_000, 2_000) == Upload(start_us=2_000, end_us=2_000, sent=0)
    assert link.upload(10, 4_000, 5_100) == Upload(start_us=2_100, end_us=2_400, sent=0)


def test_what_goes_too_slowly_is_given_up_at_a_tenth_of_its_time() -> None:
    """A byte per µs: 12,500 bytes in 10 ms are 80 %, and hoped for; one more is not."""
    steady = Trace([(0.0, 8.0)])
    hoped = EmulatedLink(steady).upload(0, 12_500, 10_000)
    assert hoped == Upload(start_us=0, end_us=10_000, sent=10_000)
    hopeless = EmulatedLink(steady).upload(0, 12_501, 10_000)
    assert hopeless == Upload(start_us=0, end_us=1_000, sent=1_000)
    patient = EmulatedLink(steady, patient=True).upload(0, 12_501, 10_000)
    assert patient == hoped
    recovers = Trace([(0.0, 0.0), (0.002, 80.0)])  # unknown at the first look
    assert EmulatedLink(recovers).upload(0, 1_000, 10_000).sent == 0


def test_what_waits_is_what_has_neither_left_nor_been_given_up() -> None:
    link = EmulatedLink(Trace([(0.0, 8.0), (0.001, 0.0)]))
    assert link.waiting_bytes(0) == 0
    link.upload(0, 500, 10_000)
    link.upload(100, 2_000, 10_000)
    assert link.foreseen_us(100, 1) == float("inf")
    waiting = [link.waiting_bytes(at) for at in (100, 400, 500, 700, 1_500, 4_300)]
    assert waiting == [2_400, 2_100, 2_000, 1_800, 1_500, 0]


def test_the_pace_is_what_left_in_the_last_moment_where_uploads_went_on() -> None:
    link = EmulatedLink(Trace([(0.0, 8.0), (0.03, 80.0)]), patient=True)
    assert link.pace(25_000) is None
    link.upload(0, 40_000, 10**6)
    link.upload(0, 100_000, 10**6)  # until 41 ms
    assert [link.pace(at) for at in (15_000, 25_000, 40_000, 41_001)] == [None, 8.0, 44.0, None]
    link.upload(50_000, 400_000, 10**6)
    assert link.pace(60_000) is None
    assert link.pace(75_000) == 80.0


def test_a_trace_is_read_from_csv_plain_or_packed(tmp_path: Path) -> None:
    text = "time_s,mbit_per_s\n0,8\n1,4\n"
    (tmp_path / "t.csv").write_text(text)
    with gzip.open(tmp_path / "t.csv.gz", "wt") as stream:
        stream.write(text)
    for name in ("t.csv", "t.csv.gz"):
        assert read_trace(tmp_path / name).bits(1.5e6) == 10e6


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (None, "t.csv: cannot be read: No such file"),
        ("time_s,rate\n0,1\n", "no column mbit_per_s"),
        ("time_s,mbit_per_s\n", "no rows"),
        ("time_s,mbit_per_s\n0,fast\n", "not a trace"),
        ("time_s,mbit_per_s\n0,1\n0,2\n", "line 3: its time is not after"),
        ("time_s,mbit_per_s\n0,-1\n", "line 2: "),
    ],
)
def test_what_is_no_trace_is_named(tmp_path: Path, text: str | None, complaint: str) -> None:
    if text is not None:
        (tmp_path / "t.csv").write_text(text)
    with pytest.raises(ClientError, match=complaint):
        read_trace(tmp_path / "t.csv")
