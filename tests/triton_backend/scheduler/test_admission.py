"""The kernel of the door, one request at a time.

Its memory fades, its work is done as time passes.
"""

from dataclasses import replace
from math import exp, inf

import numpy as np
import pytest

from tests.fakes.applications import hand_application, hand_module, with_applications
from tests.fakes.plans import Own, Way, make_boarding_plan, make_plan
from triton_backend.scheduler.admission import (
    ADMISSION,
    FILLED_SHARE,
    OVERLOAD_FACTOR,
    WORK,
    admits,
    admits_job,
    capacity_rps,
    job_work,
    new_admission,
)

MEMORY_US, SAMPLE_US, FAR_US = 100_000.0, 1_000.0, 10**9


def door(**fields: float) -> np.ndarray:
    """One model; what is not given is 0."""
    rows = np.zeros(1, ADMISSION)
    usual = {"memory_us": MEMORY_US, "sample_us": SAMPLE_US, "common_us": inf, "slowness": 1.0}
    for name, value in {**usual, **fields}.items():
        rows[0][name] = value
    return rows


def test_what_was_offered_is_forgotten_by_a_third_in_the_time_of_its_memory() -> None:
    rows = door(offered=100.0)
    admits(rows, 0, 2, FAR_US, int(MEMORY_US))
    assert rows[0]["offered"] == pytest.approx(100.0 * exp(-1) + 2)


def test_work_is_done_as_time_passes_and_grows_by_what_is_admitted() -> None:
    rows = door(work_us=50_000.0)
    admits(rows, 0, 3, FAR_US, 20_000)
    assert rows[0]["work_us"] == 30_000.0 + 3 * SAMPLE_US
    admits(rows, 0, 1, FAR_US, 900_000)
    assert rows[0]["work_us"] == SAMPLE_US


def test_pipelines_run_what_their_vgpus_run_or_what_is_promised_where_that_is_more() -> None:
    latency_us = tuple(range(100, 501, 100))
    plan = make_plan([[Own(latency_us=latency_us, gpus=2)], [Own(latency_us=(1_000,))]])
    (model,) = plan.models
    runs = 2 * len(latency_us) * 1_000_000 / latency_us[-1]
    for promised in (runs / 4, 4 * runs):
        first, second = model.pipelines
        other = replace(model, pipelines=(replace(first, throughput_rps=promised), second))
        assert capacity_rps(plan, other, other.pipelines[:1]) == pytest.approx(max(runs, promised))


def test_a_stage_where_batches_join_runs_batches_of_its_own_size() -> None:
    """Half of 4 in 7 ms for each of two entries, also where one brings less or more at a time."""
    for align in ((3_000,), (3_000,) * 6):
        shared = Own(latency_us=(4_000, 5_000, 6_000, 7_000))
        plan = make_boarding_plan(
            [((0, 2), Own(latency_us=align, gpus=2)), ((2, 4), shared)],
            Way(pools=(0, 1)),
            Way(pools=(1,)),
        )
        (model,) = plan.models
        half_rps = 2 * 1_000_000 / 7_000
        assert capacity_rps(plan, model, model.pipelines[:1]) == pytest.approx(half_rps)
        assert capacity_rps(plan, model) == pytest.approx(2 * half_rps)


def test_time_that_goes_back_changes_nothing() -> None:
    rows = door(work_us=5_000.0, offered=7.0, last_us=1_000)
    assert admits(rows, 0, 1, FAR_US, 400)
    assert (rows[0]["work_us"], rows[0]["offered"]) == (6_000.0, 8.0)


@pytest.mark.parametrize(
    ("share", "batching", "admitted"),
    [(0.9, 1.0, True), (1.1, 1.0, False), (1.1, 0.0, True)],
)
def test_only_an_overload_of_a_model_with_batches_refuses(
    share: float, batching: float, admitted: bool
) -> None:
    """At a full queue: the work waiting fills what the deadline leaves, and more."""
    offered = share * OVERLOAD_FACTOR * MEMORY_US / SAMPLE_US
    rows = door(offered=offered, batching=batching, work_us=10_000.0)
    assert admits(rows, 0, 0, 10_000, 0) is admitted


def test_who_cannot_be_in_time_is_let_in_and_counts_as_no_work() -> None:
    rows = door(work_us=20_000.0)
    assert admits(rows, 0, 1, 10_000, 0)
    assert rows[0]["work_us"] == 20_000.0


