"""Compiling the core's kernels before the first request needs them.

The first use of a compiled kernel takes 0.1 s (from the cache on disk) to 10 s (without). A scheduler
of its own is led through every kind of event, so that the real one never waits for a compiler.
"""

from triton_backend.core.decisions import Decision, Dispatch
from triton_backend.core.events import (
    Arrival,
    Cancel,
    Event,
    Pause,
    PlanChanged,
    Resume,
    StageDone,
    Timer,
    TransferDone,
    WorkerBack,
    WorkerLost,
)
from triton_backend.core.plan import Plan
from triton_backend.core.scheduler import Scheduler


def warm_up(plan: Plan, *, policy: str, nic: str) -> None:
    """Lead a scheduler through a short life: a batch served, one aborted, a plan changed."""
    scheduler = Scheduler(plan, policy=policy, nic=nic)
    slo_us = plan.models[0].slo_us

    def tell(event: Event) -> list[Decision]:
        return scheduler.handle(event)

    def arrive(number: int, now_us: int) -> list[Decision]:
        return tell(
            Arrival(now_us=now_us, request_id=number, model=0, deadline_us=now_us + 2 * slo_us)
        )

    tell(WorkerLost(now_us=0, vgpu=0))
    tell(WorkerBack(now_us=0, vgpu=0))
    arrive(0, 1)
    tell(Cancel(now_us=2, request_id=0))
    now_us, number, served = 2, 1, False
    while not served:
        now_us, number = now_us + 1, number + 1
        for decision in arrive(number, now_us):
            if isinstance(decision, Dispatch):
                served = True
                _serve(scheduler, decision, now_us)
    now_us = 4 * slo_us
    tell(Timer(now_us=now_us))
    tell(Pause(now_us=now_us))
    tell(Resume(now_us=now_us))
    for vgpu in range(len(plan.vgpus())):
        tell(WorkerLost(now_us=now_us, vgpu=vgpu))
    arrive(number + 1, now_us)
    tell(PlanChanged(now_us=now_us, plan=plan))


def _serve(scheduler: Scheduler, dispatch: Dispatch, now_us: int) -> None:
    for stage in range(len(dispatch.hops)):
        if stage:
            scheduler.handle(
                TransferDone(
                    now_us=now_us,
                    batch_id=dispatch.batch_id,
                    stage=stage,
                    start_us=now_us,
                    end_us=now_us,
                )
            )
        scheduler.handle(
            StageDone(
                now_us=now_us,
                batch_id=dispatch.batch_id,
                stage=stage,
                start_us=now_us,
                end_us=now_us,
            )
        )
