"""Changes of plan as a fault.

One at a time by `injection`, one every so many seconds beside others by `soak`. The next plan
serves the same models with the same answers: pipelines of two stages are cut a block away, and back
again; the SLO of an application changes by a millisecond, for which its jobs in flight must not be
lost silently.
"""

import contextlib
import threading
import time
from collections.abc import Generator
from dataclasses import replace
from typing import Any

from flows.clock import Stopwatch
from flows.release.rollout.change import change_plan, finish_or_undo_change
from flows.release.rollout.generations import plan_in_force
from scripts.benchmarks.served import Served
from triton_backend.contract.applications import ApplicationPlan
from triton_backend.contract.errors import PoolPipeError
from triton_backend.contract.plan import ModelPlan, Pipeline, Plan

SLO_STEP_US = 1_000
TWO = 2  # stages


def following(plan: Plan, number: int) -> Plan:
    """The plan of that number.

    Of even ones the cut is that of `plan`, of odd ones a block before it.
    """
    shift = number % 2

    def pipeline(old: Pipeline) -> Pipeline:
        if len(old.stages) != TWO:
            return old
        first, last = old.stages
        cut = first.blocks[1] - shift
        stages = (
            replace(first, blocks=(first.blocks[0], cut)),
            replace(last, blocks=(cut, last.blocks[1])),
        )
        return replace(old, stages=stages)

    def model(old: ModelPlan) -> ModelPlan:
        return replace(old, pipelines=tuple(map(pipeline, old.pipelines)))

    def application(old: ApplicationPlan) -> ApplicationPlan:
        slo_us = old.application.slo_us + shift * SLO_STEP_US
        return replace(old, application=replace(old.application, slo_us=slo_us))

    applications = tuple(map(application, plan.applications))
    workload = replace(plan.workload, applications=tuple(a.application for a in applications))
    return replace(
        plan,
        plan_id=f"{plan.plan_id}-{number}",
        workload=workload,
        models=tuple(map(model, plan.models)),
        applications=applications,
    )


def change(served: Served) -> float:
    """Bring the plan after the one in force into force; the seconds it took.

    Raises:
        PoolPipeError: it was taken back.
    """
    in_force = plan_in_force(served.folder).plan_id
    before = in_force.removeprefix(served.plan.plan_id).removeprefix("-")
    return change_plan(served.folder, following(served.plan, int(before or 0) + 1)).seconds


class Changes(threading.Thread):
    """A change of plan every so many seconds, until it is ended; `rows` has what became of each.

    What a fault interrupts is finished or undone, as the next rollout would do it.
    """

    def __init__(self, served: Served, seconds: float) -> None:
        super().__init__(daemon=True)
        self._served = served
        self._seconds = seconds
        self._over = threading.Event()
        self._changing = threading.Lock()
        self.rows: list[dict[str, Any]] = []

    def run(self) -> None:
        """Change until it is ended."""
        watch = Stopwatch()
        while not self._over.wait(max(self._seconds - watch.seconds(), 0)):
            watch = Stopwatch()
            with self._changing:
                self.rows.append(self._one())

    def _one(self) -> dict[str, Any]:
        row: dict[str, Any] = {"at_us": time.monotonic_ns() // 1000}
        try:
            row["seconds"] = change(self._served)
        except (PoolPipeError, OSError) as error:
            row["failed"] = str(error)
            with contextlib.suppress(PoolPipeError, OSError):
                finish_or_undo_change(self._served.folder)
        return row

    @contextlib.contextmanager
    def paused(self) -> Generator[None]:
        """None is under way while the context lasts."""
        with self._changing:
            yield

    def end(self) -> None:
        """Change no more; returns when the last one is over."""
        self._over.set()
        self.join()
