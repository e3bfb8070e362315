"""Effects of a plan change on workers: those that stay, memory meanwhile, steps."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest

from tests.fakes.on_demand import on_demand_plan
from tests.fakes.plans import (
    HandModel,
    Own,
    hand_model,
    hand_pipeline,
    hand_plan,
    hand_stage,
    make_plan,
)
from triton_backend.contract.cluster import NodeGroup
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import PlacementRun, Plan, StageMemory
from triton_backend.contract.tensors import TensorSpec
from triton_backend.contract.transition import (
    Inherited,
    inherited_vgpus,
    slot_needs,
    steps,
    transition,
)

GIB = 1 << 30
ROOM_GIB = 8
Worker = tuple[str, int, int]  # model, GPU, GiB


def with_memory(plan: Plan, memory_gib: float, process_gib: float | None = None) -> Plan:
    classes = tuple(
        replace(c, memory_gib=memory_gib, process_memory_gib=process_gib)
        for c in plan.cluster.gpu_classes
    )
    return replace(plan, cluster=replace(plan.cluster, gpu_classes=classes))


def test_memory_that_others_hold_is_no_room_for_old_and_new() -> None:
    one, two = (full_gpus({name: (0,)}, {name: 4}, plan_id=name) for name in ("a", "b"))
    assert transition(one, two).fits
    (kind,) = one.cluster.gpu_classes
    held = replace(one.cluster, gpu_classes=(replace(kind, taken_gib=2.0),))
    change = transition(replace(one, cluster=held), replace(two, cluster=held))
    assert not change.fits
    assert {gpu.memory_gib for gpu in change.gpus} == {ROOM_GIB - 2.0}


@pytest.mark.parametrize(("latency_us", "slots"), [(10_000, 14), (1_700, 63), (1_600, 64)])
def test_a_worker_has_slots_for_all_runs_in_an_slo_and_four_more_up_to_sixty_four(
    latency_us: int, slots: int
) -> None:
    (needs,) = slot_needs(make_plan([[Own(latency_us=(latency_us,))]], slo_us=100_000))
    assert needs.slots == slots


def test_a_slot_has_room_for_the_inputs_of_the_largest_batch() -> None:
    plan = make_plan([[Own(latency_us=(1_000, 1_500))]])
    inputs = (TensorSpec(name="x", dtype="UINT8", shape=(-1, 4_096)),)
    (needs,) = slot_needs(replace(plan, models=(replace(plan.models[0], inputs=inputs),)))
    assert needs.largest_bytes == 2 * 4_096


def full_gpus(where: Mapping[str, Sequence[int]], gib: Mapping[str, int], *, plan_id: str) -> Plan:
    """Models on whole GPUs of one node, a worker of so many GiB on each of theirs."""
    models: list[HandModel] = []
    for name, gpus in where.items():
        pipelines = [
            hand_pipeline(
                hand_stage(
                    (0, 4),
                    "GPU",
                    PlacementRun(node=0, gpu=gpu, slot=0),
                    (10,),
                    memory=StageMemory(static=gib[name] * GIB, dynamic=0),
                ),
                batch=1,
            )
            for gpu in gpus
        ]
        models.append(hand_model(name, *pipelines, slo_us=100))
    nodes = [NodeGroup(count=1, gpu_class="GPU", gpus=4, nic_gbps=1.0, name="n")]
    return with_memory(hand_plan(*models, nodes=nodes, plan_id=plan_id), ROOM_GIB)


def test_a_plan_equal_to_the_old_starts_and_ends_nothing() -> None:
    plan = make_plan([[Own(latency_us=(5, 6), gpus=2, divisor=3)]], [[Own(latency_us=(5,))]])
    change = transition(plan, replace(plan, plan_id="again"))
    assert change.nothing
    assert change.inherited == tuple(Inherited(n, n) for n in range(7))
    assert (change.drops, change.bytes_loaded, change.fits) == ({}, {}, True)
    assert steps(plan, plan) == (plan,)


def test_vgpus_go_on_under_the_number_they_have_in_the_new_plan() -> None:
    a, b = Own(latency_us=(5,)), Own(latency_us=(7,), gpus=2)
    before = make_plan([[a]], [[b]], names=["a", "b"])
    after = replace(before, models=before.models[::-1])
    assert inherited_vgpus(before, after) == ((1, 0), (2, 1), (0, 2))


@pytest.mark.parametrize(
    "changed",
    [
        Own(latency_us=(4, 7, 9)),  # an emulated stage is its latencies
        Own(latency_us=(5, 7, 9, 12)),  # larger batches than it was started for
        Own(latency_us=(5, 7, 9), divisor=2),  # another share
    ],
)
def test_a_worker_of_other_content_or_share_starts_anew(changed: Own) -> None:
    before, after = make_plan([[Own(latency_us=(5, 7, 9))]]), make_plan([[changed]])
    assert inherited_vgpus(before, after) == ()
    change = transition(before, after)
    assert (len(change.starts), change.ends) == (changed.divisor, (0,))


def test_a_worker_goes_on_with_smaller_batches_and_under_another_node_number() -> None:
    before = make_plan([[Own(latency_us=(5, 7, 9))]])
    after = make_plan([[Own(latency_us=(5, 7))]])
    assert inherited_vgpus(before, after) == ((0, 0),)
    other = NodeGroup(count=1, gpu_class="GPU", gpus=1, nic_gbps=1.0, name="first")
    moved = replace(after.cluster, nodes=(other, *after.cluster.nodes))
    pool = replace(after.pools[0], placement=(PlacementRun(node=1, gpu=0, slot=0),))
    assert inherited_vgpus(before, replace(after, cluster=moved, pools=(pool,))) == ((0, 0),)


def shared_gpu(*stages: tuple[str, int, int], plan_id: str = "plan") -> Plan:
    """One GPU shared by models: name, static and dynamic GiB of each."""
    place = PlacementRun(node=0, gpu=0, slot=0)
    models = [
        hand_model(
            name,
            hand_pipeline(
                hand_stage(
                    (0, 4), "GPU", place, (10,), memory=StageMemory(static=s * GIB, dynamic=d * GIB)
                ),
                batch=1,
                rate_rps=1.0,
            ),
            slo_us=100,
            policy="eager",
        )
        for name, s, d in stages
    ]
    nodes = [NodeGroup(count=1, gpu_class="GPU", gpus=1, nic_gbps=1.0, name="n")]
    return with_memory(hand_plan(*models, nodes=nodes, plan_id=plan_id), 12, 0.5)


def test_stages_are_loaded_into_a_living_worker_and_dropped_from_it() -> None:
    before = shared_gpu(("kept", 2, 1), ("gone", 3, 2))
    after = shared_gpu(("kept", 2, 1), ("new", 4, 1), plan_id="after")
    change = transition(before, after)
    assert (change.inherited, change.starts, change.ends) == (((0, 0),), (), ())
    assert [[key.model for key in keys] for keys in change.loads.values()] == [["new"]]
    assert [[key.model for key in keys] for keys in change.drops.values()] == [["gone"]]
    assert change.bytes_loaded == {"n": 4 * GIB}
    (gpu,) = change.gpus
    assert gpu[2:6] == (7.5, 11.5, 7.5, 12)
    assert gpu.share == 300


@pytest.mark.parametrize(
    ("larger", "goes_on"),
    [({}, True), ({"size": 9}, False), ({"policy": "turns"}, True), ({"slo_us": 300}, False)],
)
def test_stages_are_loaded_only_where_their_batches_find_room(
    larger: Mapping[str, Any], goes_on: bool
) -> None:
    def shared(*models: Mapping[str, Any]) -> Plan:
        place = PlacementRun(node=0, gpu=0, slot=0)
        made = [
            hand_model(
                f"m{number}",
                hand_pipeline(hand_stage((0, 4), "GPU", place, (10, 12)), batch=2, rate_rps=1.0),
                slo_us=model.get("slo_us", 100),
                inputs=(TensorSpec(name="x", dtype="FP32", shape=(-1, model.get("size", 8))),),
                policy=models[-1].get("policy", "eager"),
            )
            for number, model in enumerate(models)
        ]
        nodes = [NodeGroup(count=1, gpu_class="GPU", gpus=1, nic_gbps=1.0, name="n")]
        return hand_plan(*made, nodes=nodes)

    change = transition(shared({}), shared({}, larger))
    assert (len(change.inherited), len(change.starts)) == ((1, 0) if goes_on else (0, 1))


def test_a_worker_that_holds_more_than_is_wanted_goes_on() -> None:
    before = shared_gpu(("kept", 2, 1), ("gone", 3, 2))
    after = shared_gpu(("kept", 2, 1), plan_id="after")
    change = transition(before, after)
    assert (change.inherited, change.nothing) == (((0, 0),), True)
    assert [[key.model for key in keys] for keys in change.drops.values()] == [["gone"]]


def test_a_worker_goes_on_where_other_models_are_loaded_on_demand() -> None:
    before = on_demand_plan([100, 200, 300], 400, plan_id="before")
    after = on_demand_plan([100, 200, 300, 250], 400, plan_id="after")
    change = transition(before, after)
    assert change.inherited == (Inherited(0, 0),)
    assert change.nothing
    assert change.fits
    (gpu,) = change.gpus
    assert (gpu.before_gib, gpu.during_gib, gpu.after_gib) == (400 / 1024,) * 3
    assert sum(change.bytes_loaded.values()) == 0
    back = transition(after, before)
    assert back.inherited == (Inherited(0, 0),)
    assert [key.model for key in back.drops[0]] == ["m3"]


@pytest.mark.parametrize("pinned", [(0,), (0, 1, 2)])
def test_a_worker_ends_where_other_models_are_pinned_beside_those_on_demand(
    pinned: tuple[int, ...],
) -> None:
    before = on_demand_plan([100, 200, 300], 400, plan_id="before")
    after = on_demand_plan([100, 200, 300], 300, pinned=pinned, plan_id="after")
    for one, other in ((before, after), (after, before)):
        change = transition(one, other)
        assert change.inherited == ()
        assert not change.fits  # the room of one and all of the other


def test_models_with_another_vgpu_leave_first() -> None:
    gib = {"x": 6, "y": 5}
    before = full_gpus({"x": [0], "y": [1, 2]}, gib, plan_id="before")
    after = full_gpus({"x": [1], "y": [2, 0]}, gib, plan_id="after")
    found = steps(before, after)
    assert [plan.plan_id for plan in found] == ["before-after.1", "before-after.2", "after"]
    assert [workers(plan, gib) for plan in found[:2]] == [
        {("x", 0, 6), ("y", 2, 5)},
        {("x", 1, 6), ("y", 2, 5)},
    ]
    assert found[0].model("y").throughput_rps == before.model("y").throughput_rps / 2


def workers(plan: Plan, gib: Mapping[str, int]) -> set[Worker]:
    return {
        (model.name, slot.gpu, gib[model.name])
        for model, _, _, pool in plan.placed_stages()
        for slot in pool.slots()
    }


# Against every possible sequence of plans


def fewest_steps(before: set[Worker], after: set[Worker]) -> int | None:
    """By trying all: how many changes lead from one set of workers to the other.

    Between, a model that stays is served by some of its old workers or some of its new ones, and a
    GPU has one worker; all that is there before and after a change must fit every GPU.
    """
    both = {w[0] for w in before} & {w[0] for w in after}

    def parts(model: str) -> Iterable[frozenset[Worker]]:
        for side in (before, after):
            own = [w for w in side if w[0] == model]
            for count in range(model in both, len(own) + 1):
                yield from map(frozenset, combinations(own, count))

    names = {w[0] for w in before | after}
    states = {frozenset[Worker]().union(*chosen) for chosen in product(*map(parts, names))}
    states = {s for s in states if s and max(Counter(w[1] for w in s).values()) == 1}

    def fits(one: frozenset[Worker], other: frozenset[Worker]) -> bool:
        held: Counter[int] = Counter()
        for _, gpu, size in one | other:
            held[gpu] += size
        return max(held.values()) <= ROOM_GIB

    reached, count = {frozenset(before)}, 0
    seen = set(reached)
    while reached:
        count += 1
        reached = {s for s in states - seen for one in reached if fits(one, s)}
        if frozenset(after) in reached:
            return count
        seen |= reached
    return 1 if before == after else None


def drawn(draw: np.random.Generator, gpus: int) -> dict[str, list[int]]:
    free = draw.permutation(gpus).tolist()
    wanted = {name: int(draw.integers(0, 3)) for name in "xyz"}
    found = {name: [free.pop() for _ in range(min(n, len(free)))] for name, n in wanted.items()}
    return {name: gpus for name, gpus in found.items() if gpus} or {"x": [0]}


@pytest.mark.long
def test_steps_fit_and_are_found_wherever_there_are_any() -> None:
    draw = np.random.default_rng(1)
    more = refused = 0
    for case in range(150):
        gib = {name: int(draw.integers(3, 8)) for name in "xyz"}
        gpus = 2 + case % 3
        before = full_gpus(drawn(draw, gpus), gib, plan_id="before")
        after = full_gpus(drawn(draw, gpus), gib, plan_id="after")
        fewest = fewest_steps(workers(before, gib), workers(after, gib))
        if fewest is None:
            refused += 1
            with pytest.raises(InputError, match="old and new need"):
                steps(before, after)
            continue
        found = steps(before, after)
        for one, other in zip((before, *found), found, strict=False):
            assert transition(one, other).fits, f"case {case}"
        assert found[-1] is after
        assert fewest <= len(found) <= fewest + 1, f"case {case}"
        more += len(found) - fewest
    assert (more <= 5, refused > 0) == (True, True)
