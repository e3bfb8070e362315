"""The golden problems: two hundred, each the same whenever it is drawn."""

import numpy as np
import pytest

from scripts.golden.problems import FAMILIES, named, problems


def test_there_are_two_hundred_with_distinct_names() -> None:
    names = [problem.name for problem in problems()]
    assert len(names) == len(set(names)) == 200
    assert {problem.family for problem in problems()} == set(FAMILIES)


@pytest.mark.parametrize("family", ["one-model", "applications", "entries-mixed", "gpulets", "mig"])
def test_a_problem_is_the_same_whenever_it_is_drawn(family: str) -> None:
    first, again = named(f"{family}-01").make(), named(f"{family}-01").make()
    assert (first.cluster, first.workload) == (again.cluster, again.workload)
    assert first.options == again.options
    for name, profile in first.profiles.items():
        tables = again.profiles[name].tables
        assert set(profile.tables) == set(tables)
        for key, table in profile.tables.items():
            assert np.array_equal(table.latency_us, tables[key].latency_us)


def test_problems_of_a_family_differ() -> None:
    drawn = [named(f"two-stages-{number:02}").make().workload for number in range(4)]
    assert len({str(workload.to_dict()) for workload in drawn}) == 4
