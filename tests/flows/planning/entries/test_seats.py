"""Plans by seats.

Everybody has a seat in time, never below the bound, equal to brute force where all ways are given.
"""

import pytest

from flows.planning.entries.groups import GroupingProblem
from flows.planning.entries.pooling import pooled_ways
from flows.planning.entries.seats import SeatRoute, seated
from flows.planning.solver.solve import Limits
from tests.flows.planning.entries.entry_cases import brute_force, case, field_of

LIMITS = Limits(relative_gap=0.0, nodes=10_000)


def every_way(field: GroupingProblem) -> list[SeatRoute]:
    found: list[SeatRoute] = []
    for root, junction in enumerate(field.root_junction.tolist()):
        for start in sorted(set(field.block.tolist())):
            if start == junction:
                found.append(SeatRoute(root, start, -1))
            if start < junction:
                options = field.table.options(start, junction, int(field.root_kind[root]))
                found += [SeatRoute(root, start, row) for row in range(len(options))]
    return found


def in_time(field: GroupingProblem, ways: list[SeatRoute]) -> bool:
    for item, way in enumerate(ways):
        time = float(field.root_time[way.root])
        if way.row >= 0:
            junction, kind = int(field.root_junction[way.root]), int(field.root_kind[way.root])
            time += float(field.table.options(way.start, junction, kind).time_us[way.row])
        if way.start != field.block[item] or time > field.limit[item]:
            return False
    return True


@pytest.mark.parametrize("seed", range(4))
def test_all_ways_give_the_plan_that_brute_force_finds(seed: int) -> None:
    problem = case(60 + seed, 5, rates=(30,), classes=("G", "H")[: 1 + seed % 2])
    field = field_of(problem)
    ways, bound = seated(field, every_way(field), LIMITS)
    assert in_time(field, ways)
    least = brute_force(problem, whole=True)
    assert pooled_ways(field, ways).cost == pytest.approx(least)
    assert bound == pytest.approx(least)


@pytest.mark.parametrize("seed", range(6))
def test_all_ways_of_several_rates_give_no_dearer_plan_than_brute_force(seed: int) -> None:
    problem = case(80 + seed, 5, rates=(5, 12.5, 30), classes=("G", "H")[: 1 + seed % 2])
    field = field_of(problem)
    found, _ = seated(field, every_way(field), LIMITS)
    assert in_time(field, found)
    cost = pooled_ways(field, found).cost
    assert cost <= brute_force(problem, whole=True) + 1e-9
    assert seated(field, set(found), LIMITS)[0] != []


@pytest.mark.parametrize("rates", [(30,), (5, 30)])
def test_without_a_way_for_an_entry_there_is_no_plan(rates: tuple[float, ...]) -> None:
    field = field_of(case(1, 6, rates=rates))
    first = int(field.block.min())
    missing = [way for way in every_way(field) if way.start != first]
    assert seated(field, missing, LIMITS)[0] == []
    assert seated(field, [], LIMITS)[0] == []
