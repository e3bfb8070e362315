"""Many models: never worse with more freedom, warm starts, a plan whenever time ends."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from flows.planning import PlanOptions, make_plan
from flows.planning.pool import search as searching
from flows.planning.verify.numbers import verify_plan
from flows.planning.watch import Progress, Watch
from tests.flows.planning.pool.at_prices.test_search import Problem3, many
from tests.flows.planning.pool.test_plan_brute_force import problems
from triton_backend.contract.cluster import Cluster, GpuClass, NodeGroup
from triton_backend.contract.errors import InfeasibleError
from triton_backend.contract.plan import Plan
from triton_backend.contract.profiles import ModelProfile, loaded
from triton_backend.contract.workload import ModelDemand, Workload

COARSE = PlanOptions(gap=0.05)
FINE = PlanOptions(gap=0.01)


@pytest.fixture(scope="module")
def in_force() -> Plan:
    return make_plan(*many(30), FINE)


@pytest.mark.long
def test_more_stages_are_never_worse_however_coarse_the_search() -> None:
    problem = many(30)
    values = [
        make_plan(*problem, replace(COARSE, max_partitions=stages)).objective.value
        for stages in (1, 2, 3)
    ]
    assert values == sorted(values)


@pytest.mark.long
@settings(
    max_examples=25, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)  # fmt: skip
@given(problem=problems())
@pytest.mark.parametrize("at_prices", [False, True])
def test_few_models_are_never_worse_with_more_stages(
    problem: Problem3, at_prices: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if at_prices:
        monkeypatch.setattr(searching, "PRICES_FIRST_FROM_MODELS_MANY_CLASSES", 1)
        monkeypatch.setattr(searching, "PRICES_FIRST_FROM_MODELS", 1)
    values: list[float] = []
    for stages in (1, 2, 3):
        options = PlanOptions(gap=0.2, slo_margin=0.0, max_partitions=stages)
        try:
            values.append(make_plan(*problem, options).objective.value)
        except InfeasibleError:
            assert not values  # more stages can do all that fewer can
    assert all(more >= fewer * (1 - 1e-4) for fewer, more in pairwise(values))


def test_stages_beyond_what_a_model_has_blocks_for_are_never_worse() -> None:
    """Two blocks: with three stages the search is that with two, and must begin like it."""
    latency_us = {"a": [[50.0, 50.0], [50.0, 79.0]], "b": [[50.0, 52.0], [50.0, 84.0]]}
    profile = ModelProfile(
        name="m",
        boundary_bytes=(0,),
        tables=loaded({(name, 1): np.array(table) for name, table in latency_us.items()}),
    )
    nodes = [
        NodeGroup(count=1, gpu_class=name, gpus=1, nic_gbps=gbps)
        for name, gbps in (("a", 8.0), ("b", 4.0))
    ]
    classes = [GpuClass(name=name, vgpu_divisors=(1,)) for name in latency_us]
    cluster = Cluster(name="tiny", gpu_classes=tuple(classes), nodes=tuple(nodes))
    demand = ModelDemand(name="m", slo_us=1003, weight=0.5, batch_building_rate_rps=1500.0)
    values = [
        make_plan(
            {"m": profile},
            cluster,
            Workload(models=(demand,)),
            PlanOptions(gap=0.2, slo_margin=0.0, max_partitions=stages),
        ).objective.value
        for stages in (1, 2, 3)
    ]
    assert values == sorted(values)


@pytest.mark.long
def test_a_plan_of_fewer_classes_is_where_one_of_more_begins() -> None:
    problem = many(30)
    fewer = make_plan(*problem, replace(COARSE, excluded_classes={"*": ("slow",)}))
    stopped = Watch()
    stopped.stop()
    begun = make_plan(*problem, replace(COARSE, previous=fewer), stopped)
    assert begun.objective.value >= fewer.objective.value * (1 - 1e-9)
    assert begun.certificate["status"] == "stopped"
    more = make_plan(*problem, replace(COARSE, previous=fewer))
    assert more.objective.value >= fewer.objective.value * (1 - 1e-9)
    assert verify_plan(more, problem[0]) == []


@pytest.mark.long
def test_a_changed_rate_is_planned_from_the_plan_in_force(in_force: Plan) -> None:
    profiles, machines, workload = many(30)
    first, *others = workload.models
    heavier = Workload(models=(replace(first, weight=(first.weight or 1.0) * 1.2), *others))
    after = make_plan(profiles, machines, heavier, replace(FINE, previous=in_force))
    again = make_plan(profiles, machines, heavier, FINE)
    assert after.objective.gap <= 0.01 * (1 + 1e-6)
    assert after.objective.value <= again.objective.upper_bound * (1 + 1e-9)
    assert verify_plan(after, profiles) == []
    assert after.certificate["prices"].keys() == {"fast", "slow"}


@pytest.mark.long
def test_the_plan_in_force_stays_where_nothing_changed(in_force: Plan) -> None:
    again = make_plan(*many(30), replace(FINE, previous=in_force))
    assert again.objective.value >= in_force.objective.value * (1 - 1e-9)
    assert any(note.startswith("0 of") for note in again.certificate["notes"])


@pytest.mark.long
@pytest.mark.parametrize("count", [3, 30])
def test_an_interrupted_run_answers_with_the_best_plan_and_its_gap(count: int) -> None:
    problem, told = many(count), list[Progress]()
    watch = Watch(tell=told.append)

    def tell(now: Progress) -> None:
        told.append(now)
        if now.value is not None:
            watch.stop()

    watch = replace(watch, tell=tell)
    plan = make_plan(*problem, PlanOptions(gap=0.0, max_partitions=3), watch)
    first = next(p.value for p in told if p.value is not None)
    assert plan.objective.value >= first * (1 - 1e-9)
    assert plan.objective.upper_bound >= plan.objective.value
    assert verify_plan(plan, problem[0]) == []
    if plan.objective.gap:
        assert plan.certificate["status"] == "stopped"
        assert any("its gap" in note for note in plan.certificate["notes"])