def test_in_an_overload_work_may_fill_its_share_of_the_time_and_no_more() -> None:
    offered = 2 * OVERLOAD_FACTOR * MEMORY_US / SAMPLE_US
    full_us = FILLED_SHARE * 10_000
    for work_us, admitted in ((full_us, True), (full_us + 1, False)):
        rows = door(offered=offered, batching=1.0, work_us=work_us)
        assert admits(rows, 0, 1, 10_000, 0) is admitted


def test_of_a_jobs_time_what_its_other_modules_take_is_nobodys_to_fill() -> None:
    offered = 2 * OVERLOAD_FACTOR * MEMORY_US / SAMPLE_US
    full_us = FILLED_SHARE * 6_000
    work = np.zeros(1, WORK)
    work[0]["rows"], work[0]["beside_us"] = 1.0, 4_000.0
    for work_us, admitted in ((full_us, True), (full_us + 1, False)):
        rows = door(offered=offered, batching=1.0, work_us=work_us)
        assert admits_job(rows, work, 0, 1, 10_000, 0) is admitted


@pytest.mark.parametrize(("batches", "batching"), [(1, 0), (2, 1)])
def test_only_batches_of_several_samples_are_kept_large(batches: int, batching: int) -> None:
    plan = make_plan([[Own(latency_us=(1_000, 1_500)[:batches])]])
    assert new_admission(plan)[0]["batching"] == batching


def test_the_door_remembers_three_slos() -> None:
    assert new_admission(make_plan([[Own(latency_us=(1_000,))]], slo_us=7_000))[0][
        "memory_us"
    ] == pytest.approx(21_000)


@pytest.mark.parametrize(("filled", "share"), [(0.2, 1.0), (0.5, 0.5), (0.65, 0.2), (0.8, 0.0)])
def test_where_jobs_enter_a_share_of_all_is_let_in_that_falls_as_work_grows(
    filled: float, share: float
) -> None:
    """The same of those with much time and of those with little, evenly spread."""
    common_us = 10_000.0
    for time_us in (10_000, 90_000):
        rows = door(offered=10 * MEMORY_US / SAMPLE_US, batching=1.0, common_us=common_us)
        let_in: list[bool] = []
        for _ in range(20):
            rows[0]["work_us"] = filled * common_us
            let_in.append(admits(rows, 0, 1, time_us, 0))
        assert sum(let_in) == pytest.approx(20 * share, abs=1)
        if 0 < share < 1:
            gaps = np.diff(np.flatnonzero(let_in))
            assert gaps.max() - gaps.min() <= 1


@pytest.mark.parametrize("application", [0, 1])
def test_a_job_that_is_let_in_is_work_of_all_of_its_applications_modules_and_of_no_other(
    application: int,
) -> None:
    """Three rows of each of them, of a millisecond each.

    Also where no application comes after its own.
    """
    plan = make_plan(*[[[Own(latency_us=(1_000,))]] for _ in range(4)])
    names = [model.name for model in plan.models]
    chains = [
        hand_application(
            f"app{n}",
            [hand_module("one", names[2 * n]), hand_module("two", names[2 * n + 1], "one")],
            slo_us=100_000,
        )
        for n in range(2)
    ]
    served = with_applications(plan, *chains)
    rows, work = new_admission(served), job_work(served)
    (first,) = np.flatnonzero(work["application"] == application)[:1]
    assert admits_job(rows, work, int(first), 3, 100_000, 0)
    mine = [3_000.0 if n // 2 == application else 0.0 for n in range(4)]
    assert rows["work_us"].tolist() == mine


def test_the_common_time_is_that_of_whom_the_plan_leaves_least() -> None:
    """A chain of 10 ms each.

    Of 100 ms, 10 are kept back, 20 go to the other modules, 10 to the run.
    """
    plan = make_plan(*[[[Own(latency_us=(8_000, 10_000))]] for _ in range(3)])
    names = [model.name for model in plan.models]
    modules = [hand_module(names[0], names[0]), hand_module(names[1], names[1], names[0])]
    modules.append(hand_module(names[2], names[2], names[1]))
    served = with_applications(plan, hand_application("chain", modules, slo_us=100_000))
    rows = new_admission(served, guard_us=lambda us: us // 10)
    assert rows["common_us"].tolist() == [60_000.0] * 3
    assert new_admission(plan)["common_us"].tolist() == [inf] * 3
