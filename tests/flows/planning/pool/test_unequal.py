"""Parts of unequal size beside each other: the best plan against trying everything.

What is refused.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations_with_replacement, product
from math import ceil

import numpy as np
import pytest

from flows.planning import PlanOptions, make_plan
from flows.planning.pool import unequal
from flows.planning.pool.unequal import SPACE, offered
from flows.planning.solver.program import Program
from flows.planning.verify.numbers import verify_plan
from tests.flows.planning.brute import best_rates
from triton_backend.contract.cluster import Cluster, GpuClass, NodeGroup
from triton_backend.contract.errors import InfeasibleError, InputError
from triton_backend.contract.plan import Plan
from triton_backend.contract.profiles import ModelProfile, ProfileKey, ProfileTable
from triton_backend.contract.shares import SOLO
from triton_backend.contract.workload import ModelDemand, Workload

EXACT = PlanOptions(gap=0.0, slo_margin=0.0)
PERCENTS = (30, 40, 60, 100)
SLO_US = 3_000
Config = tuple[tuple[tuple[str, int], float], ...]
Problem = tuple[dict[str, ModelProfile], Cluster, Workload]


def random_problem(seed: int) -> Problem:
    """Two models of two blocks; two GPUs in percents, and one of whole GPUs."""
    random = np.random.default_rng(seed)
    profiles: dict[str, ModelProfile] = {}
    for name in ("m", "n"):
        whole = random.integers(100, 500, (2, 2)).cumsum(axis=1)  # larger batches take longer
        tables = {
            ProfileKey("g", 3 * percent, SOLO): np.ceil(
                whole * (100 / percent) ** random.uniform(0.3, 1.0)
            )
            for percent in PERCENTS
        }
        tables[ProfileKey("h", 300)] = np.ceil(whole * random.uniform(0.8, 3.0))
        profiles[name] = ModelProfile(
            name=name,
            boundary_bytes=(0,),
            tables={
                key: ProfileTable(latency_us=table.astype(np.float64))
                for key, table in tables.items()
            },
        )
    partitions = ((40, 60), (30, 30, 40), (100,)) if seed % 3 == 2 else ()
    gpu_class = GpuClass(
        name="g",
        vgpu_divisors=(),
        vgpu_percents=PERCENTS,
        max_vgpus_per_gpu=3,
        partitions=partitions,
        hourly_cost=2.0,
    )
    cluster = Cluster(
        name="tiny",
        gpu_classes=(gpu_class, GpuClass(name="h", hourly_cost=1.0)),
        nodes=(
            NodeGroup(count=1, gpu_class="g", gpus=2, nic_gbps=10.0),
            NodeGroup(count=1, gpu_class="h", gpus=1, nic_gbps=10.0),
        ),
    )
    demands = tuple(
        ModelDemand(
            name=name,
            slo_us=SLO_US,
            weight=float(random.uniform(0.5, 2.0)),
            rate_rps=float(random.uniform(300, 900)),
            batch_building_rate_rps=1e9,
        )
        for name in profiles
    )
    return profiles, cluster, Workload(models=demands)


def configurations(profile: ModelProfile) -> list[Config]:
    """Every way to run a model in time."""
    tables = {("g", p): profile.table("g", 3 * p, SOLO) for p in PERCENTS}
    tables["h", 100] = profile.table("h", 300)
    found: list[Config] = []
    for cuts in ((0, 2), (0, 1, 2)):
        for kinds in product(tables, repeat=len(cuts) - 1):
            for batch in (1, 2):
                took = [
                    ceil(float(table.latency_us[a:b, batch - 1].sum()))
                    for kind, a, b in zip(kinds, cuts, cuts[1:], strict=False)
                    if (table := tables[kind]) is not None
                ]
                if sum(took) + ceil(1.3 * (batch - 1) / 1e9) <= SLO_US:
                    rates = [batch / us * 1e6 for us in took]
                    found.append(tuple(zip(kinds, rates, strict=True)))
    return found


def rooms(cluster: Cluster) -> Iterator[tuple[tuple[int, int], tuple[int, ...]]]:
    """GPUs used of g and h, and vGPUs by percent and of h, for every way to cut them."""
    allowed = cluster.gpu_classes[0].partitions
    one = [
        cut
        for n in (1, 2, 3)
        for cut in combinations_with_replacement(PERCENTS, n)
        if sum(cut) <= 100
        and (
            not allowed
            or any(all(cut.count(p) <= whole.count(p) for p in cut) for whole in allowed)
        )
    ]
    for gpus in range(3):
        for chosen in combinations_with_replacement(one, gpus):
            flat = [p for cut in chosen for p in cut]
            for h in range(2):
                yield (gpus, h), (*(flat.count(p) for p in PERCENTS), h)


def best(problem: Problem, *, cost: bool) -> float:
    """The highest lowest rate / weight, or the least cost at the rates.

    Infinite where there is none.
    """
    profiles, cluster, workload = problem
    types = [*(("g", p) for p in PERCENTS), ("h", 100)]
    every = list(rooms(cluster))
    most = tuple(max(room[t] for _, room in every) for t in range(len(types)))
    tables = [best_rates(configurations(profiles[d.name]), types, most) for d in workload.models]
    scores: list[float] = []
    for (g, h), room in every:
        for mine in product(*(range(r + 1) for r in room)):
            left = tuple(r - n for r, n in zip(room, mine, strict=True))
            rates = (tables[0][mine], tables[1][left])
            pairs = list(zip(rates, workload.models, strict=True))
            if not cost:
                scores.append(min(r / (d.weight or 1.0) for r, d in pairs))
            elif all(r >= (d.rate_rps or 0.0) * (1 - 1e-9) for r, d in pairs):
                scores.append(-(2.0 * g + 1.0 * h))
    return max(scores, default=-np.inf)


def agrees(problem: Problem, plan: Plan, value: float) -> None:
    assert plan.objective.value == pytest.approx(value, rel=1e-6)
    assert plan.objective.gap <= 1e-6
    assert plan.objective.space == SPACE
    assert verify_plan(plan, problem[0]) == []
    assert Plan.from_dict(plan.to_dict()).to_dict() == plan.to_dict()


@pytest.mark.long
@pytest.mark.parametrize("seed", range(6))
def test_throughput_is_the_best_of_all_cuts(seed: int) -> None:
    problem = random_problem(seed)
    agrees(problem, make_plan(*problem, EXACT), best(problem, cost=False))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(6))
def test_cost_is_the_least_of_all_cuts(seed: int) -> None:
    problem = random_problem(seed)
    options = replace(EXACT, objective="cost")
    least = -best(problem, cost=True)
    if np.isfinite(least):
        agrees(problem, make_plan(*problem, options), least)
    else:
        with pytest.raises(InfeasibleError):
            make_plan(*problem, options)


def test_two_models_share_gpus_where_equal_parts_would_not() -> None:
    plan = make_plan(*random_problem(0), EXACT)
    by_gpu: dict[tuple[int, int], set[int]] = {}
    for pool in plan.pools:
        for slot in pool.slots():
            by_gpu.setdefault((slot.node, slot.gpu), set()).add(pool.share)
    assert max(map(len, by_gpu.values())) > 1


def test_memory_of_a_part_is_its_share_less_the_process() -> None:
    profiles, cluster, workload = random_problem(0)
    heavy = {n: replace(p, block_memory_bytes=(1 << 30, 1 << 30)) for n, p in profiles.items()}
    tight = replace(cluster.gpu_classes[0], memory_gib=4.0, process_memory_gib=0.25)
    cluster = replace(cluster, gpu_classes=(tight, cluster.gpu_classes[1]))
    plan = make_plan(heavy, cluster, workload, EXACT)
    assert verify_plan(plan, heavy) == []
    stages = [(s, plan.pool_of(s)) for m in plan.models for p in m.pipelines for s in p.stages]
    held = [(s, pool) for s, pool in stages if pool.gpu_class == "g"]
    assert held
    for stage, pool in held:
        assert stage.memory is not None
        assert stage.memory.static <= (4.0 * pool.share / 300 - 0.25) * (1 << 30)


def test_more_sizes_than_are_combined_are_named() -> None:
    gpu_class = GpuClass(name="g", vgpu_divisors=(), vgpu_percents=tuple(range(5, 101)))
    cluster = Cluster(name="c", gpu_classes=(gpu_class,), nodes=())
    kept, (line,) = offered(cluster, 2)
    sizes = kept.gpu_classes[0].vgpu_percents
    assert {100, 50, 33} < set(sizes)
    assert len(sizes) == 20
    assert line.startswith("g: of 96 sizes ")
    assert (
        offered(replace(cluster, gpu_classes=(replace(gpu_class, vgpu_percents=(40,)),)), 2)[1]
        == []
    )


def test_overflow_is_refused_on_percents() -> None:
    with pytest.raises(InputError, match="overflow: is not defined where GPUs are cut"):
        make_plan(*random_problem(0), replace(EXACT, own={"overflow": True}))


def test_the_relaxation_ends_with_the_time_and_any_prices_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[float | None] = []

    def never_ready(_: Program, seconds: float | None = None) -> None:
        given.append(seconds)

    monkeypatch.setattr(unequal, "solve_linear", never_ready)
    known, cluster, workload = random_problem(0)
    plan = make_plan(known, cluster, workload, replace(EXACT, time_limit_s=100.0))
    assert verify_plan(plan, known) == []
    assert given
    assert all(seconds is not None and seconds <= 100 for seconds in given)
