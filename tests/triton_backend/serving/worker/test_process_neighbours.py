"""A worker's view of neighbours on its GPU under emulated interference."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fakes.unequal_shares import example
from tests.triton_backend.serving.system import deploy
from triton_backend.contract.plan import Plan, PoolInterference, SeatInterference
from triton_backend.runtimes.clock import SystemClock
from triton_backend.runtimes.emulated import EmulatedRuntime
from triton_backend.runtimes.stage_tensors import complete_tensors
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.serving.deployment import Deployment
from triton_backend.serving.liveness.workers import HealthBoard
from triton_backend.serving.worker.process import Neighbours, health_row
from triton_backend.serving.worker.scheduler_link import GatewayTime
from triton_backend.serving.worker.stage import LoadedStages, open_runtimes


@pytest.fixture(params=["planned", "overlap"])
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Deployment]:
    plan = complete_tensors(Plan.from_dict(example()))
    pools = tuple(replace(pool, interference=stated(plan, n)) for n, pool in enumerate(plan.pools))
    options = ServeOptions(interference=request.param)
    found = deploy(tmp_path, replace(plan, pools=pools), options)
    yield found
    for node in found.nodes():
        HealthBoard.open(found, node).remove()


def stated(plan: Plan, pool: int) -> PoolInterference:
    """Every seat suffers 1.25 and presses by a tenth of its pool's number."""
    seat = SeatInterference(susceptibility=1.25, pressure=pool / 10, factor=2.0)
    seats = (seat,) * len(plan.stages_of(pool))
    return PoolInterference(pressure=pool / 10, felt=0.75, inflation=1.0, seats=seats)


def vgpu_of(served: Deployment, pool: str) -> int:
    (found,) = (v.index for v in served.vgpus if served.pool_of(v.index).name == pool)
    return found


def test_who_runs_on_the_same_gpu_presses_while_it_runs(served: Deployment) -> None:
    overlap = served.settings.interference == "overlap"
    first = vgpu_of(served, "p20")
    (beside,) = served.beside(first)
    assert beside == vgpu_of(served, "p80")
    neighbours, row = Neighbours(), health_row(served, beside)
    neighbours.serve(served, first)
    assert neighbours.pressing() is None
    for name in ("p40", "p60"):  # on the other GPU
        health_row(served, vgpu_of(served, name)).busy(1, 1, 9.0)
    assert neighbours.pressing() is None
    row.busy(1, 1, 0.1)
    assert neighbours.pressing() == (0.1 if overlap else None)
    row.idle()
    assert neighbours.pressing() is None


def test_a_worker_shows_how_hard_its_batch_presses(served: Deployment) -> None:
    overlap = served.settings.interference == "overlap"
    beside = vgpu_of(served, "p80")
    row, seen = health_row(served, beside), list[float | None]()

    def pressing() -> float | None:
        seen.append(row.pressing())
        return None

    clock = SystemClock()
    loaded = open_runtimes(served, beside, clock, pressing=pressing)
    assert all(isinstance(one.runtime, EmulatedRuntime) for one in loaded)
    stages = LoadedStages(loaded, row, GatewayTime(clock))
    stages.serve(served, beside)
    began_us, ended_us = stages.run_on_zeros(served.tag)
    assert set(seen) == ({served.vgpus[beside].pool / 10} if overlap else set())
    stage = served.stage_of(served.rows_of(beside)[0])
    if not overlap:
        assert ended_us - began_us >= stage.latency_us
    assert row.pressing() is None
