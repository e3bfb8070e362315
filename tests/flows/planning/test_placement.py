from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flows.planning import PlanOptions, make_plan
from flows.planning.certificate import change_of
from flows.planning.placement import (
    PoolToPlace,
    ShareToPlace,
    gpus_alone,
    gpus_held,
    moved,
    place,
    place_shares,
    uses_of,
)
from flows.planning.verify.numbers import verify_plan
from tests.fakes.plans import hand_model, hand_pipeline, hand_plan, hand_stage
from tests.flows.planning.small import cluster, profile, workload
from triton_backend.contract.cluster import Cluster, GpuClass, NodeGroup
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import PlacementRun, Slot
from triton_backend.contract.transition.memory import transition
from triton_backend.contract.workload import ModelDemand

PROFILES = {"net": profile(), "other": profile("other", (500, 2000, 500))}
DEMANDS = (
    ModelDemand(name="net", slo_us=12_000, weight=1.0, batch_building_rate_rps=1e9),
    ModelDemand(name="other", slo_us=12_000, weight=1.0, batch_building_rate_rps=1e9),
)
UNEVEN = Cluster(
    name="uneven",
    gpu_classes=(GpuClass(name="fast", vgpu_divisors=(1, 2, 3)),),
    nodes=(
        NodeGroup(count=3, gpu_class="fast", gpus=4, nic_gbps=10),
        NodeGroup(count=2, gpu_class="fast", gpus=1, nic_gbps=10),
    ),
)


def pool(model: int, divisor: int, vgpus: int, traffic: float = 0.0, first: int = 0) -> PoolToPlace:
    """A pool on the only class of the uneven cluster."""
    return PoolToPlace(
        model=model,
        name=f"m{model}",
        blocks=(first, first + 1),
        gpu_class="fast",
        divisor=divisor,
        vgpus=vgpus,
        traffic=traffic,
    )


@st.composite
def pools(draw: st.DrawFn) -> list[PoolToPlace]:
    """Pools that fit the 14 GPUs of the uneven cluster."""
    chosen: list[PoolToPlace] = []
    for first in range(draw(st.integers(1, 6))):
        size = draw(st.integers(1, 4))
        chosen.append(
            pool(
                draw(st.integers(0, 1)), draw(st.integers(1, 3)), size, draw(st.floats(0, 9)), first
            )
        )
    return chosen


