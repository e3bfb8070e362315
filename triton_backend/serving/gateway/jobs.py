"""Where the tensors of jobs lie: inputs in slots of fronts, retained outputs.

The core decides which task runs when (`scheduler`, "The life of a job"); here is kept what that
means for memory: which rows of which slot a task's rows are gathered from, and when a slot for
retained outputs is free:

    granted: with the dispatch --> written: its batch has ended --> free: nothing in it is wanted

What a module gave is wanted until every module that reads it has ended for that job (so a batch
that is aborted at whatever stage finds its inputs again), and until the front has read it where the
answer names it.

A model that is served by itself beside an application is a job of one module here, whose only task
has the number of its request.

Here: which slots hold what. Not here: what runs, frames (`state`), mapped memory
(`transport.retained`).
"""

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import NamedTuple

from triton_backend.contract.applications import Application
from triton_backend.contract.decisions import FIRST_TASK, Dispatch, TaskReady
from triton_backend.serving.deployment import THE_REQUEST, Deployment
from triton_backend.serving.transport.shared_memory import SlotPool
from triton_backend.serving.transport.wire import NONE, RowSlice

_THE_ANSWER = -1  # among those that read a module


class InputSlot(NamedTuple):
    """Where a front has written the inputs of a job.

    By whose generation's layout, in which gateway's front.
    """

    generation: int
    gateway: int
    slot: int


class _Place(NamedTuple):
    """A slot for retained outputs of a vGPU."""

    generation: int
    vgpu: int
    slot: int


_NOWHERE = _Place(NONE, NONE, NONE)


class RetainedOutputs:
    """The retained outputs of a generation: which of their slots are free.

    Of every life its own (`WorkerSlots`).
    """

    def __init__(self, deployment: Deployment, life: int) -> None:
        self._generation = deployment.generation
        sets = deployment.slot_sets
        self._pools = [
            SlotPool(range(life % sets, deployment.retained_slots(v.index), sets))
            for v in deployment.vgpus
        ]

    @property
    def taken(self) -> int:
        """Slots taken, on all of them."""
        return sum(pool.taken for pool in self._pools)

    def grant(self, vgpu: int) -> "RetainedOutputSlot | None":
        """A slot for retained outputs of a vGPU, or None where none is free."""
        slot = self._pools[vgpu].take()
        return (
            None
            if slot is None
            else RetainedOutputSlot(self._generation, vgpu, slot, self._pools[vgpu])
        )


@dataclass(slots=True, eq=False)
class RetainedOutputSlot:
    """A slot that is granted to a batch, which holds it to its end as every output in it does."""

    generation: int
    vgpu: int
    slot: int
    pool: SlotPool
    holders: int = 1

    def release(self) -> None:
        """One of those that hold it does no longer."""
        self.holders -= 1
        if not self.holders:
            self.pool.give(self.slot)


@dataclass(slots=True, eq=False)
class _Output:
    """Outputs of a task: by group of rows, so many from `row` on of a slot.

    Of its module, it comes where `first_row` says.
    """

    first_row: int
    rows: tuple[int, ...]
    output_slot: RetainedOutputSlot
    row: tuple[int, ...]


@dataclass(slots=True, eq=False)
class Job:
    """A request whose modules are in hand.

    Attributes:
        number: the core's.
        inputs: where its front has written them.
        deadline_us: until when it has to be answered.
        outputs: by module, what its tasks have given so far and is still wanted.
        readers: by module, those that still want its outputs.
        tasks: by module, those that have not ended.
        dropped: optional modules that go without.
        done: its modules have ended; it is in hand until its front has read it.
        over: nothing of it is wanted, but tasks in batches may still end.
    """

    number: int
    graph: Application
    samples: int
    inputs: InputSlot
    deadline_us: int
    outputs: dict[int, list[_Output]] = field(default_factory=dict[int, list[_Output]])
    readers: dict[int, set[int]] = field(default_factory=dict[int, set[int]])
    tasks: dict[int, set[int]] = field(default_factory=dict[int, set[int]])
    dropped: set[int] = field(default_factory=set[int])
    done: bool = False
    over: bool = False

    def __post_init__(self) -> None:
        numbers = {module.name: m for m, module in enumerate(self.graph.modules)}
        self.readers = {m: set() for m in numbers.values()}
        for m, module in enumerate(self.graph.modules):
            for producer in module.producers:
                self.readers[numbers[producer]].add(m)
        for source in self.graph.outputs.values():
            self.readers[numbers[source.partition(".")[0]]].add(_THE_ANSWER)

    def read_by(self, module: int) -> None:
        """A module has ended, or was skipped; or the answer has been read."""
        for producer, readers in self.readers.items():
            readers.discard(module)
            if not readers:
                self.release(producer)

    def release(self, module: int) -> None:
        """Drop the outputs of a module, which are not wanted any more."""
        for output in self.outputs.pop(module, ()):
            output.output_slot.release()

    def end(self) -> None:
        """Drop everything, which is not wanted any more."""
        self.over = True
        for module in list(self.outputs):
            self.release(module)


