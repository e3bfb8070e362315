"""Requests that admission refuses, and those that it leaves to the scheduler."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tests.triton_backend.serving.small_plans import BATCH, SLO_US, plan, two_stage
from triton_backend.contract.arrivals import poisson_us
from triton_backend.scheduler.admission import capacity_rps
from triton_backend.serving.gateway.admission import Admission

PLAN = plan(two_stage())
(MODEL,) = PLAN.models
SECONDS = 20
SLOW_STAGE_RPS = BATCH / 5e-3


def arrivals(share: float) -> NDArray[np.int64]:
    rng = np.random.default_rng(0)
    return poisson_us(share * capacity_rps(PLAN, MODEL), SECONDS * 1_000_000, rng)


def admitted(admission: Admission, instants: NDArray[np.int64]) -> list[int]:
    return [now for now in instants.tolist() if admission.admits(0, 1, now + SLO_US, now)]


def test_capacity_is_that_of_the_scarcest_pool_in_whole_batches() -> None:
    assert capacity_rps(PLAN, MODEL) == SLOW_STAGE_RPS
    assert capacity_rps(PLAN, replace(MODEL, throughput_rps=1e6)) == 1e6


def test_nothing_is_refused_at_rates_that_can_be_served() -> None:
    for share in (0.3, 0.9):
        instants = arrivals(share)
        assert admitted(Admission(PLAN, None), instants) == instants.tolist()


def test_three_times_the_rate_is_cut_to_what_can_be_served() -> None:
    kept = admitted(Admission(PLAN, None), arrivals(3.0))
    backlog = SLOW_STAGE_RPS * SLO_US / 1e6
    assert 0.99 * SECONDS * SLOW_STAGE_RPS <= len(kept) <= SECONDS * SLOW_STAGE_RPS + 3 * backlog


def test_what_came_before_an_overload_was_noticed_keeps_nobody_out() -> None:
    kept = admitted(Admission(PLAN, None), arrivals(3.0))
    by_slo, _ = np.histogram(kept, np.arange(0, SECONDS * 1_000_000, SLO_US))
    assert by_slo.min() >= 0.9 * SLOW_STAGE_RPS * SLO_US / 1e6


def test_after_an_overload_requests_are_admitted_as_before() -> None:
    admission = Admission(PLAN, None)
    admitted(admission, arrivals(3.0))
    later = arrivals(0.7) + (SECONDS * 1_000_000 + SLO_US)
    assert admitted(admission, later) == later.tolist()


def test_a_request_with_a_tight_deadline_is_left_to_the_scheduler_when_nothing_waits() -> None:
    admission = Admission(PLAN, None)
    assert admission.admits(0, 1, 1, 0)


def test_models_whose_batches_are_single_samples_are_left_to_the_scheduler() -> None:
    single = replace(MODEL, pipelines=tuple(replace(p, batch=1) for p in MODEL.pipelines))
    instants = arrivals(3.0)
    assert admitted(Admission(replace(PLAN, models=(single,)), None), instants) == instants.tolist()
