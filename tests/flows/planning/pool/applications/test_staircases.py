"""Allocations of one line: those of items serve it and cost no less than what is proven."""

import numpy as np
import pytest

from flows.planning import PlanOptions
from flows.planning.pool.applications.staircases import LineAtPrices
from flows.planning.pool.columns import enumerate_columns
from flows.planning.pool.integer import delivered_rps
from flows.planning.watch import Watch
from tests.flows.planning.small import cluster, problem_of, profile
from triton_backend.contract.workload import ModelDemand, Workload

PRICE = np.array([2.0, 0.7])


@pytest.mark.parametrize("rate_rps", [300.0, 1_100.0, 2_500.0])
@pytest.mark.parametrize("budget_us", [4_000, 9_000, 20_000])
def test_ways_of_bricks_serve_the_line_in_time_and_cost_no_less_than_is_proven(
    rate_rps: float, budget_us: int
) -> None:
    workload = Workload(models=(ModelDemand(name="a", slo_us=20_000, rate_rps=rate_rps),))
    problem = problem_of(
        {"a": profile("a", (1000, 1000, 1000))},
        cluster(6, 8),
        workload,
        PlanOptions(objective="cost", slo_margin=0.0),
    )
    columns = enumerate_columns(problem, 2)
    times = np.linspace(2_000, 20_000, len(columns))
    line = LineAtPrices(
        problem=problem, columns=columns, times=times, rate_rps=rate_rps, price=PRICE, watch=Watch()
    )
    allocations = line.proposed(budget_us, [PRICE, np.array([6.0, 0.7]), np.array([2.0, 3.5])])
    least = line.staircase().at(budget_us).least
    assert bool(allocations) == bool(np.isfinite(least))
    for stair in allocations:
        rows, vgpus = stair.allocation
        assert stair.used_us <= budget_us
        assert delivered_rps(columns.take(rows), vgpus).sum() >= rate_rps * (1 - 1e-9)
        assert np.all(stair.vector <= problem.gpus)
        assert stair.cost >= least * (1 - 1e-9)
