"""Everything against a Prefect server that another project started: nothing here starts one."""

import platform
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect.client.orchestration import get_client
from prefect.deployments import run_deployment

from flows.deployments import whatif as module
from flows.deployments.parameters import WhatIfParameters
from flows.deployments.whatif import task_runner
from tests.flows.cli.prepare.test_interference import write_tables
from tests.flows.deployments.joined import joined, joining
from tests.flows.preparation.splitting.tiny_models import residual_net
from triton_backend.contract.errors import InputError
from warehouse.db import open_warehouse
from warehouse.details import whatif_rows
from warehouse.profiles import model_names, read_interference

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[3]
CLASSES = {"fast": 1, "slow": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """A project that joined a server."""

    folder: Path
    url: str
    environment: dict[str, str]

    @property
    def warehouse(self) -> Path:
        return self.folder / "w.duckdb"

    def operations(self, *words: str) -> str:
        done = subprocess.run(
            [ROOT / "scripts/operations", *words],
            env=self.environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    def run(self, deployment: str, **parameters: Any) -> Any:
        """A deployment, by its worker, to the end."""
        given = {"warehouse": str(self.warehouse), **parameters}
        with joined(self.url):
            return run_deployment(deployment, parameters={"parameters": given}, poll_interval=0.5)

    def files(self) -> dict[str, str]:
        return {name: str(self.folder / f"{name}.yaml") for name in ("cluster", "workload")}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, prefect_url: str) -> Iterator[Project]:
    folder = tmp_path_factory.mktemp("shared")
    made = Project(folder=folder, url=prefect_url, environment=joining(folder, prefect_url))
    try:
        made.operations("up", *(f"--class={name}" for name in CLASSES))
        yield made
    finally:
        made.operations("down")


@pytest.fixture(scope="module")
def prepared(project: Project) -> Any:
    """A tiny model measured on two classes that share a core, each by its own worker."""
    residual_net(project.folder / "tiny.onnx")
    cluster = {
        "gpu_classes": {
            name: {"vgpu_divisors": [1], "runtime": {"cores": [0], "stretch": stretch}}
            for name, stretch in CLASSES.items()
        },
        "nodes": [{"count": 1, "gpu_class": n, "gpus": 2, "nic_gbps": 10} for n in CLASSES],
    }
    workload = {"models": [{"name": "tiny", "slo_ms": 500}]}
    for name, content in (("cluster", cluster), ("workload", workload)):
        (project.folder / f"{name}.yaml").write_text(yaml.safe_dump(content))
    return project.run(
        "prepare-model/prepare-model",
        model=str(project.folder / "tiny.onnx"),
        name="tiny",
        cluster=project.files()["cluster"],
        blocks=2,
        max_batch=2,
    )


def test_no_server_is_started_where_one_is_named(project: Project) -> None:
    said = project.operations("status")
    assert "server" not in said
    assert not (project.folder / "home/operations/server.pid").exists()
    assert "profile-class/slow in gpu-slow" in said


def test_every_class_is_measured_by_a_worker_of_its_own_pool(
    project: Project, prepared: Any
) -> None:
    assert prepared.state.is_completed(), prepared.state
    with joined(project.url), get_client(sync_client=True) as client:
        runs = client.read_flow_runs()
    pools = {run.work_pool_name for run in runs}
    assert pools == {"poolpipe", *(f"gpu-{name}" for name in CLASSES)}
    with open_warehouse(project.warehouse, read_only=True) as warehouse:
        rows = warehouse.rows("SELECT gpu_class, count(*) AS cells FROM cells GROUP BY ALL")
    assert {row["gpu_class"]: row["cells"] for row in rows} == dict.fromkeys(CLASSES, 4)


def test_two_classes_are_never_measured_on_one_core_at_a_time(
    project: Project, prepared: Any
) -> None:
    del prepared
    spans: list[tuple[Any, Any]] = []
    for name in CLASSES:
        with open_warehouse(project.folder / f"home/profiling/{name}.duckdb") as warehouse:
            (span,) = warehouse.rows(
                "SELECT min(measured_at) AS a, max(measured_at) AS b FROM cells"
            )
        spans.append((span["a"], span["b"]))
    (_, first_end), (second_begin, _) = sorted(spans)
    assert first_end < second_begin
    with joined(project.url), get_client(sync_client=True) as client:
        limit = client.read_global_concurrency_limit_by_name(f"cpu:{platform.node()}:0")
    assert (limit.limit, limit.active_slots) == (1, 0)


def test_flows_that_write_at_the_same_time_take_turns_and_none_is_cancelled(
    project: Project, prepared: Any
) -> None:
    del prepared
    files = project.files()
    asked: Sequence[tuple[str, dict[str, Any]]] = [
        ("plan/plan", files),
        ("plan/plan", {**files, "slo_margin": 0.3}),
        ("ingest-stats/ingest-stats", {}),
        ("prune/prune", {}),
        (
            "whatif/whatif",
            {**files, "vary": "margin", "values": [0.2, 0.4], "runner": "dask", "workers": 1},
        ),
    ]
    with ThreadPoolExecutor(len(asked)) as pool:
        going = [pool.submit(project.run, name, **given) for name, given in asked]
        runs = [each.result() for each in going]
    assert [run.state.type for run in runs] == ["COMPLETED"] * len(asked), runs
    with open_warehouse(project.warehouse, read_only=True) as warehouse:
        assert len(warehouse.rows("SELECT plan_id FROM plans")) == 2
        (swept,) = warehouse.rows("SELECT run_id FROM runs WHERE kind = 'whatif'")
        assert len(whatif_rows(warehouse, swept["run_id"])) == 2


def test_tables_are_imported_and_fitted_and_loops_refuse_where_nothing_is_served(
    project: Project,
) -> None:
    tables = project.folder / "tables"
    write_tables(tables, 1.2)
    loops = ("autoscale", "steer")
    with ThreadPoolExecutor(len(loops)) as pool:
        going = [pool.submit(project.run, f"{name}/{name}", hours=1) for name in loops]
        run = project.run("import-profiles/import-profiles", folder=str(tables))
        assert run.state.is_completed(), run.state
        run = project.run("fit-interference/fit-interference", gpu_class="G", robust=True)
        assert run.state.is_completed(), run.state
    with open_warehouse(project.warehouse, read_only=True) as warehouse:
        assert {"a", "b", "c", "d"} <= set(model_names(warehouse))
        (fitted,) = read_interference(warehouse).items()
    assert fitted[0] == "G"
    assert fitted[1].c4_dram_other == pytest.approx(0.5)
    for each in going:
        run = each.result()
        assert run.state.is_failed()
        assert "nothing is being served from here" in run.state.message


def test_dask_where_it_is_not_installed_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(_name: str) -> None:
        return None

    monkeypatch.setattr(module, "find_spec", nothing)
    asked = WhatIfParameters(
        cluster=Path("c"), workload=Path("w"), vary="margin", values=[0.1], runner="dask"
    )
    with pytest.raises(InputError, match=r"poolpipe\[dask\]"):
        task_runner(asked)