@dataclass(slots=True, eq=False)
class _Task:
    job: Job
    module: int
    first_row: int
    rows: int
    of_rows: int
    in_batch: bool = False
    wanted: bool = True


class Jobs:
    """The jobs in hand, and the requests that are served like them."""

    def __init__(self) -> None:
        self._jobs: dict[int, Job] = {}  # until they are over
        self._tasks: dict[int, _Task] = {}  # until they end

    def __len__(self) -> int:
        return len(self._jobs)

    def get(self, number: int) -> Job | None:
        """A job by its number, until it is answered and read, or dropped."""
        return self._jobs.get(number)

    def open(self, number: int) -> bool:
        """True if a job is in hand and not done."""
        job = self._jobs.get(number)
        return job is not None and not job.done

    def numbers(self) -> list[int]:
        """Of all jobs in hand."""
        return list(self._jobs)

    def module_name(self, number: int, module: int) -> tuple[str, str]:
        """Of a job in hand: its application and a module of it."""
        graph = self._jobs[number].graph
        return graph.name, graph.modules[module].name

    def samples_of(self, number: int) -> int:
        """Of a job in hand."""
        return self._jobs[number].samples

    def model_of(self, number: int, module: int) -> str:
        """The model that a module of a job in hand runs."""
        return self._jobs[number].graph.modules[module].model

    def generations(self) -> set[int]:
        """Those of whose outputs some are retained, or in whose front's slots inputs lie."""
        found = {job.inputs.generation for job in self._jobs.values()}
        for job in self._jobs.values():
            found |= {out.output_slot.generation for outs in job.outputs.values() for out in outs}
        return found

    def stranded(self, generation: int, vgpus: AbstractSet[int]) -> list[Job]:
        """Unfinished jobs with retained outputs on these vGPUs, which cannot be read any more."""
        return [
            job
            for job in self._jobs.values()
            if not job.done
            and any(
                output.output_slot.generation == generation and output.output_slot.vgpu in vgpus
                for outputs in job.outputs.values()
                for output in outputs
            )
        ]

    # A job's life, as the core tells it

    def begin(self, job: Job) -> None:
        """A job came, its inputs in a slot of its front."""
        self._jobs[job.number] = job

    def begin_alone(self, job: Job) -> None:
        """A request of a model came that is served like a job of one module."""
        self.begin(job)
        number, samples = job.number, job.samples
        self._tasks[number] = _Task(self._jobs[number], 0, 0, samples, samples)

    def ready(self, task: TaskReady) -> None:
        """A task may be dispatched from now on."""
        job = self._jobs[task.job_id]
        self._tasks[task.request_id] = _Task(
            job, task.module, task.first_row, task.rows, task.of_rows
        )
        job.tasks.setdefault(task.module, set()).add(task.request_id)

    def skip(self, number: int, module: int, *, dropped: bool = False) -> None:
        """A module of a job gives nothing: it has no rows, or is optional and was dropped."""
        job = self._jobs[number]
        if dropped:
            job.dropped.add(module)
        self._forget(job, module)
        job.release(module)
        job.read_by(module)

    def drop(self, number: int) -> Job | None:
        """A job is over, unanswered or read; None where it was before."""
        job = self._jobs.pop(number, None)
        if job is not None:
            for module in list(job.tasks):
                self._forget(job, module)
            job.end()
            alone = self._tasks.get(number)
            if alone is not None and not alone.in_batch:
                del self._tasks[number]
        return job

    def _forget(self, job: Job, module: int) -> None:
        """The tasks of a module that are in a batch end with it, unused; the others are gone."""
        for number in job.tasks.pop(module, ()):
            task = self._tasks[number]
            task.wanted = False
            if not task.in_batch:
                del self._tasks[number]

    # Batches

    def dispatched(self, dispatch: Dispatch) -> None:
        """These tasks are in a batch."""
        for number in dispatch.request_ids:
            self._tasks[number].in_batch = True

    def aborted(self, dispatch: Dispatch) -> None:
        """A batch will not end: its tasks wait again, but for those that no job wants any more."""
        for number in dispatch.request_ids:
            task = self._tasks.get(number)
            if task is not None:
                task.in_batch = False
                if not task.wanted or task.job.over:
                    del self._tasks[number]

    def pieces(self, deployment: Deployment, dispatch: Dispatch) -> list[RowSlice]:
        """Where the rows of a batch are to be gathered from; unwanted rows are zeros."""
        found: list[RowSlice] = []
        at = 0
        for number in dispatch.request_ids:
            task = self._tasks[number]
            application = deployment.application_numbers[task.job.graph.name]
            for producer, group in deployment.producers(application, task.module):
                for offset, rows, (generation, where, slot), row in _sources(task, producer, group):
                    found.append(
                        RowSlice(
                            at + offset,
                            rows,
                            application,
                            task.module,
                            producer,
                            group,
                            generation,
                            where,
                            slot,
                            row,
                        )
                    )
            at += task.rows
        return found

    def ended(
        self,
        deployment: Deployment,
        dispatch: Dispatch,
        output_slot: RetainedOutputSlot,
        given: Sequence[Sequence[int]],
    ) -> list[tuple[int, tuple[int, ...]]]:
        """A batch has ended, its outputs are retained.

        Args:
            deployment: by whose plan it ran.
            dispatch: of the batch.
            output_slot: its slot.
            given: rows that each of its samples gave, for every count of its model.

        Returns:
            where rows vary, of every task that is wanted its number and the rows that each module
            after its own has from it.
        """
        emitted: list[tuple[int, tuple[int, ...]]] = []
        at, row = 0, [0] * (1 + len(given))
        for number in dispatch.request_ids:
            task = self._tasks.pop(number)
            end = at + task.rows
            rows = (task.rows, *(sum(counts[at:end]) for counts in given))
            job = task.job
            if task.wanted and not job.over:
                if job.readers[task.module]:
                    output_slot.holders += 1
                    output = _Output(task.first_row, rows, output_slot, tuple(row))
                    job.outputs.setdefault(task.module, []).append(output)
                left = job.tasks.get(task.module, set())
                left.discard(number)
                if given and number >= FIRST_TASK:
                    groups = _groups_after(deployment, job.graph, task.module)
                    emitted.append((number, tuple(rows[group] for group in groups)))
                if not left:
                    job.tasks.pop(task.module, None)
                    job.read_by(task.module)
            at, row = end, [a + b for a, b in zip(row, rows, strict=True)]
        output_slot.release()
        return emitted

    def failed(self, dispatch: Dispatch, output_slot: RetainedOutputSlot) -> list[tuple[int, str]]:
        """A batch could not be run: jobs that it concerns, with the names of the modules."""
        concerned: dict[int, str] = {}
        for number in dispatch.request_ids:
            task = self._tasks.pop(number)
            if task.wanted and not task.job.over:
                task.job.tasks.get(task.module, set()).discard(number)
                concerned[task.job.number] = task.job.graph.modules[task.module].name
        output_slot.release()
        return list(concerned.items())

    # Answers

    def done(self, number: int, deployment: Deployment) -> list[RowSlice]:
        """A job is done, and has to be read: where its outputs lie."""
        job = self._jobs[number]
        job.done = True
        application = deployment.application_numbers[job.graph.name]
        found: list[RowSlice] = []
        for module, outputs in job.outputs.items():
            groups = 1 + len(deployment.row_groups(job.graph.modules[module].model))
            for group in range(groups):
                at = 0
                for output in sorted(outputs, key=lambda one: one.first_row):
                    output_slot, rows = output.output_slot, output.rows[group]
                    if rows:
                        place = (
                            output_slot.generation,
                            output_slot.vgpu,
                            output_slot.slot,
                            output.row[group],
                        )
                        found.append(RowSlice(at, rows, application, NONE, module, group, *place))
                    at += rows
        nowhere = NONE, NONE, NONE, 0
        found += [RowSlice(0, 1, application, NONE, m, 0, *nowhere) for m in sorted(job.dropped)]
        return found


