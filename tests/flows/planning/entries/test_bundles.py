"""The best groups at prices: as many members as is said, at the reduced cost that is said."""

import numpy as np
import pytest

from flows.planning.entries.pooling import pooled
from flows.planning.entries.shared_stages import SharedStages
from tests.flows.planning.entries.entry_cases import case
from tests.flows.planning.entries.test_shared_stages import field_of


@pytest.mark.parametrize("seed", range(4))
def test_priced_groups_cost_what_their_members_cost(seed: int) -> None:
    field = field_of(case(seed, 14, blocks=4, rates=(30,), classes=("G", "H")))
    pricing, random = SharedStages(field), np.random.default_rng(seed)
    pi = random.uniform(0, 40, 14)
    least, size = pricing.least(pricing.stages, pi)
    for stage, reduced, count in zip(pricing.stages, least, size, strict=True):
        if not np.isfinite(reduced):
            continue
        column = pricing.column(int(stage), int(count), pi)
        assert len(column.items) == count
        assert column.cost - pi[list(column.items)].sum() == pytest.approx(reduced)
        assert pooled(field, [column], joined=True).cost == pytest.approx(column.cost)
