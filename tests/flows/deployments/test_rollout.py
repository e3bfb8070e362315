"""A rollout by a flow, on a real Prefect server: one that failed has failed."""

from pathlib import Path
from types import ModuleType

import pytest
from prefect import flow

from flows.deployments import replan, rollout
from flows.release.rollout.options import RolloutOptions
from flows.state import ProjectState
from flows.system_metrics import MetricsError
from flows.workspace import Workspace
from tests.fakes.plans import two_stages
from tests.flows.deployments.joined import joined

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("module", [rollout, replan], ids=lambda module: module.__name__)
def test_a_rollout_that_failed_is_not_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefect_url: str, module: ModuleType
) -> None:
    """A second one would find its plan in force, and call it done though it was not watched."""
    begun: list[str] = []

    def roll_out(*_: object) -> None:
        begun.append("a rollout")
        raise MetricsError("no metrics from h")

    monkeypatch.setattr(module, "roll_out", roll_out)
    work = Workspace(state=ProjectState(home=tmp_path), warehouse=tmp_path / "w.duckdb")

    @flow
    def only_this() -> None:
        module.bring_into_force(work, two_stages(), RolloutOptions())

    with joined(prefect_url), pytest.raises(MetricsError, match="no metrics from h"):
        only_this()
    assert begun == ["a rollout"]
