"""The best groups at prices: as many members as is said, at the reduced cost that is said."""

import numpy as np
import pytest

from flows.planning.engine.pricing import Duals
from flows.planning.entries.bundles import Bundles
from flows.planning.entries.pooling import pooled
from flows.planning.entries.subsets import Subsets
from tests.flows.planning.entries.entry_cases import case, field_of


@pytest.mark.parametrize("seed", range(4))
def test_priced_groups_cost_what_their_members_cost(seed: int) -> None:
    field = field_of(case(seed, 14, blocks=4, rates=(30,), classes=("G", "H")))
    pricer, pi = Bundles(field), np.random.default_rng(seed).uniform(0, 60, 14)
    priced = pricer.price(Duals(demand=pi, resource=np.zeros(0)), pi, thorough=True)
    assert len(priced.columns)
    for group, number in zip(priced.columns.source, priced.columns.group.tolist(), strict=True):
        assert pricer.roots[number] == group.root
        assert group.cost - pi[list(group.items)].sum() == pytest.approx(priced.least[number])
        assert pooled(field, [group], joined=True).cost == pytest.approx(group.cost)


@pytest.mark.parametrize("seed", range(4))
def test_prices_of_neighbours_are_those_of_all_subsets(seed: int) -> None:
    field = field_of(case(seed, 12, blocks=4, rates=(30,), classes=("G", "H")))
    pi = np.random.default_rng(seed).uniform(0, 60, 12)
    least, known = Bundles(field).least(pi, np.inf), Subsets(field).least(pi, 0.0)
    some = known < field.root_price[field.needed_roots]  # else no group pays off
    assert least[some] == pytest.approx(known[some])
