"""Runs of entries of one start and one rate, against every way to cut them into stages."""

import numpy as np
import pytest

from flows.planning.entries.groups import GroupingProblem
from flows.planning.entries.runs import Levels, levels_of, members_of_runs
from flows.planning.solver.arrays import Floats, Ints
from tests.flows.planning.entries.entry_cases import case, field_of

COUNT = 40


def field_of_one_rate(seed: int, rate: float, most_stages: int = 2) -> GroupingProblem:
    return field_of(case(seed, COUNT, rates=(rate,), classes=("G", "H")), most_stages)


def first_start(field: GroupingProblem) -> Ints:
    """Items of the first start, by falling limit."""
    own = np.flatnonzero(field.block == field.block.min())
    return own[np.argsort(-field.limit[own], kind="stable")]


def stage_costs(field: GroupingProblem, own: Ints, root: int) -> Floats:
    """[i, o] the least cost of a stage for so many entries that end with one; 0 where they board.

    By the options themselves.
    """
    start, junction, kind = (
        int(field.block[own[0]]),
        int(field.root_junction[root]),
        int(field.root_kind[root]),
    )
    cost = np.full((len(own), len(own) + 1), np.inf)
    rate = float(field.rate[own[0]])
    for i, limit in enumerate(field.limit[own].tolist()):
        left = limit - field.root_time[root]
        if left < 0 or start > junction:
            continue
        if start == junction:
            cost[i] = 0.0
        elif rate <= field.link_rps[kind, junction]:
            options = field.aligning(start, root)
            able = options.time_us <= left
            for o in range(1, i + 2):
                vgpus = np.maximum(1.0, np.ceil(o * rate * options.work[able] * (1 - 1e-9)))
                cost[i, o] = (options.price[able] * vgpus).min(initial=np.inf)
    return cost


def all_runs(pi: Floats, cost: Floats) -> Floats:
    """[k] the largest gain of k of the entries, runs of every length."""
    count = len(pi)
    total = np.concatenate([[0.0], np.cumsum(pi)])
    gain = np.full((count + 1, count + 1), -np.inf)
    gain[:, 0] = 0.0
    for i in range(1, count + 1):
        gain[i, 1:] = gain[i - 1, 1:]
        for o in range(1, i + 1):
            worth = total[i] - total[i - o] - cost[i - 1, o]
            gain[i, o:] = np.maximum(gain[i, o:], gain[i - o, : count + 1 - o] + worth)
    return gain[count]


def taken(
    levels: Levels, root: int, pi: Floats, most: int
) -> tuple[float, np.ndarray[tuple[int], np.dtype[np.bool_]]]:
    """The cost of the best so many entries, and which they are."""
    chosen = np.zeros(len(pi), dtype=np.bool_)
    room = np.zeros(len(pi) + 1), np.zeros((len(pi) + 1, len(pi) + 1))
    return members_of_runs(pi, levels.rows[root], levels[1:], most, room, chosen), chosen


@pytest.mark.parametrize("rate", [3.0, 30.0, 170.0])
@pytest.mark.parametrize("seed", range(3))
def test_levels_gain_as_much_as_stages_of_every_number(seed: int, rate: float) -> None:
    field = field_of_one_rate(seed, rate)
    own = first_start(field)
    levels, pi = (
        levels_of(field, own),
        np.sort(np.random.default_rng(seed).uniform(0, 90, len(own))),
    )
    some = 0
    for root in range(0, len(field.root_time), 7):
        best = all_runs(pi, stage_costs(field, own, root))
        for most in range(1, len(own) + 1):
            if not np.isfinite(best[most]) or best[most] <= best[:most].max():
                continue  # fewer entries gain as much
            cost, chosen = taken(levels, root, pi, most)
            assert chosen.sum() == most
            assert pi[chosen].sum() - cost == pytest.approx(best[most])
            some += 1
    assert some > 20


@pytest.mark.parametrize("seed", range(3))
def test_no_level_is_replaced_by_others(seed: int) -> None:
    field = field_of_one_rate(seed, 30.0)
    levels = levels_of(field, first_start(field))
    several = 0
    for first, last in zip(levels.first[:-1], levels.first[1:], strict=True):
        capacity = levels.capacity[first:last].tolist()
        price = levels.price[first:last].tolist()
        assert capacity == sorted(set(capacity))
        assert price == sorted(set(price))
        several += len(price) > 2
        least = [0.0, *[np.inf] * max(capacity, default=0)]
        for carried in range(1, len(least)):  # by several stages, none of them alone
            pairs = list(zip(capacity, price, strict=True))
            least[carried] = min(p + least[max(carried - c, 0)] for c, p in pairs)
        for c, p in zip(capacity, price, strict=True):
            assert least[c] == pytest.approx(p)
    assert several


def test_entries_that_are_late_beside_a_root_have_no_levels() -> None:
    field = field_of_one_rate(1, 30.0, most_stages=1)
    own = first_start(field)
    levels = levels_of(field, own)
    before = np.flatnonzero(field.root_junction == field.block.min())
    for root in before.tolist():
        late = field.limit[own] < field.root_time[root]
        assert (np.diff(levels.first)[levels.rows[root]] == np.where(late, 0, 1)).all()
    joined = Levels.joined([levels, levels])
    twice = np.diff(joined.first)[joined.rows]
    assert (twice == np.tile(np.diff(levels.first)[levels.rows], 2)).all()
