"""Planning model by model at prices.

Never better than possible, never proven below it, and close for many.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flows.planning import PlanOptions, make_plan
from flows.planning.pool import search as searching
from flows.planning.pool.at_prices.blocks import ModelBlocks
from flows.planning.pool.bound import undominated
from flows.planning.pool.columns import enumerate_columns
from flows.planning.verify.numbers import verify_plan
from flows.planning.watch import Progress, Watch
from tests.flows.planning.brute import best_throughput, least_price, rates_by_room
from tests.flows.planning.pool.test_plan_brute_force import problems
from tests.flows.planning.small import cluster, problem_of, profile
from triton_backend.contract.cluster import Cluster, GpuClass, NodeGroup
from triton_backend.contract.errors import InfeasibleError
from triton_backend.contract.profiles import ModelProfile, loaded
from triton_backend.contract.workload import ModelDemand, Workload

EXACT = PlanOptions(gap=0.0, slo_margin=0.0)
Problem3 = tuple[dict[str, ModelProfile], Cluster, Workload]
SLOW_INSTANCES = settings(
    max_examples=25, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)  # fmt: skip


@pytest.fixture
def at_prices(monkeypatch: pytest.MonkeyPatch) -> None:
    """However few models there are, they are planned at prices alone."""
    monkeypatch.setattr(searching, "PRICES_FIRST_FROM_MODELS_MANY_CLASSES", 1)
    monkeypatch.setattr(searching, "PRICES_FIRST_FROM_MODELS", 1)


@pytest.mark.long
@pytest.mark.usefixtures("at_prices")
@SLOW_INSTANCES
@given(problem=problems(), stages=st.integers(1, 3))
def test_value_and_bound_lie_on_both_sides_of_the_best_plan(problem: Problem3, stages: int) -> None:
    best = best_throughput(*problem, stages)
    try:
        plan = make_plan(*problem, replace(EXACT, max_partitions=stages))
    except InfeasibleError:
        assert best == 0.0
        return
    assert plan.objective.value <= best * (1 + 1e-9)
    assert plan.objective.upper_bound >= best * (1 - 1e-9)
    assert verify_plan(plan, problem[0]) == []


@pytest.mark.usefixtures("at_prices")
def test_a_model_that_costs_nothing_at_the_prices_leaves_the_others_to_be_proven() -> None:
    """Two GPUs and two models of like latency: the price of one class falls to 0."""
    uneven = np.full((3, 2), 50.0)
    uneven[2, 0] = 53.0
    even = {kind: np.full((2, 2), 50.0) for kind in (("a", 1), ("a", 2), ("b", 1))}
    deep = {kind: np.full((3, 2), 50.0) for kind in (("a", 1), ("a", 2))} | {("b", 1): uneven}
    profiles = {
        name: ModelProfile(name=name, boundary_bytes=moved, tables=loaded(tables))
        for name, moved, tables in (("m", (0,), even), ("n", (0, 0), deep))
    }
    tiny = Cluster(
        name="tiny",
        gpu_classes=(GpuClass(name="a", vgpu_divisors=(1, 2)), GpuClass(name="b")),
        nodes=(
            NodeGroup(count=1, gpu_class="a", gpus=1, nic_gbps=8.0),
            NodeGroup(count=1, gpu_class="b", gpus=1, nic_gbps=4.0),
        ),
    )
    workload = Workload(
        models=tuple(
            ModelDemand(name=name, slo_us=600, weight=weight, batch_building_rate_rps=1500.0)
            for name, weight in (("m", 0.5), ("n", 1.0))
        )
    )
    best = best_throughput(profiles, tiny, workload, 1)
    plan = make_plan(profiles, tiny, workload, replace(EXACT, max_partitions=1))
    assert plan.objective.value <= best * (1 + 1e-9)
    assert plan.objective.upper_bound >= best * (1 - 1e-9)


@pytest.mark.long
@pytest.mark.usefixtures("at_prices")
@SLOW_INSTANCES
@given(problem=problems(), rate_rps=st.sampled_from([200.0, 1000.0, 3000.0]))
def test_cost_and_bound_lie_on_both_sides_of_the_cheapest_plan(
    problem: Problem3, rate_rps: float
) -> None:
    profiles, tiny, workload = problem
    asked = Workload(
        models=tuple(replace(m, weight=None, rate_rps=rate_rps) for m in workload.models)
    )
    least = least_price(profiles, tiny, asked, 2, {"a": 3.0, "b": 1.0})
    try:
        plan = make_plan(profiles, tiny, asked, replace(EXACT, objective="cost"))
    except InfeasibleError:
        return  # few models on few GPUs: prices do not always find the plan there is
    assert plan.objective.value >= least * (1 - 1e-9)
    assert plan.objective.upper_bound <= least * (1 + 1e-9)
    assert verify_plan(plan, profiles) == []


@pytest.mark.long
@SLOW_INSTANCES
@given(
    problem=problems(),
    rate_rps=st.sampled_from([300.0, 900.0, 2500.0]),
    price=st.one_of(
        st.tuples(st.floats(0.05, 1.0), st.floats(0.05, 1.0)),
        st.sampled_from([(0.8, 0.3), (3.0, 1.0), (300.0, 70.0)]),  # multiples of one price
    ),
)
def test_no_step_says_that_a_model_costs_more_than_it_does(
    problem: Problem3, rate_rps: float, price: tuple[float, float]
) -> None:
    arrays = problem_of(*problem, EXACT)
    try:
        columns = enumerate_columns(arrays, 2)
    except InfeasibleError:
        return
    columns = columns.take(undominated(arrays, columns, np.arange(len(columns))))
    blocks, prices = ModelBlocks(arrays, columns, Watch()), np.array(price)
    rates = np.full(len(arrays.models), rate_rps)
    blocks.focus(prices, rates)
    items, floor = blocks.propose(prices, rates), blocks.floor(prices, rates)
    types, tables = rates_by_room(*problem, 2)
    divisors = np.array([v for _, v in types])
    each = np.array([price[0] if name == "a" else price[1] for name, _ in types])
    for block, table in enumerate(tables):
        costs = [
            float(each @ (np.array(vgpus) / divisors))
            for vgpus, rate in table.items()
            if rate >= rate_rps * (1 - 1e-9) and not np.any(np.array(vgpus) % divisors)
        ]
        if not costs or not len(items[block]):
            continue
        least, known = min(costs), float(blocks.total(items[block])[0] @ prices)
        assert floor[block] <= least * (1 + 1e-9)
        cost = 0.0
        for step in range(blocks.steps):
            cost, _, _ = blocks.least(block, prices, rate_rps, known, step)
            # Costs are those of GPUs that exist; at prices alone, more of them may be had.
            assert cost <= max(least, 0.0) * (1 + 1e-6) or least > known
        if least <= known:
            assert cost == pytest.approx(least, rel=1e-5)


def many(count: int) -> Problem3:
    """Models of different speeds and weights on a cluster of two classes."""
    rng = np.random.default_rng(3)
    profiles: dict[str, ModelProfile] = {}
    demands: list[ModelDemand] = []
    for number in range(count):
        name, blocks = f"m{number}", tuple(float(us) for us in rng.integers(300, 2000, 3))
        profiles[name] = profile(name, blocks, float(rng.uniform(1.5, 4)))
        demands.append(
            ModelDemand(
                name=name,
                slo_us=round(sum(blocks) * 5),
                weight=float(rng.choice([1, 2, 5, 20])),
                batch_building_rate_rps=1e9,
            )
        )
    priced = cluster(2 * count, 4 * count, fast_hourly_cost=3.0, slow_hourly_cost=1.0)
    return profiles, priced, Workload(models=tuple(demands))


@pytest.mark.long
def test_many_models_are_proven_within_the_gap_and_told_on_the_way() -> None:
    problem, told = many(30), list[Progress]()
    plan = make_plan(*problem, PlanOptions(gap=0.01), Watch(tell=told.append))
    assert plan.objective.gap <= 0.01 * (1 + 1e-6)
    assert plan.certificate["status"] == "optimal"
    assert verify_plan(plan, problem[0]) == []
    values = [p.value for p in told if p.value is not None]
    bounds = [p.bound for p in told if p.bound is not None]
    assert values == sorted(values)
    assert bounds == sorted(bounds, reverse=True)
    assert values[0] >= 0.8 * plan.objective.value
    assert make_plan(*problem, PlanOptions(gap=0.01)).models == plan.models


def test_least_cost_of_many_models_is_proven_within_the_gap() -> None:
    profiles, priced, workload = many(30)
    asked = Workload(
        models=tuple(
            replace(m, weight=None, rate_rps=60.0 * (m.weight or 1)) for m in workload.models
        )
    )
    plan = make_plan(profiles, priced, asked, PlanOptions(gap=0.01, objective="cost"))
    assert 0 <= plan.objective.gap <= 0.01 * (1 + 1e-6)
    assert plan.objective.upper_bound <= plan.objective.value
    assert verify_plan(plan, profiles) == []


@pytest.mark.long
def test_a_rate_to_keep_raises_one_of_many_models() -> None:
    problem = many(30)
    free = make_plan(*problem, PlanOptions(gap=0.01))
    least = free.model("m3").throughput_rps * 1.5
    kept = make_plan(*problem, PlanOptions(gap=0.01, minimum_rps={"m3": least}))
    assert kept.model("m3").throughput_rps >= least * (1 - 1e-9)
    assert kept.objective.value <= free.objective.upper_bound
    assert verify_plan(kept, problem[0]) == []
