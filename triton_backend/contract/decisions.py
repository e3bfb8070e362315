"""Decisions of the scheduler: actions for a shell, none of them done yet.

`message` makes the classes of decisions and of events (`events`): a request costs several of them,
so making one must cost little.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, TypeVar, dataclass_transform

from triton_backend.contract.errors import InputError

Kind = TypeVar("Kind")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def message(kind: type[Kind]) -> type[Kind]:
    """A dataclass by keywords, immutable.

    The type checker sees to that. Checking at run time (`frozen=True`) makes the construction of a
    decision take three times as long.
    """
    return dataclass(slots=True, kw_only=True, unsafe_hash=True)(kind)


class DropReason(IntEnum):
    """Why a request is not served: the one list, for kernels, wire, simulator and reports.

    Kernels and frames carry the number, people and files (metrics, event logs, warehouse) read
    `text`. A number is never given to another reason: event logs and frames of other processes
    hold it.
    """

    DEADLINE = 0  # no batch, not even of this request alone, ends by its deadline
    TOO_LARGE = 1  # more samples than any pipeline's batch
    CANCELLED = 2  # the client gave up
    WORKER_LOST = 3  # its vGPU died and a retry would be late
    MODEL_REMOVED = 4  # the plan being served does not have the model
    OVERLOAD = 5  # refused at admission: the work before it already fills its time
    QUEUE_FULL = 6  # the front keeps as many requests as it may
    ROWS_DIFFER = 7  # two modules gave a third, which pairs their rows, unlike numbers of rows
    EXPIRED = 8  # its front gave it up: a little after its deadline there was no answer
    FAILED = 9  # of a job: a module could not be run; its front hears why by JOB_FAILED
    BEGUN_ANEW = 10  # of a job: what its modules gave is lost, and it arrives once more
    QUOTA = 11  # its client sends more than its quota allows
    DEADLY = 12  # two vGPUs died while they ran it; it may end each that does

    @property
    def text(self) -> str:
        """The reason as metrics, logs and reports print it."""
        return self.name.lower()

    @classmethod
    def parse(cls, text: str) -> "DropReason":
        """The reason that prints as `text`.

        Raises:
            InputError: none does.
        """
        for reason in cls:
            if reason.text == text:
                return reason
        known = ", ".join(reason.text for reason in cls)
        raise InputError("drop reason", f"{text!r} is none of {known}")


class Hop(NamedTuple):
    """One stage of a batch's path with its reserved intervals [start, end).

    The same from the kernels' answer over the wire to the worker: five integers, in this order.

    The transfer is the move *into* this stage; for stage 0 both its instants equal the instant of
    dispatch (unless the input's transfer is counted too).
    """

    vgpu: int
    transfer_start_us: int
    transfer_end_us: int
    start_us: int
    end_us: int


@message
class Dispatch:
    """Run these requests as one batch along this path; resources execute in reserved order.

    A request is the shell's own (`Arrival`) or a task (`TaskReady`); one batch may hold both.
    """

    batch_id: int
    model: int
    pipeline: int
    request_ids: tuple[int, ...]
    samples: int
    hops: tuple[Hop, ...]


class Member(NamedTuple):
    """Rows [first_row, first_row + rows) of a shared batch are a batch's at one stage."""

    batch_id: int
    stage: int
    first_row: int
    rows: int


@message
class SharedBatch:
    """A joint run of several batches, as it is from now on.

    Replaces what was said of the shared batch before. It runs once, on the vGPU that its members'
    paths name for the stage, as soon as its start has come and all members' rows are there. It may
    start sooner or with others than was said; once it runs, what comes later changes nothing of the
    run. Rows without a member are holes. Each member goes on from it by itself. Its end is one
    `SharedBatchDone`, in place of the members' `StageDone`.

    Attributes:
        shared_batch_id: numbered as batches are.
        rows: rows that it has at most.
        members: by first row; none: no member is left, forget it.
    """

    shared_batch_id: int
    start_us: int
    end_us: int
    capacity: int
    members: tuple[Member, ...]


@message
class Drop:
    """Answer this request at once that it will not be served; `low` is 1 of a low one."""

    request_id: int
    model: int
    reason: DropReason
    deadline_us: int
    best_finish_us: int | None = None  # earliest end that was possible, where it was probed
    queue_position: int = 0
    low: int = 0


@message
class Abort:
    """Forget this batch. Its requests were queued again or dropped.

    A vGPU on its path died, it is too late for its shared batch, or its only request was cancelled
    before it ran.
    """

    batch_id: int


@message
class SetTimer:
    """Send the scheduler a `Timer` at this instant; replaces the timer set before."""

    at_us: int


# Of jobs. What a shell keeps for how long is in scheduler/README.md, "The life of a job".

FIRST_TASK = 1 << 62
"""Request ids from here on are tasks', numbered by the scheduler; ids of `Arrival` stay below."""


@message
class TaskReady:
    """From now on `request_id` is a task: these rows of a module of a job.

    No `Dispatch` names it before. A module becomes ready as a whole: its tasks follow each other in
    one answer and cut its rows [0, all) into pieces. Row i is the i-th of what the module's parents
    gave it, in the order of their own rows; where every request has as many rows, row i of each.

    Attributes:
        module: its place among the modules of the job's application.
        first_row, rows: the piece.
        of_rows: rows that the module runs for this job in all.
    """

    request_id: int
    job_id: int
    module: int
    first_row: int
    rows: int
    of_rows: int


@message
class ModuleSkipped:
    """A module of a job does not run; what it would have given is empty tensors.

    Attributes:
        reason: None: it has no rows. Else it is optional, and it or one before it was dropped for
            that reason: its tasks so far leave or end unused, as those of a dropped job do.
        best_finish_us, queue_position: as in `Drop`, of the task that was dropped.
    """

    job_id: int
    module: int
    reason: DropReason | None = None
    best_finish_us: int | None = None
    queue_position: int = 0


@message
class JobDone:
    """Every module of a job has ended or was skipped: answer it."""

    job_id: int


@message
class JobDropped:
    """Answer this job at once that it will not be served, and forget it.

    Its tasks that wait are gone with this decision. Those in a batch end with it; none of them
    wants what they give, and no decision names them again.

    Attributes:
        deadline_us: the job's; where a module's task was dropped, until when that had to end.
        module: whose task was dropped; None: the job as a whole.
        best_finish_us, queue_position: as in `Drop`, of that task.
    """

    job_id: int
    reason: DropReason
    deadline_us: int
    module: int | None = None
    best_finish_us: int | None = None
    queue_position: int = 0


Decision = (
    Dispatch
    | SharedBatch
    | Drop
    | Abort
    | SetTimer
    | TaskReady
    | ModuleSkipped
    | JobDone
    | JobDropped
)
