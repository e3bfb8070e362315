"""Import contracts hold, and each of them notices an import that it forbids."""

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.repository.files import ROOT, tracked_files

pytestmark = pytest.mark.slow
CONTRACTS: list[dict[str, Any]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"][
    "importlinter"
]["contracts"]
PACKAGES = ("flows", "triton_backend", "warehouse", "model_repo_templates")
COMMON = Path("triton_backend/contract/errors.py")
BREAKS = {  # contract: a file, and the line in it that breaks the contract
    "Everything points at the contract": (COMMON, "import triton_backend.scheduler.compiled"),
    "Inside the contract": (COMMON, "import triton_backend.contract.plan"),
    "The contract is not compiled": (COMMON, "import numba"),
    "Contract and scheduler do no I/O and read no clock": (COMMON, "import socket"),
    "Triton's own API enters through one file": (COMMON, "import triton_python_backend_utils"),
    "DuckDB enters through the warehouse": (COMMON, "import duckdb"),
    "TensorRT enters through one file": (COMMON, "import tensorrt_rtx"),
    "Solvers enter through one folder": (COMMON, "import highspy"),
    "Prefect stays in flows.deployments": (COMMON, "import prefect"),
    "The client imports nothing of the product": (
        Path("triton_backend/client/decide.py"),
        "import triton_backend.contract.units",
    ),
    "No cycles anywhere": (COMMON, "import triton_backend.contract.plan"),
    "Inside the scheduler": (
        Path("triton_backend/scheduler/compiled.py"),
        "import triton_backend.scheduler.scheduler",
    ),
    "Inside serving": (
        Path("triton_backend/serving/transport/__init__.py"),
        "import triton_backend.serving.front",
    ),
    "Serving knows neither the warehouse nor the simulator": (
        Path("triton_backend/serving/transport/__init__.py"),
        "import triton_backend.simulator.run",
    ),
    "Inside flows": (Path("flows/clock.py"), "import flows.files"),
    "Flows never load the online code": (Path("flows/clock.py"), "import triton_backend.serving"),
    "OpenTelemetry enters through one file": (
        Path("flows/clock.py"),
        "import opentelemetry",
    ),
    "Only the builder and the runtime of TensorRT use that file": (
        Path("flows/clock.py"),
        "import triton_backend.runtimes.tensorrt.library",
    ),
    "Planners that are only compared with are imported by nothing": (
        Path("flows/planning/api.py"),
        "import flows.planning.papers.symphony.nexus",
    ),
    "Policies of papers are loaded by name alone": (
        Path("triton_backend/simulator/run.py"),
        "import triton_backend.simulator.papers.triton",
    ),
    "The planning engine knows no model and no GPU": (
        Path("flows/planning/engine/columns.py"),
        "import flows.planning.inputs",
    ),
    "Planning opens no ONNX model": (COMMON, "import onnx"),
    "Thin flows do not know each other": (
        Path("flows/deployments/plan.py"),
        "import flows.deployments.ingest",
    ),
}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the product and its contracts, to be broken."""
    copy = tmp_path_factory.mktemp("tree")
    shutil.copy(ROOT / "pyproject.toml", copy)
    for path in tracked_files():
        if path.parts[0] in PACKAGES and path.suffix == ".py":
            (copy / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, copy / path)
    return copy


def verdicts(folder: Path) -> set[str]:
    """The contracts that are broken in a folder."""
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--cache-dir", folder / "cache"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    broken = {
        contract["name"] for contract in CONTRACTS if f"{contract['name']} BROKEN" in done.stdout
    }
    assert (done.returncode == 0) == (not broken), done.stdout + done.stderr
    return broken


def test_the_tree_keeps_them(tree: Path) -> None:
    assert verdicts(tree) == set()


def test_every_contract_is_broken_once_below() -> None:
    assert {contract["name"] for contract in CONTRACTS} == set(BREAKS)


def test_the_engine_s_contract_names_all_of_planning_but_what_it_may_import() -> None:
    name = "The planning engine knows no model and no GPU"
    forbidden = next(one for one in CONTRACTS if one["name"] == name)["forbidden_modules"]
    planning = [
        path.parts[2:] for path in tracked_files() if path.parts[:2] == ("flows", "planning")
    ]
    known = {parts[0].removesuffix(".py") for parts in planning if parts[-1].endswith(".py")}
    allowed = {"__init__", "arrays", "engine", "solver", "watch"}
    named = {module.removeprefix("flows.planning.") for module in forbidden}
    assert {module for module in named if "." not in module} >= known - allowed


@pytest.mark.parametrize("name", BREAKS)
def test_an_import_that_a_contract_forbids_is_noticed(tree: Path, name: str) -> None:
    file, line = BREAKS[name]
    kept = (tree / file).read_text()
    (tree / file).write_text(f"{kept}\n{line}\n")
    try:
        assert name in verdicts(tree)
    finally:
        (tree / file).write_text(kept)
