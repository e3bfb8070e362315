"""The plan in force as configurations.

Its pipelines are found again, those that no longer fit are not.
"""

from dataclasses import replace

import numpy as np
import pytest

from flows.planning import PlanOptions, make_plan
from flows.planning.inputs import build_problem
from flows.planning.pool.columns import allocations_in_force, enumerate_columns, row_of
from flows.planning.pool.integer import delivered_rps
from tests.flows.planning.pool.at_prices.test_search import many

OPTIONS = PlanOptions(gap=0.05)


@pytest.mark.long
def test_every_pipeline_of_a_plan_is_found_with_its_rate() -> None:
    profiles, machines, workload = many(4)
    plan = make_plan(profiles, machines, workload, OPTIONS)
    problem = build_problem(profiles, machines, workload, OPTIONS)
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
    problem = build_problem(profiles, machines, tight, replace(OPTIONS, slo_margin=0.0))
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
