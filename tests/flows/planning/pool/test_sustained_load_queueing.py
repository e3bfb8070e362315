"""The capacity a model needs, against a queue simulated request by request."""

import numpy as np
import pytest

from flows.planning.pool.columns import enumerate_columns
from flows.planning.pool.sustained_load import needed, waiting_us
from flows.planning.registry import PlanOptions
from tests.flows.planning.brute import latencies
from tests.flows.planning.small import cluster, problem_of, profile, workload
from triton_backend.contract.workload import ModelDemand


def lost_share(load: float, waiting: float, requests: int = 400_000) -> float:
    """Share lost by a server of one request per time unit with waits of `waiting` at most."""
    rng = np.random.default_rng(7)
    work, lost = 0.0, 0
    for gap in rng.exponential(1 / load, requests).tolist():
        work = max(0.0, work - gap)
        if work > waiting:
            lost += 1
        else:
            work += 1.0
    return lost / requests


@pytest.mark.parametrize("waiting", [3.0, 10.0, 25.0])
def test_at_the_capacity_needed_the_allowed_share_is_lost(waiting: float) -> None:
    load = 1 / float(needed(np.array([waiting]), 0.01)[0])
    assert lost_share(load, waiting) == pytest.approx(0.01, rel=0.15)


def test_the_less_a_request_can_wait_the_more_is_needed_and_never_less_than_the_rate() -> None:
    capacity = needed(np.array([0.0, 1.0, 5.0, 20.0, 60.0, 1e6]))
    assert np.all(np.diff(capacity) <= 0)
    assert capacity[-1] == pytest.approx(1.0, abs=1e-4)


def test_a_request_waits_as_long_as_slo_gathering_stages_and_transfers_leave() -> None:
    demand = ModelDemand(name="net", slo_us=20_000, weight=1.0, batch_building_rate_rps=2_000.0)
    problem = problem_of(
        {"net": profile()}, cluster(), workload(demand), PlanOptions(slo_margin=0.25)
    )
    columns = enumerate_columns(problem, 2)
    left_us = waiting_us(problem, columns, np.array([0.25 * demand.slo_us]))
    for row in range(len(columns)):
        batch = int(columns.batch[row])
        spent = demand.gathering_us(batch)
        for s in range(int(columns.stages[row])):
            kind, divisor = problem.types[columns.types[row, s]]
            first, last = columns.cuts[row, s : s + 2]
            table = latencies(profile(), (problem.classes[kind], divisor))
            spent += float(table[first:last, batch - 1].sum())
            spent += float(np.ceil(batch * 1000 * 8 / 10e3 - 1e-9)) if s else 0.0
        assert left_us[row] == pytest.approx(demand.slo_us - spent, abs=1.0)
    assert left_us.min() >= 0.25 * demand.slo_us - 1.0
