"""A rollout that halts at a step until it is released, so that a fault hits it there.

`halt_at` works in any process that rolls out; the flow here is what a Prefect worker starts.
"""

import os
import time
from pathlib import Path
from typing import Any

from prefect import flow

from flows.deployments.parameters import RolloutParameters
from flows.deployments.rollout import rollout as real_rollout
from flows.release.rollout import guarded as steps
from flows.release.rollout.outcomes import Outcomes

BAKE = "bake"
POLL_SECONDS = 0.005
GIVE_UP_POLLS = 60_000


def halt_at(step: str, folder: Path) -> None:
    """Halt right after a step was recorded, or where watching begins.

    `folder/reached` then holds the process's number; it goes on once `folder/go` is there.
    """
    record, bake = steps.record_step, steps.bake

    def recording(warehouse: Any, going: Any, name: str, *rest: Any) -> None:
        record(warehouse, going, name, *rest)
        if name == step:
            _halt(folder)

    def baking(*arguments: Any) -> tuple[dict[str, Outcomes], str | None]:
        if step == BAKE:
            _halt(folder)
        return bake(*arguments)

    steps.record_step, steps.bake = recording, baking


def _halt(folder: Path) -> None:
    if (folder / "reached").exists():
        return  # the former plan comes back by the same steps
    (folder / "reached.new").write_text(str(os.getpid()))
    (folder / "reached.new").rename(folder / "reached")
    _wait_for(folder / "go")


def _wait_for(path: Path) -> None:
    for _ in range(GIVE_UP_POLLS):
        if path.exists():
            return
        time.sleep(POLL_SECONDS)


@flow(name="rollout", timeout_seconds=600)
def rollout(parameters: RolloutParameters, step: str, folder: Path) -> dict[str, Any]:
    """The deployment's flow: begins once `folder/begin` is there, and halts."""
    halt_at(step, folder)
    (folder / "started").touch()
    _wait_for(folder / "begin")
    return real_rollout.fn(parameters)
