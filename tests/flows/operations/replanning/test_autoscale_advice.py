"""The gateway's advice and `autoscale`, fed the same log, speak of the same rates and GPUs."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest

from flows.operations.replanning.autoscale import Follower
from flows.operations.replanning.options import AutoscaleOptions
from flows.operations.replanning.planner import cheapest_planner
from flows.planning import PlanOptions, make_plan
from triton_backend.contract.cluster import Cluster, GpuClass, NodeGroup
from triton_backend.contract.entries import Entry, demand_name
from triton_backend.contract.plan import Plan
from triton_backend.contract.profiles import ModelProfile, loaded
from triton_backend.contract.units import US_PER_S
from triton_backend.contract.workload import ModelDemand, Workload
from triton_backend.scheduler.policies.demand import PERIOD_S, RateTracker
from triton_backend.serving.gateway.counters import GatewayCounters
from triton_backend.serving.gateway.pool_use import PoolUse, advice_document

PLANNED_RPS, OFFERED_RPS = 240.0, 200  # which with headroom are the same
RUN_US = 8_333.0  # of one request: a GPU carries hardly more than 120 a second
PERIODS = 14
HIGH = range(3, 6)  # periods of three times the load


def one_class() -> tuple[dict[str, ModelProfile], Cluster]:
    latency_us = np.array([[RUN_US]])
    profile = ModelProfile(name="net", boundary_bytes=(), tables=loaded({("G", 1): latency_us}))
    cluster = Cluster(
        name="c",
        gpu_classes=(GpuClass(name="G", vgpu_divisors=(1,), hourly_cost=1.0),),
        nodes=(NodeGroup(count=12, gpu_class="G", gpus=1, nic_gbps=10),),
    )
    return {"net": profile}, cluster


MODEL = ModelDemand(name="net", slo_us=500_000, rate_rps=PLANNED_RPS)
ENTRY = Entry(name="all", block=0, budget_us=500_000, rate_rps=PLANNED_RPS)
WHOLE = Workload(models=(MODEL,))
AT_ENTRY = Workload(models=(ModelDemand(name="net", slo_us=500_000, entries=(ENTRY,)),))


@dataclass(slots=True)
class Heard:
    """Answers of both at the end of a period: rates to plan for, and GPUs.

    Attributes:
        advised: by the gateway, under the plan of the period.
        planned: of the plan for the next period.
    """

    sized: tuple[dict[str, float], dict[str, float]] | None
    tracked: tuple[dict[str, float], dict[str, float]]
    advised: int
    planned: int


def followed(workload: Workload, counts: list[int]) -> Iterator[Heard]:
    """Both of a log of counts by the second; plans that `autoscale` makes are brought at once."""
    profiles, cluster = one_class()
    options = PlanOptions(planner="pool", objective="cost", max_partitions=1)
    first = make_plan(profiles, cluster, workload, options)
    planner = cheapest_planner(profiles, cluster, workload, options, in_force=first)
    follower, tracker = Follower.of(planner, first), RateTracker(PERIOD_S)
    counters, now_us = GatewayCounters(), 0
    use = PoolUse(first, counters, now_us)
    entries = [demand_name("net", e.name) for m in workload.models for e in m.entries]
    (name,) = entries or ["net"]
    for second, count in enumerate(counts, start=1):
        before = {name: sum(counts[: second - 1])}
        counters.offered["net"] += count
        if entries:
            counters.entries["net", ENTRY.name] += count
        else:
            counters.asked["net"] += count
        now_us += US_PER_S
        use.look(now_us)
        tracker.seconds({name: before[name] + count}, before, 1.0)
        if second % PERIOD_S == 0:
            in_force = follower.in_force
            advised = advised_gpus(use, in_force, now_us)
            rates = tracker.targets_rps(), tracker.now_rps()
            plan = follower.next_plan(*rates)
            yield Heard(use.asked.sized_rps(), rates, advised, gpus(plan or in_force))
            if plan is not None:
                use = PoolUse(plan, counters, now_us, use.asked)


def advised_gpus(use: PoolUse, plan: Plan, now_us: int) -> int:
    classes = advice_document(plan, use.advice(now_us), {})["gpu_classes"]
    return sum(one["advised"] for one in classes.values())


def gpus(plan: Plan) -> int:
    return sum(plan.gpus_used.values())


@pytest.mark.parametrize("workload", [WHOLE, AT_ENTRY], ids=["model", "entries"])
def test_advice_and_autoscale_speak_of_the_same_rates_and_gpus(workload: Workload) -> None:
    seconds = int(PERIOD_S)
    counts = [
        3 * OFFERED_RPS if second // seconds in HIGH else OFFERED_RPS
        for second in range(PERIODS * seconds)
    ]
    heard = list(followed(workload, counts))
    assert [one.sized for one in heard] == [one.tracked for one in heard]
    # Under a plan whose GPUs are full both name the same number; in proportion to GPUs that are not
    # quite full it may be one more.
    full, rising = heard[: HIGH.start + 1], heard[: HIGH.stop]
    assert [one.advised for one in full] == [one.planned for one in full]
    assert all(one.planned <= one.advised <= one.planned + 1 for one in rising)
    held = [one.planned for one in heard]
    assert held[HIGH.start] > held[HIGH.start - 1]
    # It falls a minute after the last change; autoscale after two periods at whose ends it is low.
    assert heard[-1].advised == heard[-1].planned < max(held)


def test_the_gateway_looks_as_far_as_autoscale_does_by_default() -> None:
    assert AutoscaleOptions().period == PERIOD_S


def test_a_steady_load_asks_neither_for_a_plan() -> None:
    rng = np.random.default_rng(3)
    counts = rng.poisson(OFFERED_RPS * 0.97, PERIODS * int(PERIOD_S)).tolist()
    heard = list(followed(WHOLE, counts))
    assert {one.advised for one in heard} == {one.planned for one in heard}
    assert all(one.planned == two.planned for one, two in pairwise(heard))


def test_late_requests_at_the_planned_rates_add_gpus_that_no_plan_for_rates_has() -> None:
    profiles, cluster = one_class()
    options = PlanOptions(planner="pool", objective="cost", max_partitions=1)
    plan = make_plan(profiles, cluster, WHOLE, options)
    counters = GatewayCounters()
    use = PoolUse(plan, counters, 0)
    for second in range(1, 31):
        counters.asked["net"] += OFFERED_RPS
        counters.offered["net"] += OFFERED_RPS
        counters.bad["net"] += OFFERED_RPS // 3
        use.look(second * US_PER_S)
    assert (gpus(plan), advised_gpus(use, plan, 30 * US_PER_S)) == (2, 3)  # N / (1 - r)
    assert use.demands() == {"net": {"planned_rps": PLANNED_RPS, "wanted_rps": PLANNED_RPS}}
