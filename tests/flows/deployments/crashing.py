"""A rollout in a process of its own that is killed at a step of its choosing."""

import multiprocessing
import os
import signal
from dataclasses import dataclass
from typing import Any

from flows.release.rollout import guarded as rollout
from flows.release.rollout.change import RolloutMode, Step
from flows.release.rollout.guarded import RolloutOptions
from flows.workspace import Workspace
from triton_backend.contract.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Right after a step was recorded, or after it was done and before that."""

    step: str
    recorded: bool


def kill_myself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def roll_out_and_die(work: Workspace, plan: Plan, moment: Moment) -> None:
    """Runs in the child; comes back only where the moment never came."""
    record: Any = rollout.record_step

    def recording(warehouse: Any, going: Any, step: str, *rest: Any) -> None:
        if step == moment.step and not moment.recorded:
            kill_myself()
        record(warehouse, going, step, *rest)
        if step == moment.step:
            kill_myself()

    rollout.record_step = recording
    way = RolloutMode.FLUSH if moment.step == Step.FLUSH else RolloutMode.IN_PLACE
    options = RolloutOptions(bake_seconds=0.0, way=way)
    rollout.roll_out(work, plan, options)


def crash(work: Workspace, plan: Plan, moment: Moment) -> None:
    """Roll out in a child that is killed at the moment; checks that it was."""
    # One server imports the code once; its children are cheap.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    child = context.Process(target=roll_out_and_die, args=(work, plan, moment))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL


# Emulated stages are not compared.
STEPS = tuple(str(step) for step in Step if step not in {Step.COMPARE, Step.ABORT})
