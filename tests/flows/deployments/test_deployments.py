"""Names in `prefect.yaml` exist, and nothing it starts is lost silently."""

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.deployments.parameters import MOST_NIGHTLY_BAKE_S
from flows.deployments.replan import replan_flow

ROOT = Path(__file__).parents[3]
DEPLOYMENTS: list[dict[str, Any]] = yaml.safe_load((ROOT / "prefect.yaml").read_text())[
    "deployments"
]
# A rollout lasts as long as its options and the rollouts before it say.
UNLIMITED = {"rollout"}
DAY_S = 24 * 3600


@pytest.mark.long
@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda d: d["name"])
def test_a_deployment_names_a_flow_with_typed_parameters_and_a_limit_unless_it_rolls_out(
    deployment: dict[str, Any],
) -> None:
    path, _, name = deployment["entrypoint"].partition(":")
    flow = getattr(importlib.import_module(path.removesuffix(".py").replace("/", ".")), name)
    assert flow.name == deployment["name"]
    assert (flow.timeout_seconds is None) == (flow.name in UNLIMITED)
    (parameter,) = flow.parameters.properties.values()
    assert parameter["title"] == "parameters"
    given = deployment.get("parameters")
    fields = flow.fn.__annotations__["parameters"].model_fields.values()
    # The server refuses a run without them.
    assert given is not None or any(field.is_required() for field in fields)
    if given is not None:
        flow.validate_parameters(given)


@pytest.mark.long
def test_a_night_that_hangs_ends_before_the_next_one() -> None:
    assert (replan_flow.timeout_seconds or DAY_S) < DAY_S
    assert (replan_flow.timeout_seconds or 0) > MOST_NIGHTLY_BAKE_S


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda d: d["name"])
def test_runs_beyond_the_limit_wait_instead_of_being_cancelled(deployment: dict[str, Any]) -> None:
    limit = deployment["concurrency_limit"]
    assert (limit["limit"], limit["collision_strategy"]) == (1, "ENQUEUE")


def test_a_schedule_states_its_time_zone() -> None:
    schedules = [s for d in DEPLOYMENTS for s in d.get("schedules", ()) if "cron" in s]
    assert schedules
    assert all(schedule["timezone"] for schedule in schedules)


@pytest.mark.slow
def test_a_flow_that_makes_no_plans_starts_without_what_makes_them() -> None:
    """`ingest-stats` runs every few minutes, each time in a process of its own."""
    code = (
        "import sys; from flows.deployments import parameters;"
        "from flows.operations.ingest import reader; from flows.operations.replanning import "
        "conditions;"
        "sys.exit(','.join({'numba', 'highspy', 'scipy', 'onnx', 'flows.planning.registry'} & "
        "set(sys.modules)) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
