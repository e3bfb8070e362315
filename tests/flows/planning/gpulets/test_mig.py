"""Plans of cards divided by MIG, against brute force over divisions and uses of slices."""

import math
from dataclasses import replace
from itertools import combinations, combinations_with_replacement, product

import numpy as np
import pytest

from flows.planning import PlanOptions, make_plan
from flows.planning.verify.numbers import verify_plan
from triton_backend.contract.cluster import Cluster, GpuClass, NodeGroup
from triton_backend.contract.errors import InfeasibleError, InputError
from triton_backend.contract.plan import Plan
from triton_backend.contract.profiles import (
    InterferenceModel,
    ModelProfile,
    ProfileKey,
    ProfileTable,
)
from triton_backend.contract.shares import MIG_CARDS, SOLO, Mig, MigCell, mig_share
from triton_backend.contract.workload import ModelDemand, Workload
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions

CARD, GIB, MARGIN = "A100-40GB", 1 << 30, 0.1
Case = tuple[dict[str, ModelProfile], Cluster, Workload]


def case(seed: int, models: int, gpus: int, mig: Mig, *, memory_gib: float = 0.0) -> Case:
    """Random latencies that fall with the slice and grow with batch and neighbours."""
    random = np.random.default_rng(seed)
    profiles: dict[str, ModelProfile] = {}
    demands: list[ModelDemand] = []
    for number in range(models):
        base, slope = random.uniform(1_000, 4_000), random.uniform(500, 2_500)
        tables: dict[ProfileKey, ProfileTable] = {}
        for profile in mig.kinds:
            for processes in range(1, mig.processes + 1):
                row = base + slope * np.arange(1, 4) * (7 / profile.compute) ** 0.8
                row = row * (1 + random.uniform(0.2, 0.8) * (processes - 1))
                share = mig_share(MigCell(profile.compute, processes))
                tables[ProfileKey("G", share, SOLO)] = ProfileTable(latency_us=row[None, :])
        name = f"m{number}"
        weights = int(memory_gib * random.uniform(0.6, 1.4) * GIB)
        profiles[name] = ModelProfile(
            name=name,
            boundary_bytes=(),
            tables=tables,
            block_memory_bytes=(weights,) if memory_gib else (),
        )
        slo_us = int(random.uniform(20, 60) * 1_000)
        demands.append(ModelDemand(name=name, slo_us=slo_us, weight=float(random.uniform(0.5, 2))))
    gpu_class = GpuClass(
        name="G", vgpu_divisors=(), mig=mig, hourly_cost=1.5, process_memory_gib=0.3
    )
    nodes = (NodeGroup(count=1, gpu_class="G", gpus=gpus, nic_gbps=10),)
    cluster = Cluster(name="small", gpu_classes=(gpu_class,), nodes=nodes)
    return profiles, cluster, Workload(models=tuple(demands))


def planned(asked: Case, objective: str = "throughput", **own: int) -> Plan:
    options = PlanOptions(planner="gpulets", objective=objective, slo_margin=MARGIN, own=own)
    found = make_plan(*asked, options)
    assert verify_plan(found, asked[0]) == []
    assert Plan.from_dict(found.to_dict()).to_dict() == found.to_dict()
    return found


