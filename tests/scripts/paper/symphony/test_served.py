"""Criteria for the served sub-clusters of the Symphony paper."""

import numpy as np

from scripts.paper.symphony.served import exchanged, longest_gaps_s
from scripts.paper.symphony.study import Row, plan_of
from triton_backend.contract.plan import Plan


def test_gaps_that_touch_a_change_are_told_from_the_others() -> None:
    at_us = np.array([0, 100_000, 700_000, 1_000_000, 1_900_000])
    assert longest_gaps_s(at_us, 600_000, 800_000) == (0.6, 0.9)
    assert longest_gaps_s(at_us, 1_000_000, 1_100_000) == (0.9, 0.6)
    assert longest_gaps_s(at_us[:1], 0, 1) == (0.0, 0.0)


def test_two_sub_clusters_exchange_the_models_that_are_most_alike() -> None:
    times = {"a": 2, "b": 9, "c": 3, "d": 20}
    rows = [Row(name, 100.0, 1_000.0 * beta, 100_000) for name, beta in times.items()]
    before = plan_of(rows, 4, own={"subclusters": "2"})
    after, moved = exchanged(before)

    def pool(plan: Plan, name: str) -> str:
        (pipeline,) = plan.model(name).pipelines
        return pipeline.stages[0].pool

    changed = {name for name in times if pool(before, name) != pool(after, name)}
    assert changed == set(moved)
    assert len({pool(before, name) for name in moved}) == 2
    assert {p.name: p.placement for p in after.pools} == {p.name: p.placement for p in before.pools}
