"""A project folder with a small cluster, workload and warehouse, and the command line in it."""

import json
import shutil
from collections.abc import Callable
from contextlib import chdir
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.cli.main import run
from tests.flows.planning.small import cluster, profile, workload
from warehouse.db import open_warehouse
from warehouse.profiles import import_profile

NOW = datetime(2026, 11, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Ran:
    """The result of a command line."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The one JSON object on stdout."""
        return json.loads(self.out)


Command = Callable[..., Ran]


def giving(value: object) -> Callable[..., object]:
    """A function that returns this, whatever it is asked."""

    def given(*_: object) -> object:
        return value

    return given


WAREHOUSE, PLAN_FILE = "poolpipe.duckdb", "plan.json"
PLAN = ("plan", "--cluster", "cluster.yaml", "--workload", "workload.yaml")


def write_inputs(folder: Path) -> None:
    """A cluster and a workload file."""
    (folder / "cluster.yaml").write_text(yaml.safe_dump(cluster().to_dict()))
    (folder / "workload.yaml").write_text(yaml.safe_dump(workload().to_dict()))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project; the current folder."""
    monkeypatch.chdir(tmp_path)
    for name in ("POOLPIPE_HOME", "POOLPIPE_WAREHOUSE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "160")
    write_inputs(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def profiled_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project that `profiled` copies."""
    folder = tmp_path_factory.mktemp("profiled")
    with open_warehouse(folder / WAREHOUSE) as warehouse:
        import_profile(warehouse, profile(), "test", NOW)
    return folder


@pytest.fixture(scope="session")
def planned_once(profiled_once: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project that `planned` copies."""
    folder = tmp_path_factory.mktemp("planned")
    write_inputs(folder)
    shutil.copy(profiled_once / WAREHOUSE, folder)
    with chdir(folder):
        assert run([*PLAN, "-o", PLAN_FILE]) == 0
    return folder


@pytest.fixture
def profiled(project: Path, profiled_once: Path) -> Path:
    """A project whose warehouse has the profile of `net`."""
    shutil.copy(profiled_once / WAREHOUSE, project)
    return project


@pytest.fixture
def poolpipe(project: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs one command line in the project."""
    del project

    def execute(*arguments: str) -> Ran:
        capsys.readouterr()
        code = run(list(arguments))
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return execute


@pytest.fixture
def planned(project: Path, planned_once: Path) -> Path:
    """A project with `plan.json`, stored too."""
    for name in (WAREHOUSE, PLAN_FILE):
        shutil.copy(planned_once / name, project)
    return project / PLAN_FILE
