"""Figures of a soak with faults.

What each fault cost, when all was well again, what is judged.
"""

from argparse import Namespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scripts.benchmarks.served import FAILED, SERVED, Loaded
from scripts.faults.probe import well_from_us
from scripts.faults.soak import benchmark_name, figures_of, judged, settled_s
from triton_backend.serving.loadgen.record import RECORD

S = 1_000_000
STARTED_US = 7 * S
PER_WINDOW = 100  # of half a second


def loaded(lost: NDArray[np.bool_]) -> Loaded:
    """Requests at equal gaps, 200 a second, of which these are lost."""
    records = np.zeros(len(lost), dtype=RECORD)
    records["intended_us"] = np.arange(len(lost)) * (S // (2 * PER_WINDOW))
    records["done_us"] = records["intended_us"] + 10_000
    records["outcome"] = np.where(lost, FAILED, SERVED)
    deadline_us = np.array([100_000])
    return Loaded(summary={}, records=records, deadline_us=deadline_us, started_us=STARTED_US)


def lost_between(begin_s: float, end_s: float, seconds: int = 20) -> Loaded:
    at_s = np.arange(2 * PER_WINDOW * seconds) / (2 * PER_WINDOW)
    return loaded((at_s >= begin_s) & (at_s < end_s))


def test_a_repair_has_settled_from_where_two_seconds_attain_99_percent() -> None:
    run = lost_between(5, 8)
    assert settled_s(run, STARTED_US + 6 * S) == 2.0
    assert settled_s(run, STARTED_US + 9 * S) == 0.0
    assert settled_s(lost_between(5, 20), STARTED_US + 6 * S) is None


def test_a_fault_is_judged_by_the_requests_until_the_next_one() -> None:
    row: dict[str, Any] = {"at_us": STARTED_US + 4 * S, "repaired_us": STARTED_US + 6 * S}
    assert judged(lost_between(5, 8), row, STARTED_US + 14 * S) == {
        "offered": 2_000,
        "lost": 600,
        "waited_too_long": 0,
        "attainment": 0.7,
        "good_after_repair_s": 2.0,
    }


def test_a_repair_that_takes_longer_than_its_row_says_is_missed() -> None:
    look: dict[str, Any] = {
        "rss_mb": 100.0,
        "rss_mb_by_process": {},
        "own_mb": 60.0,
        "own_mb_by_process": {},
        "processes_by_name": {},
        "series": 100,
        "series_names": [],
        "descriptors": {},
        "lasting files": 2,
        "lasting sockets": 1,
        "links": 2,
        "most_links": 4,
        "processes": 9,
        "segments": 5,
        "sockets": 3,
        "files": 4,
    }
    row: dict[str, Any] = {
        "fault": "worker killed",
        "aim_s": 5.0,
        "repaired_s": 5.1,
        "whole_again": True,
        "good_after_repair_s": None,
        "lost": 3,
        "offered": 100,
        "waited_too_long": 0,
        "complaints_later": 1,
    }
    result: dict[str, Any] = {
        "rows": [row, {**row, "repaired_s": 1.0, "whole_again": False}],
        "resources": [look, {**look, "rss_mb": 103.0}],
        "wrong": 0,
        "changes": [{"at_us": 0, "seconds": 2.0}, {"at_us": 1, "failed": "a step failed"}],
        "attainment": 0.97,
        "offered": 200,
        "left_over": ["process 12"],
    }
    missed = [f.name for f in figures_of(result, 60.0) if f.status == "MISSED"]
    assert missed == [
        "1 worker killed: repaired",
        "1 worker killed: from repair to 99 %",
        "2 worker killed: repaired",
        "2 worker killed: from repair to 99 %",
        "memory at the end, of that after warm-up",
        "processes, segments and folders left over",
    ]


def test_a_fault_is_repaired_once_nothing_is_amiss_for_seconds() -> None:
    """A single request that a busy machine drops much later is no part of it.

    A flapping worker is.
    """
    bad_us = [1 * S, 2 * S, 6 * S, 40 * S]
    assert well_from_us(bad_us, 1 * S, 5.0) == 6 * S
    assert well_from_us(bad_us, 3 * S, 1.0) == 3 * S
    assert well_from_us([], 3 * S, 5.0) == 3 * S


def test_runs_of_another_length_or_with_two_gateways_give_other_claims_a_value() -> None:
    def name(minutes: float, *, two: bool = False) -> str:
        return benchmark_name(Namespace(minutes=minutes, two_gateways=two))

    assert name(29.0) == "soak with faults"
    assert name(8.0) == "short soak with faults"
    assert name(30.0, two=True) == "soak with faults, two gateways"
