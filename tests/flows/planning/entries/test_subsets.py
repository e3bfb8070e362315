"""Groups by subsets: the cheapest of few entries."""

import numpy as np
import pytest

from flows.planning.solver.arrays import FAR
from tests.flows.planning.entries.entry_cases import by_subsets, case, cheapest_cut, field_of


def test_the_cheapest_cut_takes_no_group_that_cannot_be() -> None:
    cost = np.array([0.0, 3.0, 3.0, 4.0, 3.0, FAR, 7.0, FAR])
    assert sorted(cheapest_cut(cost)) == [3, 4]


@pytest.mark.parametrize("seed", range(4))
def test_subsets_serve_everyone_at_no_more_than_each_alone(seed: int) -> None:
    field = field_of(case(seed, 10, blocks=4, classes=("G", "H")))
    groups = by_subsets(field)
    assert sorted(i for group in groups for i in group.items) == list(range(10))
    alone = sum(field.best([item]).cost for item in range(10))
    assert sum(group.cost for group in groups) <= alone + 1e-9
