"""Workloads that are served are replanned from measurements and as their load goes, under load."""

import json
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from flows.clock import now_utc
from flows.planning import PlanOptions
from flows.planning.stored_plans import plan_step
from flows.release.rollout.generations import plan_in_force
from flows.release.server import admin
from flows.release.server.running import ServerState, read_state
from flows.state import ProjectState
from flows.workspace import Workspace
from tests.fakes.minutes import model_minute
from tests.flows.deployments.joined import joining
from tests.flows.deployments.test_local import POOLPIPE, ROOT
from tests.flows.planning.small import cluster
from tests.flows.release.server.test_running import Client
from tests.ports import free_ports
from tests.triton_backend.serving.served_applications import right_answers
from tests.triton_backend.serving.system import wait_for
from triton_backend.contract.plan import Plan
from triton_backend.contract.profiles import ModelProfile, loaded
from triton_backend.contract.workload import Workload
from triton_backend.scheduler.policies.demand import planned_rates
from triton_backend.serve_folder.endpoints import Endpoints
from triton_backend.serve_folder.repository import render_repository, used_nodes
from triton_backend.serve_folder.settings import ServeOptions, ServeSettings
from triton_backend.serving.deployment import Deployment
from triton_backend.serving.transport.shared_memory import Arrays
from warehouse.observations import EntryMinute, ModuleMinute, StatisticsFile, add_statistics
from warehouse.profiles import import_profile

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
TRAFFIC: dict[str, Any] = {
    "name": "traffic",
    "slo_ms": 1200,
    "rate_rps": 5,
    "modules": [
        {"name": "detect", "model": "net"},
        {
            "name": "cars",
            "model": "sub",
            "after": ["detect"],
            "rows_per_request": 0.5,
            "max_rows": 4,
        },
        {"name": "again", "model": "net", "after": ["detect"]},
    ],
    "outputs": {"boxes": "detect.output", "car": "cars.output", "all": "again.output"},
}
MEASURED_RPS, MEASURED_ROWS = 60, 1.5
CLIENTS = AT_LEAST = 3
PAUSE_S = 0.3  # of a client between two jobs: all of them ask what the first plan serves
RARELY_S = 5.0  # far less, for which a plan takes fewer GPUs
PATIENT_US = 10_000_000


def uneven(name: str) -> ModelProfile:
    """A model whose first half a slow GPU runs nearly as fast as a dear one, and the rest not."""
    batches = np.array([1.0, 1.5, 2.0, 2.5])
    latency_us = np.outer([10_000.0, 10_000.0], batches)
    slow = latency_us * np.array([[1.2], [8.0]])
    tables = {("fast", 1): latency_us, ("slow", 1): slow}
    return ModelProfile(name=name, boundary_bytes=(1000,), tables=loaded(tables))


