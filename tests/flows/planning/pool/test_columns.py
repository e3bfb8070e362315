"""The plan in force as configurations.

Its pipelines are found again, those that no longer fit are not.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.planning import PlanOptions, make_plan
from flows.planning.pool.columns import (
    allocations_in_force,
    best_of_each,
    enumerate_columns,
    row_of,
)
from flows.planning.pool.integer import delivered_rps
from tests.flows.planning.pool.at_prices.test_search import many
from tests.flows.planning.small import problem_of

OPTIONS = PlanOptions(gap=0.05)


@given(st.lists(st.tuples(*(st.integers(0, 2) for _ in range(4)))))
def test_of_rows_with_equal_keys_the_least_by_all_values_is_found(
    rows: list[tuple[int, ...]],
) -> None:
    first, second, price, size = np.array(rows, dtype=np.int64).reshape(-1, 4).T
    least: dict[tuple[int, ...], tuple[int, ...]] = {}
    for number, row in enumerate(rows):
        key, ranked = row[:2], (*row[2:], number)
        least[key] = min(least.get(key, ranked), ranked)
    found = best_of_each([first, second], price, size)
    assert found.tolist() == [least[key][-1] for key in sorted(least)]


@pytest.mark.long
def test_every_pipeline_of_a_plan_is_found_with_its_rate() -> None:
    profiles, machines, workload = many(4)
    plan = make_plan(profiles, machines, workload, OPTIONS)
    problem = problem_of(profiles, machines, workload, OPTIONS)
    columns = enumerate_columns(problem, 2)
    ways = allocations_in_force(plan, problem, columns)
    assert [model for model, _ in ways] == [0, 1, 2, 3]
    for model, (rows, vgpus) in ways:
        name = problem.models[model].name
        promised = plan.model(name).throughput_rps
        assert np.all(columns.model[rows] == model)
        assert delivered_rps(columns.take(rows), vgpus).sum() >= promised * (1 - 1e-9)


@pytest.mark.long
def test_what_no_longer_meets_its_slo_is_left_out() -> None:
    profiles, machines, workload = many(4)
    plan = make_plan(profiles, machines, workload, OPTIONS)
    first, *others = workload.models
    tight = replace(workload, models=(replace(first, slo_us=first.slo_us // 2), *others))
    problem = problem_of(profiles, machines, tight, replace(OPTIONS, slo_margin=0.0))
    columns = enumerate_columns(problem, 2)
    kept = {model for model, _ in allocations_in_force(plan, problem, columns)}
    fitting = {
        number
        for number, model in enumerate(plan.models)
        if all(
            row_of(problem, columns, number, p, [plan.pool_of(s) for s in p.stages]) is not None
            for p in model.pipelines
            if p.throughput_rps
        )
    }
    assert kept == fitting
    assert kept >= {1, 2, 3}
