"""Steps of a change that has no room at once, against every possible sequence of plans."""

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import combinations, product

import numpy as np
import pytest

from tests.triton_backend.contract.transition.full_gpus import ROOM_GIB, full_gpus
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.contract.transition.memory import transition
from triton_backend.contract.transition.steps import steps

Worker = tuple[str, int, int]  # model, GPU, GiB


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