def _groups_after(deployment: Deployment, graph: Application, module: int) -> list[int]:
    """Which group of a module's rows each module after it runs, in the order of modules."""
    application = deployment.application_numbers[graph.name]
    name = graph.modules[module].name
    return [
        deployment.group_read(application, m, module)
        for m, after in enumerate(graph.modules)
        if name in after.parents
    ]


def _sources(
    task: _Task, producer: int, group: int
) -> Iterator[tuple[int, int, InputSlot | _Place, int]]:
    """Where the rows of a task are that it reads of one producer.

    Row i of a module is row i of what its producer gave, or the last one where that gave fewer (one
    row for all, say); zeros where it gave none.

    Yields:
        the first of these rows among the task's, how many, their slot, and their first row there.
    """
    job = task.job
    if producer == THE_REQUEST:
        runs = [(job.samples, job.inputs, 0)]
    else:
        outputs = sorted(job.outputs.get(producer, ()), key=lambda one: one.first_row)
        runs = [
            (
                o.rows[group],
                _Place(o.output_slot.generation, o.output_slot.vgpu, o.output_slot.slot),
                o.row[group],
            )
            for o in outputs
            if o.rows[group]
        ]
    if job.over or not task.wanted or not runs:
        yield 0, task.rows, _NOWHERE, 0
        return
    offset, begin = 0, 0
    for rows, place, row in runs:
        first = task.first_row + offset
        taken = min(begin + rows - first, task.rows - offset)
        if taken > 0:
            yield offset, taken, place, row + first - begin
            offset += taken
        begin += rows
    rows, place, row = runs[-1]
    for rest in range(offset, task.rows):
        yield rest, 1, place, row + rows - 1
