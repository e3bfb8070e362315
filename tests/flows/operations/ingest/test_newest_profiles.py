"""The newest profiles against the plan in force: from the warehouse to the server's metrics."""

import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from flows.clock import now_utc
from flows.operations.ingest.newest_profiles import newest_ratios, note_newest_profiles
from flows.operations.ingest.reader import ingest
from flows.planning import PlanOptions
from flows.planning.stored_plans import plan_step
from flows.release.server import admin
from flows.state import ProjectState
from flows.system_metrics import parse_metrics
from flows.workspace import Workspace
from tests.flows.planning.small import cluster, profile, workload
from tests.ports import free_ports
from tests.triton_backend.serving.system import wait_for
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.contract.profiles import ModelProfile
from triton_backend.contract.workload import ModelDemand
from triton_backend.serve_folder.endpoints import Endpoints
from triton_backend.serve_folder.newest_profiles import NAME
from triton_backend.serve_folder.repository import render_repository
from triton_backend.serve_folder.settings import ServeOptions
from warehouse.profiles import import_profile

DEMAND = ModelDemand(name="net", slo_us=400_000, weight=1.0, batch_building_rate_rps=1e9)


def measured(fast_us: float, slowdown: float = 1.0) -> ModelProfile:
    return profile(fast_us=(fast_us,) * 3, slowdown=slowdown)


@pytest.fixture
def work(tmp_path: Path) -> Workspace:
    """A warehouse with one profile."""
    made = Workspace(state=ProjectState(home=tmp_path), warehouse=tmp_path / "w.duckdb")
    profiled(made, measured(10_000.0))
    return made


def profiled(work: Workspace, found: ModelProfile) -> None:
    with work.open() as warehouse:
        import_profile(warehouse, found, "by hand", now_utc())


def planned(work: Workspace) -> Plan:
    return plan_step(work, cluster(1, 1), workload(DEMAND), PlanOptions()).plan


@pytest.mark.long
def test_latencies_of_the_newest_profile_stand_over_those_of_the_plan(work: Workspace) -> None:
    plan = planned(work)
    classes = {pool.name: pool.gpu_class for pool in plan.pools}
    assert newest_ratios(work, plan) == dict.fromkeys(classes, 1.0)
    profiled(work, measured(10_000.0, slowdown=1.5))
    found = {"fast": 1.0, "slow": 1.5}
    assert newest_ratios(work, plan) == {pool: found[of] for pool, of in classes.items()}
    profiled(work, measured(8_000.0))
    assert newest_ratios(work, plan) == dict.fromkeys(classes, 0.8)
    with pytest.raises(InputError, match="gone"):
        newest_ratios(work, replace(plan, models=(replace(plan.models[0], name="gone"),)))


def test_nothing_is_noted_where_nothing_is_served(work: Workspace) -> None:
    note_newest_profiles(work, work.state.serve)
    assert not (work.state.serve / NAME).exists()


@pytest.fixture
def served(work: Workspace) -> Iterator[Plan]:
    """A plan in force on a real server."""
    plan, folder = planned(work), work.state.serve
    render_repository(folder, plan, ServeOptions(standby=False))
    http, grpc, metrics = free_ports(3)
    try:
        admin.start(folder, Endpoints(http=http, grpc=grpc, metrics=metrics))
        yield plan
    finally:
        admin.stop(folder)


@pytest.mark.slow
def test_a_running_system_publishes_what_was_ingested_last(work: Workspace, served: Plan) -> None:
    def published() -> dict[str, float]:
        state = admin.read_state(work.state.serve)
        with urllib.request.urlopen(state.metrics_url) as answer:
            found = parse_metrics(answer.read().decode())
        series = found.get("pool_profile_ratio", {})
        return {dict(labels)["pool"]: value for labels, value in series.items()}

    pools = [pool.name for pool in served.pools]
    assert published() == {}
    ingest(work)
    wait_for(lambda: published() == dict.fromkeys(pools, 1.0))
    profiled(work, measured(15_000.0))
    ingest(work)
    wait_for(lambda: published() == dict.fromkeys(pools, 1.5))