def slice_rates(asked: Case, compute: int, most_models: int) -> list[tuple[float, ...]]:
    """Requests/s of every model on a slice: everything it may do."""
    profiles, cluster, workload = asked
    gpu_class = cluster.gpu_classes[0]
    assert gpu_class.mig is not None
    has = next(p.memory_gib for p in gpu_class.mig.kinds if p.compute == compute)
    found = [(0.0,) * len(workload.models)]
    for processes in range(1, gpu_class.mig.processes + 1):
        share = mig_share(MigCell(compute, processes))
        for count in range(1, 1 + (most_models if processes == 1 else 1)):
            for models in combinations(range(len(workload.models)), count):
                held = sum(sum(profiles[f"m{m}"].block_memory_bytes) for m in models) / GIB
                if processes * (held + 0.3) > has * (1 + 1e-9):
                    continue
                tables = [profiles[f"m{m}"].table("G", share, SOLO) for m in models]
                for batches in product(range(1, 4), repeat=count):
                    turns = [
                        max(math.ceil(v - 1e-6) for v in t.latency_us[0, :b])
                        for t, b in zip(tables, batches, strict=True)
                        if t is not None
                    ]
                    limits = [(1 - MARGIN) * workload.models[m].slo_us for m in models]
                    if any(sum(turns) + t > limit for t, limit in zip(turns, limits, strict=True)):
                        continue
                    rates = [0.0] * len(workload.models)
                    for m, batch in zip(models, batches, strict=True):
                        rates[m] = processes * batch * 1e6 / sum(turns)
                    found.append(tuple(rates))
    return _kept(found)


def _kept(rates: list[tuple[float, ...]]) -> list[tuple[float, ...]]:
    """Without those that another equals or exceeds."""
    every = np.unique(np.round(np.array(rates), 9), axis=0)
    return [
        tuple(row)
        for i, row in enumerate(every)
        if not (np.delete(every, i, axis=0) >= row).all(axis=1).any()
    ]


def card_rates(asked: Case, most_models: int) -> list[tuple[float, ...]]:
    """Requests/s of every model on a card, over every sequence of slice placements."""
    mig = asked[1].gpu_classes[0].mig
    assert mig is not None
    does = {p.name: slice_rates(asked, p.compute, most_models) for p in mig.kinds}
    cuts: set[tuple[str, ...]] = set()

    def place(free: frozenset[int], cut: tuple[str, ...]) -> None:
        cuts.add(tuple(sorted(cut)))
        for profile in mig.kinds:
            for start in MIG_CARDS[CARD][profile.name].starts:
                span = set(range(start, start + profile.eighths))
                if span <= free and start >= 8 - len(free):  # from the left
                    place(free - set(range(start + profile.eighths)), (*cut, profile.name))

    place(frozenset(range(8)), ())
    if mig.geometries:
        cuts = {tuple(sorted(cut)) for cut in mig.geometries}
    found: list[tuple[float, ...]] = []
    for cut in cuts:
        sums = [(0.0,) * len(asked[2].models)]
        for name in cut:
            sums = _kept([tuple(np.add(a, b)) for a in sums for b in does[name]])
        found += sums
    return _kept(found)


def best_throughput(asked: Case, most_models: int) -> float:
    weights = np.array([m.weight or 1.0 for m in asked[2].models])
    rates = card_rates(asked, most_models)
    return max(
        float((np.sum(chosen, axis=0) / weights).min())
        for chosen in combinations_with_replacement(rates, asked[1].gpus("G"))
    )


SIZES = pytest.mark.parametrize(
    ("seed", "models", "gpus", "mig", "most_models", "memory_gib"),
    [
        (0, 2, 1, Mig(card=CARD), 2, 0.0),
        (1, 3, 1, Mig(card=CARD, processes=3), 2, 0.0),
        (2, 2, 2, Mig(card=CARD, processes=2, profiles=("2g.10gb", "3g.20gb", "7g.40gb")), 2, 0.0),
        (3, 3, 1, Mig(card=CARD, profiles=("1g.10gb", "4g.20gb", "3g.20gb")), 3, 0.0),
        (4, 2, 1, Mig(card=CARD, processes=4), 1, 3.0),
        (5, 3, 2, Mig(card=CARD, geometries=(("4g.20gb", "2g.10gb"), ("3g.20gb",) * 2)), 2, 0.0),
    ],
)


@pytest.mark.long
@SIZES
def test_throughput_equals_brute_force(
    seed: int, models: int, gpus: int, mig: Mig, most_models: int, memory_gib: float
) -> None:
    asked = case(seed, models, gpus, mig, memory_gib=memory_gib)
    found = planned(asked, max_models_per_vgpu=most_models)
    assert found.objective.value == pytest.approx(best_throughput(asked, most_models), rel=1e-6)
    assert found.objective.gap <= 1e-4
    assert found.objective.space == "gpu-patterns"


