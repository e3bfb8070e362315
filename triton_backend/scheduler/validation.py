"""Whether what the scheduler is told can be so; checked before anything changes.

Here: complaints about events that name what is unknown or impossible. Not here: what an event does.
"""

from triton_backend.contract.errors import InputError
from triton_backend.contract.events import (
    Arrival,
    LinkPaceChanged,
    PaceChanged,
    StageDone,
    TransferDone,
)
from triton_backend.contract.plan import Plan
from triton_backend.scheduler.tables import Tables


def check_arrival(plan: Plan, event: Arrival) -> None:
    """A request of a model there is, with samples.

    Raises:
        InputError: it is not.
    """
    if not 0 <= event.model < len(plan.models):
        raise InputError(f"request {event.request_id}", f"no model number {event.model}")
    if event.samples < 1:
        raise InputError(f"request {event.request_id}", f"{event.samples} samples")


def check_report(event: StageDone | TransferDone, stages: int) -> None:
    """A stage (or the way into one) of a batch of `stages`, over by the time it is told.

    Raises:
        InputError: it is not.
    """
    if not 0 <= event.stage < stages:
        raise InputError(f"batch {event.batch_id}", f"has no stage {event.stage}")
    if not event.start_us <= event.end_us <= event.now_us:
        raise InputError(
            f"batch {event.batch_id}",
            f"ran from {event.start_us} to {event.end_us}, told at {event.now_us}",
        )


def check_vgpu(tables: Tables, vgpu: int) -> None:
    """A vGPU of the plan.

    Raises:
        InputError: it is not.
    """
    known = len(tables.topology.vgpu_stage)
    if not 0 <= vgpu < known:
        raise InputError(f"vGPU {vgpu}", f"the plan has {known}")


def check_pace(plan: Plan, event: PaceChanged) -> None:
    """A stage of the plan, at a pace above 0.

    Raises:
        InputError: it is not.
    """
    models = plan.models
    pipelines = models[event.model].pipelines if 0 <= event.model < len(models) else ()
    known = 0 <= event.pipeline < len(pipelines)
    stages = pipelines[event.pipeline].stages if known else ()
    if not 0 <= event.stage < len(stages) or event.percent < 1:
        raise InputError("pace", f"no such stage, or not positive: {event}")


def check_link_pace(plan: Plan, event: LinkPaceChanged) -> None:
    """A node of the plan's cluster, at paces above 0.

    Raises:
        InputError: it is not.
    """
    known = 0 <= event.node < plan.cluster.node_count
    if not known or min(event.uplink_percent, event.downlink_percent) < 1:
        raise InputError("link pace", f"no such node, or not positive: {event}")
