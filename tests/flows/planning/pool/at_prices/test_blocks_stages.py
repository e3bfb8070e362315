"""Pipelines of more stages than usual: items have room for all of them."""

import numpy as np
import pytest

from flows.planning import PlanOptions
from flows.planning.pool.at_prices.blocks import ModelBlocks
from flows.planning.pool.columns import enumerate_columns
from flows.planning.pool.integer import delivered_rps, gpus_in_use
from flows.planning.watch import Watch
from tests.flows.planning.small import cluster, problem_of, profile, workload
from triton_backend.contract.workload import ModelDemand

BLOCKS = 6


@pytest.mark.parametrize("stages", [1, 4, 5, 6])
def test_bricks_hold_the_vgpus_of_every_stage(stages: int) -> None:
    options = PlanOptions(slo_margin=0.0)
    profiles = {"net": profile("net", (1_000,) * BLOCKS, boundary_bytes=(1_000,) * (BLOCKS - 1))}
    demand = ModelDemand(name="net", slo_us=90_000, weight=1.0, batch_building_rate_rps=1e9)
    problem = problem_of(profiles, cluster(8, 8), workload(demand), options)
    columns = enumerate_columns(problem, stages)
    columns = columns.take(np.flatnonzero(columns.stages == stages)[:60])
    blocks = ModelBlocks(problem, columns, Watch())
    price = np.ones(len(problem.gpus))
    blocks.focus(price, np.array([300.0]))
    (items,) = blocks.propose(price, np.array([200.0]))
    rows, vgpus = blocks.allocation(items)
    counts = np.zeros((len(columns), stages), np.int64)
    np.add.at(counts, rows, vgpus)
    assert (vgpus > 0).all()
    assert delivered_rps(columns, counts).sum() >= 200.0 * (1 - 1e-9)
    assert (gpus_in_use(problem, columns, counts) <= blocks.total(items)[0]).all()
