"""Among plans as good as the best: the fewest stages, then the fewest GPUs that change hands."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations, product
from math import ceil, inf

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from flows.planning import PlanOptions, make_plan
from flows.planning.placement import Gpu, Use, moved, running, uses_of
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
    groups: dict[tuple[str, int], Counter[tuple[int, int]]] = {}
    for gpu_class, divisor, blocks, vgpus in stages:
        groups.setdefault((gpu_class, divisor), Counter())[blocks] += vgpus
    gpus = {key: ceil(count.total() / key[1]) for key, count in groups.items()}
    stay = sum(
        most_that_stay(divisor, count, {b: before.get(("net", kind, divisor, b), 0) for b in count})
        for (kind, divisor), count in groups.items()
    )
    price = sum(PRICES[gpu_class] * count for (gpu_class, _), count in gpus.items())
    return price, len(stages), sum(gpus.values()) - stay


def most_that_stay(
    divisor: int, vgpus: Mapping[tuple[int, int], int], before: Mapping[tuple[int, int], int]
) -> int:
    """Most GPUs of a group that go on, over all numbers of GPUs that each blocks can have alone."""
    gpus, most = ceil(sum(vgpus.values()) / divisor), 0
    for alone in product(*(range(ceil(count / divisor) + 1) for count in vgpus.values())):
        left = [max(0, n - a * divisor) for n, a in zip(vgpus.values(), alone, strict=True)]
        if sum(alone) + ceil(sum(left) / divisor) <= gpus:
            stay = (min(a, before[b]) for b, a in zip(vgpus, alone, strict=True))
            most = max(most, sum(stay))
    return most


@pytest.mark.slow
@settings(
    max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
@given(
    block_us=st.lists(st.integers(300, 3000), min_size=2, max_size=2),
    rate_rps=st.integers(200, 1500),
    before_rps=st.integers(200, 1500),
)
@example(block_us=[300, 2256], rate_rps=200, before_rps=200)
@example(block_us=[1003, 1262], rate_rps=221, before_rps=246)
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
    uses = uses_of(previous, tiny)
    before = running(uses, tiny)
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
    assert seen(plan, uses, tiny) <= best
    assert plan.certificate["ties"]["proven"]


def _fits(stages: Stages) -> bool:
    groups: dict[tuple[str, int], int] = {}
    for gpu_class, divisor, _, vgpus in stages:
        groups[gpu_class, divisor] = groups.get((gpu_class, divisor), 0) + vgpus
    used = {"fast": 0, "slow": 0}
    for (gpu_class, divisor), count in groups.items():
        used[gpu_class] += ceil(count / divisor)
    return max(used.values()) <= 2


def seen(plan: Plan, before: Mapping[Gpu, Use], tiny: Cluster) -> tuple[float, int, int]:
    """The same three figures of a plan, its GPUs that change hands as they are placed."""
    placed = [placed for placed in plan.placed_stages() if placed[0].name == "net"]
    stages = tuple(
        (pool.gpu_class, pool.divisor or 0, stage.blocks, pool.vgpus)
        for _, _, stage, pool in placed
    )
    price, count, _ = price_stages_moves(stages, {})
    after = {gpu: use for gpu, use in uses_of(plan, tiny).items() if use.model == "net"}
    return round(price, 9), count, moved(before, after)


def test_gpus_of_the_plan_in_force_go_on_where_another_plan_is_as_good() -> None:
    tiny = cluster(2, 4, fast_hourly_cost=2.0, slow_hourly_cost=2.0)
    demand = ModelDemand(name="net", slo_us=60_000, rate_rps=100.0, batch_building_rate_rps=1e9)
    first = replace(COST, excluded_classes={"*": ("fast",)})
    previous = make_plan({"net": profile()}, tiny, workload(demand), first)
    assert previous.gpus_used == {"fast": 0, "slow": 1}
    plan = make_plan({"net": profile()}, tiny, workload(demand), replace(COST, previous=previous))
    assert plan.gpus_used == {"fast": 0, "slow": 1}
    assert plan.certificate["notes"][-1].startswith("0 of 1 GPUs in use change hands")
