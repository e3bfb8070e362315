"""Nights replanned by one command, on a real Prefect server beside a serving system."""

import json
import shlex
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterId
from prefect.client.schemas.schedules import IntervalSchedule
from prefect.events import emit_event

from flows.clock import now_utc
from flows.deployments.local import NIGHTLY_FILE
from flows.deployments.orchestration.nightly import (
    NO_NIGHTS,
    Nightly,
    described,
    kept,
    write_nightly,
)
from flows.files import read_cluster, read_workload
from flows.operations.replanning.conditions import ATTAINMENT_LOW
from flows.planning import PlanOptions
from flows.planning.stored_plans import plan_step
from flows.release.server import admin
from flows.state import ProjectState
from flows.workspace import Workspace
from tests.docs.pages import console_lines
from tests.fakes.minutes import model_minute
from tests.flows.deployments.joined import joined, joining
from tests.ports import free_ports
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.contract.profiles import ModelProfile, loaded
from triton_backend.serve_folder.endpoints import Endpoints
from triton_backend.serve_folder.repository import render_repository
from triton_backend.serve_folder.settings import ServeOptions
from warehouse.observations import StatisticsFile, add_statistics
from warehouse.profiles import import_profile

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[4]
CLUSTER = """
gpu_classes: {fast: {}, slow: {}, spare: {}}
nodes:
  - {count: 1, gpu_class: fast, gpus: 3, nic_gbps: 10}
  - {count: 1, gpu_class: slow, gpus: 2, nic_gbps: 10}
  - {count: 1, gpu_class: spare, gpus: 1, nic_gbps: 10}
"""
WORKLOAD = "models: [{name: pair, slo_ms: 900, batch_building_rate_rps: 1000000}]\n"
CRON = "0 3 * * *"
ASKED = PlanOptions(
    slo_margin=0.3,
    slo_margins={"pair": 0.2},
    time_limit_s=50.0,
    gap=0.001,
    excluded_classes={"*": ("spare",)},
    allowed_classes={"pair": ("fast", "slow", "spare")},
    minimum_rps={"pair": 1.0},
    own={"overflow": True},
)


def two_files(folder: Path) -> None:
    (folder / "cluster.yaml").write_text(CLUSTER)
    (folder / "workload.yaml").write_text(WORKLOAD)


def pair() -> ModelProfile:
    latency_us = {
        (name, 1): np.full((3, 2), (20_000.0, 24_000.0)) for name in ("fast", "slow", "spare")
    }
    return ModelProfile(name="pair", tables=loaded(latency_us), boundary_bytes=(40_000, 20_000))


def test_what_was_asked_for_is_known_to_the_next_start(tmp_path: Path) -> None:
    two_files(tmp_path)
    files = {name: tmp_path / f"{name}.yaml" for name in ("cluster", "workload")}
    nightly = Nightly(**files, cron=CRON)
    write_nightly(tmp_path / "noted", nightly)
    assert kept(tmp_path / "noted") == nightly
    files["workload"].unlink()
    with pytest.raises(InputError, match=r"workload\.yaml"):
        kept(tmp_path / "noted")
    (tmp_path / "noted").write_text("cron: [")
    with pytest.raises(InputError, match="noted: is broken"):
        kept(tmp_path / "noted")


