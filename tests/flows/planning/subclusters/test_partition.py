"""Models into sub-clusters: the best one by trying everything, limits kept, large ones even."""

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from flows.planning.subclusters.partition import (
    ClusterPartition,
    PartitionProblem,
    divide,
    fits,
    imbalance,
    sums,
)
from flows.planning.watch import Watch

NOWHERE = -1


def problem(seed: int, models: int = 6, parts: int = 2, **more: Any) -> PartitionProblem:
    rng = np.random.default_rng(seed)
    load = rng.uniform(0.2, 1.6, models)
    static = rng.integers(1, 20, models) * 1e8
    plain = PartitionProblem(
        load=load,
        static_bytes=static,
        dynamic_bytes=static * rng.uniform(0.1, 0.6, models),
        room_bytes=np.inf,
        parts=parts,
        gpus=int(np.ceil(load.sum() / 0.9)) + 1,
        utilisation=0.9,
        before=np.full(models, NOWHERE),
    )
    return replace(plain, **more)


def best_by_trying(asked: PartitionProblem) -> float:
    """Lowest dR + w dS + M over all assignments and numbers of GPUs; infinite where none fits."""
    best = np.inf
    models, parts = len(asked.load), asked.parts
    total, all_bytes = asked.load.sum(), asked.static_bytes.sum()
    for chosen in product(range(parts), repeat=models):
        groups = [[i for i in range(models) if chosen[i] == j] for j in range(parts)]
        if not all(groups):
            continue
        static = [sum(asked.static_bytes[i] for i in group) for group in groups]
        dynamic = [max(asked.dynamic_bytes[i] for i in group) for group in groups]
        if any(s + d > asked.room_bytes for s, d in zip(static, dynamic, strict=True)):
            continue
        load = [sum(asked.load[i] for i in group) for group in groups]
        low = asked.gpus // parts if asked.even else 1
        high = -(-asked.gpus // parts) if asked.even else asked.gpus
        for gpus in product(range(low, high + 1), repeat=parts):
            if sum(gpus) != asked.gpus:
                continue
            most = [min(0.9 * g, max(0.81 * g, g - 1)) for g in gpus]  # at utilisation 0.9
            if any(a > carried + 1e-9 for a, carried in zip(load, most, strict=True)):
                continue
            off = max(abs(a - total / asked.gpus * g) for a, g in zip(load, gpus, strict=True))
            uneven = max(abs(s - all_bytes / parts) for s in static)
            moved = sum(
                asked.static_bytes[i]
                for i in range(models)
                if asked.before[i] not in (NOWHERE, chosen[i])
            )
            value = off / (total / parts) + uneven / (all_bytes / parts) + moved / all_bytes
            best = min(best, value)
    return best


def checked(asked: PartitionProblem) -> ClusterPartition | None:
    found = divide(asked, Watch(), gap=0.0)
    if found is not None:
        assert fits(asked, found.part, found.gpus)
        assert found.gpus.sum() == asked.gpus
        assert found.bound <= found.value
    return found


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("even", [True, False])
def test_small_problems_are_solved_to_the_optimum(seed: int, even: bool) -> None:
    asked = problem(seed, even=even)
    best, found = best_by_trying(asked), checked(asked)
    if found is None:
        assert np.isinf(best)
    else:
        assert found.value == pytest.approx(best, abs=1e-6)
        assert found.status == "optimal"


@pytest.mark.parametrize("seed", range(4))
def test_small_problems_with_memory_and_a_plan_in_force_are_solved_to_the_optimum(
    seed: int,
) -> None:
    asked = problem(seed, models=5)
    largest = (asked.static_bytes + asked.dynamic_bytes).max()
    room = max(float(asked.static_bytes.sum()) * 0.75, float(largest))
    asked = replace(asked, room_bytes=room, before=np.array([0, 1, 0, NOWHERE, 1]))
    best, found = best_by_trying(asked), checked(asked)
    if found is None:
        assert np.isinf(best)
    else:
        assert found.value == pytest.approx(best, abs=1e-6)


def test_three_parts_are_solved_to_the_optimum() -> None:
    asked = problem(1, models=6, parts=3)
    found = checked(asked)
    assert found is not None
    assert found.value == pytest.approx(best_by_trying(asked), abs=1e-6)


def test_a_small_gain_moves_nothing_and_a_large_one_does() -> None:
    sizes = np.full(4, 1e9)
    asked = problem(
        0,
        models=4,
        load=np.array([1.0, 1.0, 1.02, 0.98]),
        static_bytes=sizes,
        dynamic_bytes=sizes * 0,
        gpus=6,
        before=np.array([0, 1, 0, 1]),
    )
    kept = checked(asked)
    assert kept is not None
    assert kept.part.tolist() == [0, 1, 0, 1]
    moved = checked(replace(asked, load=np.array([2.0, 0.1, 1.0, 0.1]), even=True))
    assert moved is not None
    assert moved.part.tolist() != [0, 1, 0, 1]


def test_what_cannot_fit_is_not_invented() -> None:
    asked = problem(0)
    assert divide(replace(asked, room_bytes=1.0), Watch()) is None
    assert divide(replace(asked, parts=7), Watch()) is None
    assert divide(replace(asked, gpus=2), Watch()) is None


@pytest.mark.long
@pytest.mark.parametrize(("models", "parts"), [(400, 4), (800, 20)])
def test_many_models_are_divided_evenly(models: int, parts: int) -> None:
    rng = np.random.default_rng(0)
    load = rng.exponential(size=models)
    static = rng.choice([14e6, 25e6, 88e6, 98e6, 143e6, 528e6], models)
    asked = PartitionProblem(
        load=load,
        static_bytes=static,
        dynamic_bytes=static / 2,
        room_bytes=np.inf,
        parts=parts,
        gpus=parts * int(np.ceil(load.sum() / 0.9 / parts) + 1),
        utilisation=0.9,
        before=np.full(models, NOWHERE),
    )
    found = checked(asked)
    assert found is not None
    assert imbalance(sums(found.part, load, parts)) <= 0.01
    assert imbalance(sums(found.part, static, parts)) <= 0.02
    assert found.gap <= 0.02
