"""Checks of what a shell says, before anything changes."""

from triton_backend.contract.decisions import (
    FIRST_TASK,
)
from triton_backend.contract.errors import InputError
from triton_backend.contract.events import (
    Arrival,
    Emitted,
    JobArrival,
    LinkPaceChanged,
    PaceChanged,
    SharedBatchDone,
    StageDone,
    TransferDone,
)
from triton_backend.contract.plan import Plan
from triton_backend.scheduler.compiled import NONE
from triton_backend.scheduler.tables import (
    SLOT_BITS,
    TASK_MODULE,
    Tables,
    unpack,
)


def check_arrival(plan: Plan, event: Arrival) -> None:
    """A request of a model of the plan, with samples.

    Raises:
        InputError: it is not.
    """
    if not 0 <= event.model < len(plan.models):
        raise InputError(f"request {event.request_id}", f"no model number {event.model}")
    entries = len(plan.models[event.model].entries) or 1
    if not 0 <= event.entry < entries:
        reason = f"no entry number {event.entry}, its model has {entries}"
        raise InputError(f"request {event.request_id}", reason)
    if event.samples < 1:
        raise InputError(f"request {event.request_id}", f"{event.samples} samples")
    if event.request_id >= FIRST_TASK:
        raise InputError(f"request {event.request_id}", "is one of those the scheduler numbers")


def check_job(plan: Plan, event: JobArrival) -> None:
    """A job of an application of the plan, with samples.

    Raises:
        InputError: it is not.
    """
    if not 0 <= event.application < len(plan.applications):
        raise InputError(f"job {event.job_id}", f"no application number {event.application}")
    if event.samples < 1:
        raise InputError(f"job {event.job_id}", f"{event.samples} samples")


def check_emitted(tables: Tables, event: Emitted) -> int:
    """A task that is dispatched, and a number of rows for every module after its own.

    Returns its slot.

    Raises:
        InputError: it is not.
    """
    slot = event.request_id & ((1 << SLOT_BITS) - 1)
    known = event.request_id >= FIRST_TASK and slot < len(tables.requests)
    request = tables.requests[slot] if known else None
    if (
        request is None
        or request["id"] != event.request_id
        or request["sequence"] == NONE
        or request["batch"] == NONE
    ):
        raise InputError(f"request {event.request_id}", "is no task in a batch")
    known = unpack(tables.job_memory)
    first = known.jobs[request["job"]]["first_module"]
    module = known.modules[first + known.tasks[slot, TASK_MODULE]]
    wanted = int(module["end_edge"] - module["first_edge"])
    if len(event.rows) != wanted or min(event.rows, default=0) < 0:
        reason = f"gives {list(event.rows)} rows, {wanted} modules come after its own"
        raise InputError(f"request {event.request_id}", reason)
    return slot


def check_shared_batch(event: SharedBatchDone) -> None:
    """A joint run that is over by the time of its delivery.

    Raises:
        InputError: it is not.
    """
    if not event.start_us <= event.end_us <= event.now_us:
        raise InputError(
            f"shared batch {event.shared_batch_id}",
            f"ran from {event.start_us} to {event.end_us}, reported at {event.now_us}",
        )


def check_report(event: StageDone | TransferDone, stages: int) -> None:
    """A stage (or the transfer into one) of a batch of `stages`, over by the time of its delivery.

    Raises:
        InputError: it is not.
    """
    if not 0 <= event.stage < stages:
        raise InputError(f"batch {event.batch_id}", f"has no stage {event.stage}")
    if not event.start_us <= event.end_us <= event.now_us:
        raise InputError(
            f"batch {event.batch_id}",
            f"ran from {event.start_us} to {event.end_us}, reported at {event.now_us}",
        )


def check_pace(plan: Plan, event: PaceChanged) -> None:
    """A stage of the plan, at a pace above 0.

    Raises:
        InputError: it is not.
    """
    models = plan.models
    pipelines = models[event.model].pipelines if 0 <= event.model < len(models) else ()
    exists = 0 <= event.pipeline < len(pipelines)
    stages = pipelines[event.pipeline].stages if exists else ()
    if not 0 <= event.stage < len(stages) or event.percent < 1:
        raise InputError("pace", f"no such stage, or not positive: {event}")


def check_link_pace(plan: Plan, event: LinkPaceChanged) -> None:
    """A node of the plan's cluster, at paces above 0.

    Raises:
        InputError: it is not.
    """
    exists = 0 <= event.node < plan.cluster.node_count
    if not exists or min(event.uplink_percent, event.downlink_percent) < 1:
        raise InputError("link pace", f"no such node, or not positive: {event}")
