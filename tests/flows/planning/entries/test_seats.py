"""Plans by seats.

Everybody has a seat in time, never below the bound, equal to brute force where all ways are given.
"""

import pytest

from flows.planning.entries.groups import GroupingProblem, items_of
from flows.planning.entries.pooling import pooled_ways
from flows.planning.entries.seats import SeatRoute, many_seated, one_rate, seated
from flows.planning.entries.tables import read_tables
from flows.planning.registry import Inputs
from flows.planning.solver.solve import Limits
from flows.planning.watch import Watch
from tests.flows.planning.entries.entry_cases import EVEN, Case, brute_force, case

LIMITS = Limits(relative_gap=0.0, nodes=10_000)


def field_of(problem: Case) -> GroupingProblem:
    inputs = Inputs(profiles=problem.profiles, cluster=problem.cluster, workload=problem.workload)
    table = read_tables(inputs, EVEN)[0]
    return GroupingProblem(table, items_of(table))


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
    least = brute_force(problem)
    assert pooled_ways(field, ways).cost == pytest.approx(least)
    assert bound == pytest.approx(least)


@pytest.mark.parametrize("seed", range(6))
def test_all_ways_of_several_rates_give_no_dearer_plan_than_brute_force(seed: int) -> None:
    problem = case(80 + seed, 5, rates=(5, 12.5, 30), classes=("G", "H")[: 1 + seed % 2])
    field = field_of(problem)
    found, _ = seated(field, every_way(field), LIMITS, across=True)
    assert in_time(field, found)
    cost = pooled_ways(field, found).cost
    assert cost <= brute_force(problem) + 1e-9
    assert seated(field, set(found), LIMITS, across=True)[0] != []


def test_a_start_without_a_way_is_not_assigned() -> None:
    field = field_of(case(1, 6, rates=(5, 30)))
    first = int(field.block.min())
    missing = [w for w in every_way(field) if w.start != first]
    assert seated(field, missing, LIMITS, across=True)[0] == []


def test_without_a_way_for_somebody_there_is_no_plan() -> None:
    field = field_of(case(1, 6, rates=(30,)))
    first = int(field.block.min())
    missing = [way for way in every_way(field) if way.start != first]
    assert seated(field, missing, LIMITS)[0] == []


@pytest.mark.parametrize("seed", range(2))
def test_many_entries_are_served_near_a_bound(seed: int) -> None:
    field = field_of(case(seed, 450, blocks=4, rates=(30,)))
    ways, bound = many_seated(field, Watch())
    assert in_time(field, ways)
    assert bound <= pooled_ways(field, ways).cost <= 1.25 * bound


def test_the_bound_of_many_is_below_the_least_plan_of_few() -> None:
    problem = case(61, 5, rates=(30,))
    assert many_seated(field_of(problem), Watch())[1] <= brute_force(problem) + 1e-6


def test_seats_are_for_one_rate() -> None:
    assert one_rate(field_of(case(0, 6, rates=(30,))))
    assert not one_rate(field_of(case(0, 6, rates=(5, 30))))