@dataclass(frozen=True, slots=True)
class Project:
    """A folder with a warehouse, in which an application is planned and served."""

    folder: Path
    environment: dict[str, str]

    @property
    def work(self) -> Workspace:
        state = ProjectState(home=self.folder / "home")
        return Workspace(state=state, warehouse=self.folder / "w.duckdb")

    @property
    def state(self) -> ServerState:
        return read_state(self.work.state.serve)

    def run(self, *words: str) -> Any:
        """The object printed by `poolpipe … --json`."""
        done = subprocess.run(
            [POOLPIPE, *words, "--json"],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def deployment(self, generation: int) -> Deployment:
        serve = self.work.state.serve
        return Deployment.read(ServeSettings.read(serve / "settings.json"), generation)


def served(
    folder: Path, url: str, asked: dict[str, Any], options: PlanOptions
) -> Iterator[Project]:
    """A workload, planned and served on eight dear GPUs and eight slow ones."""
    made = Project(folder, joining(folder, url))
    with made.work.open() as warehouse:
        for name in ("net", "sub", "plain", "tails"):
            import_profile(warehouse, uneven(name), "by hand", now_utc())
    prices = cluster(8, 8, fast_hourly_cost=2.0, slow_hourly_cost=0.5)
    (folder / "cluster.yaml").write_text(yaml.safe_dump(prices.to_dict()))
    (folder / "workload.yaml").write_text(yaml.safe_dump(asked, sort_keys=False))
    plan = plan_step(made.work, prices, Workload.from_dict(asked), options).plan
    serve = made.work.state.serve
    # The jobs of few clients fill no batch, and wait for others for a fifth of their time.
    render_repository(serve, plan, ServeOptions(guard_fraction=0.4))
    http, grpc, metrics = free_ports(3)
    try:
        admin.start(serve, Endpoints(http=http, grpc=grpc, metrics=metrics))
        yield made
    finally:
        admin.stop(serve)


@pytest.fixture
def project(tmp_path: Path, prefect_url: str) -> Iterator[Project]:
    """Served by a plan of whole models for five requests/s."""
    options = PlanOptions(objective="cost", max_partitions=1, own={"gathering": "fixed"})
    yield from served(tmp_path, prefect_url, {"applications": [TRAFFIC]}, options)


ENTRIES: list[dict[str, Any]] = [
    {"name": "whole", "block": 0, "budget_ms": 600, "rate_rps": 5},
    {"name": "last", "block": 1, "budget_ms": 500, "rate_rps": 5},
]
ALL_KINDS: dict[str, Any] = {
    "models": [
        {"name": "plain", "slo_ms": 800, "rate_rps": 5},
        {"name": "tails", "slo_ms": 800, "entries": ENTRIES},
    ],
    "applications": [TRAFFIC],
}


@pytest.fixture
def all_kinds(tmp_path: Path, prefect_url: str) -> Iterator[Project]:
    """A model, a model with entries and an application, each for five requests/s."""
    options = PlanOptions(objective="cost", max_partitions=1)
    yield from served(tmp_path, prefect_url, ALL_KINDS, options)


def measured(work: Workspace) -> None:
    """Five minutes at more requests, of more rows each, than were foreseen."""
    now = now_utc().replace(second=0, microsecond=0)
    minutes = [now - timedelta(minutes=ago) for ago in range(1, 6)]
    jobs = 60 * MEASURED_RPS
    models = [model_minute(minute, jobs, model="traffic") for minute in minutes]
    modules = [
        ModuleMinute(
            instance="i",
            application="traffic",
            module="cars",
            minute=minute,
            plan_id="any",
            samples=jobs,
            rows=round(jobs * MEASURED_ROWS),
        )
        for minute in minutes
    ]
    with work.open() as warehouse:
        add_statistics(
            warehouse, StatisticsFile(path="f", digest="1", models=models, modules=modules), now
        )


@dataclass(slots=True)
class Load:
    """Clients that ask one job after the other, and what they were answered."""

    state: ServerState
    form: dict[str, int]
    answers: list[tuple[Arrays, Arrays]] = field(default_factory=list[tuple[Arrays, Arrays]])
    over: threading.Event = field(default_factory=threading.Event)
    pause_s: float = PAUSE_S

    def ask(self, seed: int) -> None:
        """Until it is over; whatever is refused or lost raises."""
        rng = np.random.default_rng(seed)
        client = Client(self.state, "grpc")
        try:
            while not self.over.wait(self.pause_s):
                given: Arrays = {
                    name: rng.integers(0, 256, (1, size)).astype(np.uint8)
                    for name, size in self.form.items()
                }
                answer = client.infer("traffic", given, timeout=PATIENT_US)
                got: Arrays = {name: answer.as_numpy(name) for name in TRAFFIC["outputs"]}
                self.answers.append((given, got))
        finally:
            client.close()

    def more(self) -> None:
        """Return once some more were answered."""
        known = len(self.answers)
        wait_for(lambda: self.over.is_set() or len(self.answers) >= known + AT_LEAST)


@contextmanager
def loaded_by_clients(project: Project, pause_s: float = PAUSE_S) -> Generator[Load]:
    """A system under load from the first answers on; in the end none was refused."""
    form = {spec.name: spec.shape[1] for spec in project.deployment(1).served["traffic"].inputs}
    load = Load(project.state, form, pause_s=pause_s)
    with ThreadPoolExecutor(CLIENTS) as threads:
        asked = [threads.submit(load.ask, seed) for seed in range(CLIENTS)]
        try:
            load.more()
            yield load
        finally:
            load.over.set()
        for one in asked:
            one.result()


def runs_of(plan: Plan) -> set[tuple[Any, ...]]:
    """Of every pipeline its batch, cuts and pools."""
    pools = {pool.name: (pool.gpu_class, pool.share, pool.vgpus) for pool in plan.pools}
    return {
        (model.name, p.batch, *((s.blocks, *pools[s.pool]) for s in p.stages))
        for model in plan.models
        for p in model.pipelines
    }


def test_jobs_in_flight_outlive_a_replan_and_the_way_back(project: Project) -> None:
    first = project.deployment(1)
    with loaded_by_clients(project) as load:
        measured(project.work)
        files = ("--cluster", "cluster.yaml", "--workload", "workload.yaml")
        found = project.run("replan", *files, "--max-partitions", "2", "--bake-seconds", "0")
        assert (found["roll_out"], found["outcome"]) == (True, "done"), found
        after = plan_in_force(project.work.state.serve)
        assert after.plan_id == found["plan_id"]
        load.more()
        back = project.run("rollout", "--rollback", "--bake-seconds", "0")
        assert back["plan_id"] == first.plan.plan_id
        load.more()
    second = project.deployment(2)
    assert second.plan.plan_id == found["plan_id"]
    assert not runs_of(first.plan) & runs_of(second.plan)
    assert any(len(p.stages) > 1 for m in second.plan.models for p in m.pipelines)
    assert set(used_nodes(second.plan)) - set(used_nodes(first.plan))  # they come and leave
    cars = second.plan.applications[0].application.module("cars")
    assert cars.rows_per_request == pytest.approx(MEASURED_ROWS)
    for given, got in load.answers:
        ways = right_answers([first, second], "traffic", given)
        assert any(all(np.array_equal(got[name], way[name]) for name in way) for way in ways), (
            given,
            got,
        )
    wait_for(lambda: jobs_and_slots(project.state) == 0)


NIGHT = """
import json
import sys
from flows.deployments.parameters import ReplanParameters
from flows.deployments.replan import replan_flow
print(json.dumps(replan_flow(ReplanParameters.model_validate_json(sys.argv[1]))))
"""


def flow(project: Project, code: str, **given: Any) -> "subprocess.CompletedProcess[str]":
    """A flow with these parameters, in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", code, json.dumps(given)],
        cwd=ROOT,
        env=project.environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_one_night_replans_models_entries_and_applications(all_kinds: Project) -> None:
    work = all_kinds.work
    now = now_utc().replace(second=0, microsecond=0)
    minutes = [now - timedelta(minutes=ago) for ago in range(1, 6)]
    asked = 60 * MEASURED_RPS
    models = [
        model_minute(minute, asked, model=name)
        for minute in minutes
        for name in ("traffic", "plain")
    ]
    entries = [
        EntryMinute(
            instance="i",
            model="tails",
            entry=one["name"],
            block=one["block"],
            budget_us=1000 * one["budget_ms"],
            minute=minute,
            plan_id="any",
            offered=asked,
        )
        for minute in minutes
        for one in ENTRIES
    ]
    with work.open() as warehouse:
        rows = StatisticsFile(path="f", digest="1", models=models, entries=entries)
        add_statistics(warehouse, rows, now)
    files = {name: str(all_kinds.folder / f"{name}.yaml") for name in ("cluster", "workload")}
    done = flow(all_kinds, NIGHT, bake_seconds=0, **files)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["roll_out"], found["outcome"]) == (True, "done"), found
    plan = plan_in_force(work.state.serve)
    assert plan.plan_id == found["plan_id"]
    names = ("traffic", "plain", "tails/whole", "tails/last")
    wanted = dict.fromkeys(names, pytest.approx(1.1 * MEASURED_RPS))
    assert found["forecast_rps"] == wanted
    planned = planned_rates(plan)
    assert min(planned[name] for name in names) >= 1.1 * MEASURED_RPS * (1 - 1e-6)


LOOP = """
import sys
from flows.deployments.loops import autoscale
from flows.deployments.parameters import AutoscaleParameters
print(autoscale(AutoscaleParameters.model_validate_json(sys.argv[1]))["plan_id"])
"""


def test_a_run_of_autoscale_logs_its_decisions_and_brings_plans(project: Project) -> None:
    first = project.deployment(1)
    with loaded_by_clients(project, RARELY_S):
        done = flow(project, LOOP, period=5, periods=2, hours=1)
    assert done.returncode == 0, done.stderr
    plan = plan_in_force(project.work.state.serve)
    assert done.stdout.split()[-1] == plan.plan_id != first.plan.plan_id
    assert plan.attained is not None
    assert len([line for line in done.stderr.splitlines() if "traffic" in line]) == 2, done.stderr


def jobs_and_slots(state: ServerState) -> float:
    """Jobs in hand and slots for retained outputs taken."""
    with urllib.request.urlopen(state.metrics_url) as answer:
        lines = answer.read().decode().splitlines()
    wanted = ("poolpipe_jobs", "poolpipe_retained_output_slots")
    return sum(
        float(line.split()[-1]) for line in lines if line.partition("{")[0].split(" ")[0] in wanted
    )