@settings(derandomize=True, deadline=None)
@given(chosen=pools())
def test_vgpus_of_a_gpu_belong_to_one_model_and_size(chosen: list[PoolToPlace]) -> None:
    needed: dict[tuple[int, int], int] = {}
    for p in chosen:
        needed[p.model, p.divisor] = needed.get((p.model, p.divisor), 0) + p.vgpus
    if sum(-(-count // key[1]) for key, count in needed.items()) > UNEVEN.gpus("fast"):
        return
    owner: dict[tuple[int, int], tuple[int, int]] = {}
    taken: set[tuple[int, int, int]] = set()
    for p, runs in zip(chosen, place(UNEVEN, chosen), strict=True):
        slots = [slot for run in runs for slot in run.expand()]
        assert len(slots) == p.vgpus
        for slot in slots:
            assert slot.gpu < UNEVEN.node_group_of(slot.node).gpus
            assert slot.slot < p.divisor
            assert slot not in taken
            taken.add(slot)
            assert owner.setdefault((slot.node, slot.gpu), (p.model, p.divisor)) == (
                p.model,
                p.divisor,
            )


def test_a_pool_with_much_traffic_spreads_over_nodes() -> None:
    quiet, busy = place(UNEVEN, [pool(0, 1, 5), pool(1, 1, 5, traffic=1e6)])
    assert len({slot.node for run in busy for slot in run.expand()}) == 5
    assert {slot.gpu for run in quiet for slot in run.expand()} == {1, 2}


def test_large_pools_are_ranges() -> None:
    large = replace(UNEVEN, nodes=(NodeGroup(count=50_000, gpu_class="fast", gpus=2, nic_gbps=1),))
    (runs,) = place(large, [pool(0, 3, 200_000)])
    assert len(runs) <= 3
    assert sum(run.vgpus for run in runs) == 200_000


def test_the_same_plan_again_moves_nothing() -> None:
    before = make_plan(PROFILES, cluster(4, 8), workload(*DEMANDS))
    after = make_plan(PROFILES, cluster(4, 8), workload(*DEMANDS), PlanOptions(previous=before))
    assert uses_of(after, after.cluster) == uses_of(before, before.cluster)
    assert any("0 of" in note and before.plan_id in note for note in after.certificate["notes"])
    vgpus = len(before.vgpus())
    change = {"stay": vgpus, "start": 0, "end": 0, "bytes_loaded": None, "at_once": True}
    assert after.certificate["change"] == {"previous": before.plan_id, **change}
    assert transition(before, after).nothing
    built = tuple(
        replace(
            model,
            pipelines=tuple(
                replace(p, stages=tuple(replace(s, artifact="built") for s in p.stages))
                for p in model.pipelines
            ),
        )
        for model in before.models
    )
    assert change_of(replace(before, models=built), after) == after.certificate["change"]


@pytest.mark.long
def test_a_changed_plan_stays_close_to_the_one_in_force() -> None:
    before = make_plan(PROFILES, cluster(4, 8), workload(*DEMANDS))
    heavier = (replace(DEMANDS[0], weight=1.3), DEMANDS[1])
    fresh = make_plan(PROFILES, cluster(5, 9), workload(*heavier))
    close = make_plan(PROFILES, cluster(5, 9), workload(*heavier), PlanOptions(previous=before))
    assert verify_plan(close, PROFILES) == []
    assert close.objective.value == fresh.objective.value
    close_stays, fresh_stays = (change_of(before, plan)["stay"] for plan in (close, fresh))
    assert close_stays > fresh_stays
    assert close.certificate["change"]["stay"] == close_stays
    known = uses_of(before, close.cluster)
    assert moved(known, uses_of(close, close.cluster)) <= moved(
        known, uses_of(fresh, fresh.cluster)
    )


CUT = Cluster(
    name="cut",
    gpu_classes=(
        GpuClass(name="G", vgpu_divisors=(), vgpu_percents=(20, 40, 60, 80), memory_gib=10.0),
    ),
    nodes=(NodeGroup(count=2, gpu_class="G", gpus=2, nic_gbps=10),),
)


def share(percent: int, vgpus: int, memory_gib: float = 0.0) -> ShareToPlace:
    return ShareToPlace(gpu_class="G", share=3 * percent, vgpus=vgpus, memory_gib=memory_gib)


def test_unequal_shares_fill_gpus_and_spread_over_nodes() -> None:
    placed = place_shares(CUT, [share(20, 2), share(80, 2), share(60, 1), share(40, 1)])
    held: dict[tuple[int, int], int] = {}
    slots: set[tuple[int, int, int]] = set()
    for runs, percent in zip(placed, (20, 80, 60, 40), strict=True):
        for slot in (slot for run in runs for slot in run.expand()):
            slots.add(slot)
            held[slot.node, slot.gpu] = held.get((slot.node, slot.gpu), 0) + percent
    assert len(slots) == 6
    assert held == {(0, 0): 100, (1, 0): 100, (0, 1): 100}


def test_memory_of_several_processes_bounds_a_gpu() -> None:
    assert len(gpus_held(place_shares(CUT, [share(40, 4, memory_gib=4.9)]))) == 2
    assert len(gpus_held(place_shares(CUT, [share(40, 4, memory_gib=5.1)]))) == 4


def test_many_equal_cuts_are_ranges() -> None:
    large = replace(CUT, nodes=(NodeGroup(count=100, gpu_class="G", gpus=2, nic_gbps=1),))
    placed = place_shares(large, [share(60, 200), share(40, 200)])
    assert [len(runs) for runs in placed] == [2, 2]


def test_too_few_gpus_are_told_with_the_numbers() -> None:
    with pytest.raises(InputError, match="class G: needs 5 GPUs or more, the cluster has 4"):
        place_shares(CUT, [share(60, 5)])


def test_workers_that_are_held_stay_and_others_go_beside_them() -> None:
    held = (Slot(node=1, gpu=1, slot=0),)
    stays = replace(share(40, 2), held=held)
    placed = place_shares(CUT, [share(60, 1), stays])
    first, second = (tuple(s for run in runs for s in run.expand()) for runs in placed)
    assert first == (Slot(node=1, gpu=1, slot=1),)  # fills the GPU that is in use
    assert set(second) > set(held)
    assert len(gpus_held(placed)) == 2


def test_where_nothing_fits_beside_what_is_held_all_are_packed_anew() -> None:
    held = tuple(Slot(node=node, gpu=gpu, slot=0) for node in (0, 1) for gpu in (0, 1))
    placed = place_shares(CUT, [replace(share(40, 4), held=held), share(80, 2)])
    assert len(gpus_held(placed)) == 4


def test_idle_vgpus_go_first_to_blocks_that_keep_a_gpu_so() -> None:
    first, second, third = (0, 1), (1, 2), (2, 3)
    halves = {first: 1, second: 1, third: 1}

    assert gpus_alone(halves, 2, {second: 1}) == {first: 0, second: 1, third: 0}
    assert gpus_alone(halves, 2, {}) == {first: 1, second: 0, third: 0}
    assert gpus_alone({first: 3, second: 1}, 2, {second: 1}) == {first: 1, second: 0}


def test_where_all_stages_get_fewer_gpus_each_keeps_some_of_its_own() -> None:
    places = [PlacementRun(node=node, gpu=0, slot=0, nodes=3) for node in (0, 3)]
    stages = [
        hand_stage((first, first + 1), "fast", place_of, (1_000,))
        for first, place_of in enumerate(places)
    ]
    nodes = [NodeGroup(count=6, gpu_class="fast", gpus=1, nic_gbps=10)]
    before = hand_plan(
        hand_model("m0", hand_pipeline(*stages, batch=1), slo_us=10_000), nodes=nodes
    )

    first, second = place(before.cluster, [pool(0, 1, 2), pool(0, 1, 2, first=1)], before)

    assert {slot.node for run in first for slot in run.expand()} < {0, 1, 2}
    assert {slot.node for run in second for slot in run.expand()} < {3, 4, 5}
