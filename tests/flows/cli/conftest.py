"""A project folder with a small cluster, workload and warehouse, and the command line in it."""

import json
from collections.abc import Callable
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
    """What a command line did."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The one JSON object on stdout."""
        return json.loads(self.out)


Command = Callable[..., Ran]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project; the current folder."""
    monkeypatch.chdir(tmp_path)
    for name in ("POOLPIPE_HOME", "POOLPIPE_WAREHOUSE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "160")
    (tmp_path / "cluster.yaml").write_text(yaml.safe_dump(cluster().to_dict()))
    (tmp_path / "workload.yaml").write_text(yaml.safe_dump(workload().to_dict()))
    return tmp_path


@pytest.fixture
def profiled(project: Path) -> Path:
    """A project whose warehouse has the profile of `net`."""
    with open_warehouse(project / "poolpipe.duckdb") as warehouse:
        import_profile(warehouse, profile(), "test", NOW)
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
def planned(profiled: Path, poolpipe: Command) -> Path:
    """A project with `plan.json`, stored too."""
    ran = poolpipe(*PLAN, "-o", "plan.json")
    assert ran.code == 0, ran.err
    return profiled / "plan.json"


PLAN = ("plan", "--cluster", "cluster.yaml", "--workload", "workload.yaml")
