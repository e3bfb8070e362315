"""Among plans as good as the best: the fewest stages, then the fewest GPUs that change hands."""

from dataclasses import replace
from itertools import combinations, product
from math import ceil, inf

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flows.planning import PlanOptions, make_plan
from flows.planning.placement import running, uses_of
from tests.flows.planning.brute import largest, latencies, types_of
from tests.flows.planning.small import cluster, profile, workload
from triton_backend.contract.cluster import Cluster
from triton_backend.contract.errors import InfeasibleError
from triton_backend.contract.plan import Plan
from triton_backend.contract.profiles import ModelProfile
from triton_backend.contract.workload import ModelDemand, Workload

COST = PlanOptions(objective="cost", slo_margin=0.0, gap=0.0)
PRICES = {"fast": 2.0, "slow": 1.0}
Stages = tuple[tuple[str, int, tuple[int, int], int], ...]  # class, divisor, blocks, vGPUs


def pipelines(
    net: ModelProfile, demand: ModelDemand, tiny: Cluster, most: int
) -> list[tuple[float, Stages]]:
    """Every pipeline of at most two stages with every number of vGPUs: (rate, stages)."""
    found: list[tuple[float, Stages]] = []
    forms: list[list[tuple[str, int, tuple[int, int], float]]] = []
    for cut in range(net.blocks):
        edges = [(0, net.blocks)] if cut == 0 else [(0, cut), (cut, net.blocks)]
        for kinds in product(types_of(tiny), repeat=len(edges)):
            for batch in range(1, min(largest(net, k) for k in kinds) + 1):
                took = sum(
                    float(latencies(net, k)[a:b, batch - 1].sum())
                    for k, (a, b) in zip(kinds, edges, strict=True)
                ) + (batch * 8_000 / 10e3 if cut else 0)
                if ceil(took) <= demand.slo_us:
                    rates = (
                        batch * 1e6 / float(latencies(net, k)[a:b, batch - 1].sum())
                        for k, (a, b) in zip(kinds, edges, strict=True)
                    )
                    forms.append([(*k, e, r) for k, e, r in zip(kinds, edges, rates, strict=True)])
    for form in forms:
        for vgpus in product(range(1, most + 1), repeat=len(form)):
            rate = min(g * r for g, (*_, r) in zip(vgpus, form, strict=True))
            stages = tuple((c, v, e, g) for g, (c, v, e, _) in zip(vgpus, form, strict=True))
            found.append((rate, stages))
    return found


def price_stages_moves(
    stages: Stages, before: dict[tuple[str, str, int, tuple[int, int]], int]
) -> tuple[float, int, int]:
    """The cost of a plan of one model, its stages, and its GPUs less those that stay."""
    groups: dict[tuple[str, int], int] = {}
    whole: dict[tuple[str, str, int, tuple[int, int]], int] = {}
    for gpu_class, divisor, blocks, vgpus in stages:
        groups[gpu_class, divisor] = groups.get((gpu_class, divisor), 0) + vgpus
        key = ("net", gpu_class, divisor, blocks)
        whole[key] = whole.get(key, 0) + vgpus // divisor
    gpus = {key: ceil(count / key[1]) for key, count in groups.items()}
    stay = sum(min(count, before.get(key, 0)) for key, count in whole.items())
    price = sum(PRICES[gpu_class] * count for (gpu_class, _), count in gpus.items())
    return price, len(stages), sum(gpus.values()) - stay


@pytest.mark.slow
@settings(
    max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
@given(
    block_us=st.lists(st.integers(300, 3000), min_size=2, max_size=2),
    rate_rps=st.integers(200, 1500),
    before_rps=st.integers(200, 1500),
)
def test_no_plan_as_cheap_has_fewer_stages_or_moves_fewer_gpus(
    block_us: list[int], rate_rps: int, before_rps: int
) -> None:
    tiny = cluster(2, 2, fast_hourly_cost=PRICES["fast"], slow_hourly_cost=PRICES["slow"])
    net = profile(fast_us=tuple(map(float, block_us)), boundary_bytes=(1000,) * (len(block_us) - 1))
    demand = ModelDemand(name="net", slo_us=15_000, rate_rps=1.0, batch_building_rate_rps=1e9)

    def asked(rate: int) -> Workload:
        return workload(replace(demand, rate_rps=float(rate)))

    try:
        previous = make_plan({"net": net}, tiny, asked(before_rps), COST)
        plan = make_plan({"net": net}, tiny, asked(rate_rps), replace(COST, previous=previous))
    except InfeasibleError:
        return
    before = running(uses_of(previous, tiny), tiny)
    rates: dict[Stages, float] = {}
    for rate, stages in pipelines(net, demand, tiny, 4):
        if _fits(stages):
            rates[stages] = max(rate, rates.get(stages, 0.0))
    plans = [*((one,) for one in rates), *combinations(rates, 2)]
    best = (inf, 0, 0)
    for chosen in plans:
        stages = tuple(s for mine in chosen for s in mine)
        if sum(rates[mine] for mine in chosen) >= rate_rps * (1 - 1e-9) and _fits(stages):
            best = min(best, price_stages_moves(stages, before))
    assert seen(plan, before) <= best
    assert plan.certificate["ties"]["proven"]


def _fits(stages: Stages) -> bool:
    groups: dict[tuple[str, int], int] = {}
    for gpu_class, divisor, _, vgpus in stages:
        groups[gpu_class, divisor] = groups.get((gpu_class, divisor), 0) + vgpus
    used = {"fast": 0, "slow": 0}
    for (gpu_class, divisor), count in groups.items():
        used[gpu_class] += ceil(count / divisor)
    return max(used.values()) <= 2


def seen(
    plan: Plan, before: dict[tuple[str, str, int, tuple[int, int]], int]
) -> tuple[float, int, int]:
    """The same three figures of a plan."""
    stages = tuple(
        (pool.gpu_class, pool.divisor or 0, stage.blocks, pool.vgpus)
        for model, _, stage, pool in plan.placed_stages()
        if model.name == "net"
    )
    price, count, moves = price_stages_moves(stages, before)
    return round(price, 9), count, moves


def test_gpus_of_the_plan_in_force_go_on_where_another_plan_is_as_good() -> None:
    tiny = cluster(2, 4, fast_hourly_cost=2.0, slow_hourly_cost=2.0)
    demand = ModelDemand(name="net", slo_us=60_000, rate_rps=100.0, batch_building_rate_rps=1e9)
    first = replace(COST, excluded_classes={"*": ("fast",)})
    previous = make_plan({"net": profile()}, tiny, workload(demand), first)
    assert previous.gpus_used == {"fast": 0, "slow": 1}
    plan = make_plan({"net": profile()}, tiny, workload(demand), replace(COST, previous=previous))
    assert plan.gpus_used == {"fast": 0, "slow": 1}
    assert plan.certificate["notes"][-1].startswith("0 of 1 GPUs in use change hands")