@pytest.mark.parametrize("share", [0.4, 0.9, 1.02])
def test_given_rates_take_the_fewest_cards_or_are_proven_out_of_reach(share: float) -> None:
    profiles, cluster, workload = case(6, 2, 2, Mig(card=CARD, processes=2))
    level = share * best_throughput((profiles, cluster, workload), 2)
    models = tuple(
        replace(m, weight=None, rate_rps=level * (m.weight or 1.0)) for m in workload.models
    )
    asked = (profiles, cluster, Workload(models=models))
    if share > 1:
        with pytest.raises(InfeasibleError, match=r"carry at most 0\.9\d+ of the rates"):
            planned(asked, "gpus", max_models_per_vgpu=2)
        return
    wanted = np.array([m.rate_rps or 0.0 for m in models])
    one = any((np.array(r) >= wanted * (1 - 1e-9)).all() for r in card_rates(asked, 2))
    found = planned(asked, "gpus", max_models_per_vgpu=2)
    assert found.objective.value == (1 if one else 2) == found.objective.upper_bound
    assert planned(asked, "cost", max_models_per_vgpu=2).objective.value == 1.5 * (1 if one else 2)


def test_slices_do_not_disturb_each_other() -> None:
    """An interference model of the class says nothing of slices; plans serve what they promise."""
    asked = case(1, 3, 1, Mig(card=CARD, processes=3))
    alone = planned(asked)
    options = PlanOptions(planner="gpulets", slo_margin=MARGIN)
    presses = InterferenceModel(c1_l2_self=1, c2_l2_other=1, c3_dram_self=1, c4_dram_other=1, c5=2)
    assert make_plan(*asked, options, interference={"G": presses}).pools == alone.pools
    for load in (0.5, 1.0):
        run = simulate(alone, SimOptions(load_factor=load, duration_s=3.0, interference="overlap"))
        assert sum(m.late for m in run.models) == 0
        if load < 1:
            assert run.attainment > 0.9


def test_whole_gpus_of_another_class_are_planned_beside_slices() -> None:
    profiles, cluster, workload = case(7, 3, 1, Mig(card=CARD, processes=2))
    both = Cluster(
        name="both",
        gpu_classes=(*cluster.gpu_classes, GpuClass(name="T")),
        nodes=(*cluster.nodes, NodeGroup(count=1, gpu_class="T", gpus=1, nic_gbps=10)),
    )
    for name, profile in profiles.items():
        whole = {ProfileKey("T", 300): ProfileTable(latency_us=np.array([[2_000.0, 3_000.0]]))}
        profiles[name] = replace(profile, tables={**profile.tables, **whole})
    found = planned((profiles, both, workload))
    assert found.gpus_used == {"G": 1, "T": 1}
    assert found.objective.gap <= 1e-4
    assert found.objective.value > planned((profiles, cluster, workload)).objective.value


def test_other_planners_say_that_they_plan_no_slices() -> None:
    asked = case(0, 2, 1, Mig(card=CARD))
    for planner in ("pool", "gpulets-greedy"):
        with pytest.raises(
            InputError, match=f"{planner} plans no MIG slices, .* planned by auto, gpulets"
        ):
            make_plan(*asked, PlanOptions(planner=planner))


def test_classes_whose_parts_press_are_not_planned_beside_slices() -> None:
    profiles, cluster, workload = case(0, 2, 1, Mig(card=CARD))
    shared = GpuClass(name="P", vgpu_divisors=(), vgpu_percents=(50,), memory_gib=8)
    nodes = (*cluster.nodes, NodeGroup(count=1, gpu_class="P", gpus=1, nic_gbps=10))
    both = Cluster(name="both", gpu_classes=(*cluster.gpu_classes, shared), nodes=nodes)
    with pytest.raises(InputError, match="P: its parts share its memory"):
        planned((profiles, both, workload))
