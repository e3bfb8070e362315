"""Events of the scheduler: each carries the instant `now_us` of its delivery.

Instants never go back. Feedback times (`start_us`, `end_us`) are when a thing really happened and
may lie before `now_us`.
"""

from triton_backend.contract.decisions import DropReason, message
from triton_backend.contract.plan import Plan


@message
class Arrival:
    """A request of `samples` samples for the plan's model number `model`, by one of its entries.

    One with `low` 1 is served with what others leave.
    """

    now_us: int
    request_id: int
    model: int
    deadline_us: int
    samples: int = 1
    entry: int = 0
    low: int = 0


@message
class Cancel:
    """The client gave up; a request that is not dispatched yet is dropped.

    So is one that is alone in its batch, where nothing of it ran yet and it sits in a shared batch
    that has not left.
    """

    now_us: int
    request_id: int


@message
class JobArrival:
    """A client request of application number `application` of the plan, of `samples` samples.

    Its modules run as tasks, which the scheduler numbers (`decisions.TaskReady`). `job_id` is the
    shell's: no other job in hand may have it.
    """

    now_us: int
    job_id: int
    application: int
    deadline_us: int
    samples: int = 1


@message
class Emitted:
    """How many rows a task gives each module that comes after its own.

    Comes right before the `StageDone` that ends the task's last stage, and only where it is needed:
    a task without it gives every such module as many rows as it ran itself. Modules that run the
    same number of rows for every request (`Application.rows_vary`) run that number, whatever comes.

    Attributes:
        request_id: the task.
        rows: one number, 0 or more, for each module that names the task's own in `after`, in the
            order of the application's modules. Of more than `max_rows` x samples in all only so
            many run.
    """

    now_us: int
    request_id: int
    rows: tuple[int, ...]


@message
class JobCancel:
    """It is not wanted any more.

    Tasks that are not dispatched leave their queues, others end unused.

    Attributes:
        reason: CANCELLED by its client, FAILED, or BEGUN_ANEW with the next event.
    """

    now_us: int
    job_id: int
    reason: DropReason = DropReason.CANCELLED


@message
class StageDone:
    """A batch left a stage, which really ran from `start_us` to `end_us`."""

    now_us: int
    batch_id: int
    stage: int
    start_us: int
    end_us: int


@message
class SharedBatchStarted:
    """A joint run has begun: no batch boards it any more, though it should not have started yet.

    Only needed before members are given up (`BatchLost`) that were not aboard: their requests would
    board it again.
    """

    now_us: int
    shared_batch_id: int


@message
class SharedBatchDone:
    """A joint run (`decisions.SharedBatch`) is over: it lasted from `start_us` to `end_us`.

    Its members have all left the stage for which they sat in it.
    """

    now_us: int
    shared_batch_id: int
    start_us: int
    end_us: int


@message
class TransferDone:
    """A batch's boundary arrived at `stage` (1 ..), really moved from `start_us` to `end_us`."""

    now_us: int
    batch_id: int
    stage: int
    start_us: int
    end_us: int


@message
class WorkerLost:
    """A vGPU (numbered as in `Plan.vgpus`) can no longer run anything; what it held is gone.

    `plan` says by which plan it is numbered: 0 is the scheduler's first, every `PlanChanged` counts
    one more; None is the plan in force. An older one is for vGPUs that later plans do not have and
    that still run what was sent to them; where nothing of it is left the event does nothing.
    """

    now_us: int
    vgpu: int
    plan: int | None = None


@message
class WorkerBack:
    """A lost vGPU is healthy again; numbered as in `WorkerLost`.

    `idle_us`: until then it is busy with what this scheduler does not know; an instant that is
    over: it is idle. Said of one that is not lost it replaces what was said before.
    """

    now_us: int
    vgpu: int
    plan: int | None = None
    idle_us: int = 0


@message
class BatchLost:
    """A batch will never end, because it got lost between two processes; its vGPUs are well.

    Its requests are queued again at their old place. The number of a shared batch means all its
    members.
    """

    now_us: int
    batch_id: int


@message
class PaceChanged:
    """From now on a stage takes `percent` % of its planned latencies, on every vGPU of its pool."""

    now_us: int
    model: int
    pipeline: int
    stage: int
    percent: int


@message
class LinkPaceChanged:
    """From now on a transfer over these links of a node takes `percent` % of its planned time.

    `node` is numbered as in `Cluster.nodes` expanded. A transfer takes as long as the slower of its
    two ends, as it does where nodes have different links; what is reserved stays as it is.
    """

    now_us: int
    node: int
    uplink_percent: int
    downlink_percent: int


@message
class Timer:
    """The instant of the last `SetTimer` has come (or any instant: it is harmless)."""

    now_us: int


@message
class Pause:
    """Flush begins: dispatch nothing more; arrivals wait in their queues."""

    now_us: int


@message
class Resume:
    """Dispatch again, under the same plan."""

    now_us: int


@message
class PlanChanged:
    """From now on `plan` is in force, with work in flight or without; a pause ends.

    Queued requests are kept by the names of model and entry. Batches in flight end as reserved,
    whatever they run on; they keep their numbers. vGPUs that go on keep their reservations under
    new numbers. All paces are as planned again. Jobs go on where the new plan has their application
    with the very same modules; others are dropped (`MODEL_REMOVED`): a job never sees two
    applications.

    Numbers in other events: models, applications, entries, pipelines, nodes and vGPUs are those of
    the plan in force (but see `WorkerLost`), batches count through. In decisions they are those of
    the plan in force when the decision was made; in the `Drop` of a request whose model has gone,
    of the last that had it.

    Attributes:
        inherited: pairs of a vGPU's number in the plan before and in this one, of those whose
            worker goes on; None: as `transition.inherited_vgpus` says.
        lost: vGPUs of this plan that are not up (yet): their `WorkerBack` is to come. All others
            are healthy, whatever was reported of them before.
    """

    now_us: int
    plan: Plan
    inherited: tuple[tuple[int, int], ...] | None = None
    lost: tuple[int, ...] = ()


Event = (
    Arrival
    | Cancel
    | JobArrival
    | Emitted
    | JobCancel
    | StageDone
    | SharedBatchStarted
    | SharedBatchDone
    | TransferDone
    | WorkerLost
    | WorkerBack
    | BatchLost
    | PaceChanged
    | LinkPaceChanged
    | Timer
    | Pause
    | Resume
    | PlanChanged
)