@pytest.mark.parametrize("cron", ["", "every night", "0 3 * *", "61 3 * * *", "R 3 * * *"])
def test_a_schedule_that_is_none_is_named(tmp_path: Path, cron: str) -> None:
    two_files(tmp_path)
    with pytest.raises(InputError, match="is no schedule of five fields"):
        Nightly(cluster=tmp_path / "cluster.yaml", workload=tmp_path / "workload.yaml", cron=cron)


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """A folder with its files, whose operations join a server."""

    folder: Path
    url: str
    environment: dict[str, str]

    def operations(self, *words: str, within: Path | None = None) -> tuple[int, str]:
        done = subprocess.run(
            [ROOT / "scripts/operations", *words],
            cwd=within or self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout if done.returncode == 0 else done.stderr

    def up(self, *words: str) -> list[str]:
        """The output of `up` on replanning."""
        code, said = self.operations("up", *words)
        assert code == 0, said
        return [line for line in said.splitlines() if line.startswith("replan: ")]

    def deployment(self, name: str) -> Any:
        with joined(self.url), get_client(sync_client=True) as api:
            return api.read_deployment_by_name(name)

    def runs(self, deployment_id: Any) -> list[Any]:
        """Those of a deployment that something other than its schedule started."""
        wanted = DeploymentFilter(id=DeploymentFilterId(any_=[deployment_id]))
        with joined(self.url), get_client(sync_client=True) as api:
            return [r for r in api.read_flow_runs(deployment_filter=wanted) if not r.auto_scheduled]


@pytest.fixture
def project(tmp_path: Path, prefect_url: str) -> Iterator[Project]:
    two_files(tmp_path)
    made = Project(folder=tmp_path, url=prefect_url, environment=joining(tmp_path, prefect_url))
    try:
        yield made
    finally:
        made.operations("down")


def measured(work: Workspace) -> None:
    """Five minutes at 20 rps."""
    now = now_utc().replace(second=0, microsecond=0)
    rows = [model_minute(now - timedelta(minutes=ago), 1200, model="pair") for ago in range(1, 6)]
    with work.open() as warehouse:
        add_statistics(warehouse, StatisticsFile(path="f", digest="1", models=rows), now)


@pytest.fixture
def served(project: Project) -> Iterator[Plan]:
    """A plan made with options of every kind, in force on a real server."""
    state = ProjectState(home=project.folder / "home")
    work = Workspace(state=state, warehouse=project.folder / "w.duckdb")
    with work.open() as warehouse:
        import_profile(warehouse, pair(), "by hand", now_utc())
    cluster = read_cluster(project.folder / "cluster.yaml")
    workload = read_workload(project.folder / "workload.yaml")
    plan = plan_step(work, cluster, workload, ASKED).plan
    measured(work)
    render_repository(state.serve, plan, ServeOptions())
    http, grpc, metrics = free_ports(3)
    try:
        admin.start(state.serve, Endpoints(http=http, grpc=grpc, metrics=metrics))
        yield plan
    finally:
        admin.stop(state.serve)


def test_one_command_leaves_nights_and_trigger_and_a_replan_keeps_every_option(
    project: Project, served: Plan
) -> None:
    # As the tutorial says it.
    program, *first = shlex.split(console_lines("tutorials/nightly.md")[0])
    assert (program, first[-1]) == ("scripts/operations", CRON)
    armed = [f"replan: every '{CRON}' UTC", "replan: replan-on-condition is armed"]
    assert project.up(*first[1:]) == armed
    # The next one, as after a restart of the machine, does not say it again and keeps it.
    assert project.up() == armed
    replan = project.deployment("replan/replan")
    paths = {name: str(project.folder / f"{name}.yaml") for name in ("cluster", "workload")}
    assert replan.parameters == {"parameters": paths}
    ingest = project.deployment("ingest-stats/ingest-stats")
    assert ingest.parameters == {"parameters": {"cluster": paths["cluster"]}}

    with joined(project.url):
        emit_event(ATTAINMENT_LOW, {"prefect.resource.id": "poolpipe.pair"})
    pause = threading.Event()
    while not (runs := ended(project, replan.id)):
        pause.wait(0.5)
    (run,) = runs
    assert run.state.is_completed(), run.state
    work = Workspace(
        state=ProjectState(home=project.folder / "home"), warehouse=project.folder / "w.duckdb"
    )
    with work.open(read_only=True) as warehouse:
        rows = warehouse.rows("SELECT document FROM plans")
    documents = [json.loads(row["document"]) for row in rows]
    (made,) = [d for d in documents if d["plan_id"] != served.plan_id]
    assert made["options"] == dict(served.options) | {"previous": served.plan_id}

    assert project.up("--no-nightly") == []
    assert not (project.folder / "home/operations" / NIGHTLY_FILE).exists()  # nor the next time
    code, said = project.operations("status")
    assert code == 0, said
    assert [line for line in said.splitlines() if line.startswith("replan: ")] == [NO_NIGHTS]
    # A schedule that an operator made on the server.
    with joined(project.url), get_client(sync_client=True) as api:
        hourly = IntervalSchedule(interval=timedelta(hours=6))
        api.create_deployment_schedules(replan.id, [(hourly, True)])
        assert described() == ["replan: every 6:00:00"]


def ended(project: Project, deployment_id: Any) -> list[Any]:
    return [run for run in project.runs(deployment_id) if run.state.is_final()]


def test_options_that_do_not_go_together_are_one_line_before_anything_starts(
    project: Project,
) -> None:
    files = ("--cluster=cluster.yaml", "--workload=workload.yaml")
    cases = [
        (("up", f"--nightly={CRON}"), "--cluster, --workload: is missing"),
        (("up", *files), "--nightly: is missing"),
        (("status", *files, f"--nightly={CRON}"), "--nightly: goes with `up` alone"),
        (("up", *files, "--nightly=soon"), "--nightly 'soon': is no schedule"),
        (("up", files[0], "--workload=no.yaml", f"--nightly={CRON}"), f"{project.folder}/no.yaml"),
    ]
    for words, complaint in cases:
        code, said = project.operations(*words)
        lines = [line for line in said.splitlines() if not line.startswith("setup: ")]
        assert (code, len(lines)) == (1, 1), said
        assert lines[0].startswith(complaint)
    assert not (project.folder / "home/operations/worker.pid").exists()
