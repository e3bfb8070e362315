"""A day's load, served three ways."""

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from flows.operations.adoption.access_log import MINUTE_S, AccessLog
from flows.operations.adoption.savings import check_in_log, ways_of
from flows.operations.replanning.rates import RateHistory
from tests.fakes.applications import hand_application, hand_module
from tests.flows.planning.small import cluster, profile, workload
from triton_backend.contract.entries import Entry
from triton_backend.contract.errors import InputError
from triton_backend.contract.workload import ModelDemand, Workload

PROFILES = {"net": profile()}
CLUSTER = cluster(10, 20, fast_hourly_cost=4.0, slow_hourly_cost=1.0)
DEMAND = ModelDemand(name="net", slo_us=15_000)


def log_of(rps: np.ndarray, name: str = "net") -> AccessLog:
    history = RateHistory(names=(name,), interval_s=MINUTE_S, rps=rps[:, None])
    counts = {name: int(rps.sum() * MINUTE_S)}
    return AccessLog(
        path=Path("a.log"),
        history=history,
        start=datetime(2026, 11, 25, tzinfo=UTC),
        requests=counts,
        others=0,
    )


def test_replanning_takes_fewer_gpus_than_the_peak_and_splitting_no_more_than_whole() -> None:
    hours = np.repeat([200.0, 200.0, 200.0, 200.0, 800.0, 800.0, 200.0, 200.0], 60)
    whole, split, replanned = ways_of(
        log_of(hours), PROFILES, CLUSTER, workload(DEMAND), period_s=3600
    )
    assert split.cost is not None
    assert whole.cost is not None
    assert replanned.cost is not None
    assert split.cost <= whole.cost + 1e-9
    assert replanned.cost < split.cost
    assert whole.served == split.served == 1.0
    assert 0.5 < replanned.served < 1.0  # the hour in which the load rises is not foreseen
    assert split.gpu_hours == pytest.approx(24 * split.gpus)


def test_a_cluster_that_is_too_small_serves_what_it_can() -> None:
    tiny = cluster(1, 1)
    whole, split, _ = ways_of(
        log_of(np.full(120, 5_000.0)), PROFILES, tiny, workload(DEMAND), period_s=3600
    )
    assert 0 < whole.served <= split.served < 1
    assert split.note
    assert split.cost is None  # no class states a price


def test_a_log_without_the_models_is_refused() -> None:
    with pytest.raises(InputError, match="no request of net; its models: other"):
        ways_of(log_of(np.ones(60), "other"), PROFILES, CLUSTER, workload(DEMAND), period_s=3600)


def test_a_log_of_less_than_four_minutes_is_refused_before_a_plan_is_made() -> None:
    with pytest.raises(InputError, match="spans 3 min; 4 at least are needed"):
        ways_of(log_of(np.ones(3)), PROFILES, CLUSTER, workload(DEMAND), period_s=3600)


def test_a_log_of_four_minutes_is_enough() -> None:
    ways = ways_of(log_of(np.ones(4)), PROFILES, CLUSTER, workload(DEMAND), period_s=3600)
    assert [way.served for way in ways] == [1.0, 1.0, 1.0]


def test_requests_of_a_model_with_sizes_are_dealt_out_by_their_shares() -> None:
    sizes = ((0.75, "net@4"), (0.25, "net@8"))
    demands = [
        ModelDemand(name=name, slo_us=15_000, weight=share, size_of="net") for share, name in sizes
    ]
    profiles = {name: profile(name) for _, name in sizes}
    log = log_of(np.full(120, 400.0))
    whole, _, _ = ways_of(log, profiles, CLUSTER, workload(*demands), period_s=3600)
    alone = ways_of(log, PROFILES, CLUSTER, workload(DEMAND), period_s=3600)[0]
    assert whole.served == alone.served == 1.0
    assert whole.gpus >= alone.gpus


def log_of_several(**rps: np.ndarray) -> AccessLog:
    history = RateHistory(
        names=tuple(rps), interval_s=MINUTE_S, rps=np.stack(tuple(rps.values()), axis=1)
    )
    counts = {name: int(each.sum() * MINUTE_S) for name, each in rps.items()}
    start = datetime(2026, 11, 25, tzinfo=UTC)
    return AccessLog(path=Path("a.log"), history=history, start=start, requests=counts, others=0)


TRAFFIC = hand_application(
    "traffic",
    (hand_module("detect", "net"), hand_module("cars", "sub", "detect", rows=2.0, max_rows=8)),
    slo_us=60_000,
).application


@pytest.mark.long
def test_an_application_is_served_by_the_requests_under_its_name() -> None:
    profiles = {name: profile(name) for name in ("net", "sub")}
    demand = ModelDemand(name="net", slo_us=60_000)
    asked = Workload(models=(demand,), applications=(TRAFFIC,))
    log = log_of_several(traffic=np.full(120, 100.0), net=np.full(120, 50.0))
    whole, split, replanned = ways_of(log, profiles, CLUSTER, asked, period_s=3600)
    assert whole.served == split.served == replanned.served == 1.0
    alone = ways_of(log, profiles, CLUSTER, Workload(models=(demand,)), period_s=3600)
    assert alone[0].gpus < whole.gpus
    assert split.cost is not None
    assert split.cost > 0


def test_entries_are_refused_because_a_log_does_not_distinguish_them() -> None:
    entry = Entry(name="tails", block=1, budget_us=15_000, rate_rps=5.0)
    asked = workload(ModelDemand(name="net", slo_us=15_000, entries=(entry,)))
    reason = "workload model 'net', entries: are not distinguished in a log"
    with pytest.raises(InputError, match=reason):
        check_in_log(asked)
    with pytest.raises(InputError, match=reason):
        ways_of(log_of(np.ones(60)), PROFILES, CLUSTER, asked, period_s=3600)
