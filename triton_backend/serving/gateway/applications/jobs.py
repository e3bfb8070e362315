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

Here: which slots hold what. Not here: what runs, frames (`hub`), mapped memory
(`transport.retained`).
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from triton_backend.contract.decisions import FIRST_TASK, Dispatch, TaskReady
from triton_backend.serving.deployment import Deployment
from triton_backend.serving.gateway.applications.job import (
    Job,
    Output,
    RetainedOutputSlot,
    Task,
    choose,
    pieces_of_size,
    rows_after,
    sources,
)
from triton_backend.serving.transport.shared_memory import SlotPool
from triton_backend.serving.transport.wire import NONE, RowSlice


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

    def grant(self, vgpu: int) -> RetainedOutputSlot | None:
        """A slot for retained outputs of a vGPU, or None where none is free."""
        slot = self._pools[vgpu].take()
        return (
            None
            if slot is None
            else RetainedOutputSlot(self._generation, vgpu, slot, self._pools[vgpu])
        )


class Jobs:
    """The jobs in hand, and the requests that are served like them."""

    def __init__(self) -> None:
        self._jobs: dict[int, Job] = {}  # until they are over
        self._tasks: dict[int, Task] = {}  # until they end

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
        self._tasks[number] = Task(self._jobs[number], 0, 0, samples, samples)

    def ready(self, task: TaskReady) -> None:
        """A task may be dispatched from now on."""
        job = self._jobs[task.job_id]
        self._tasks[task.request_id] = Task(
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
            application = deployment.applications.numbers[task.job.graph.name]
            for producer, group in deployment.applications.producers(application, task.module):
                for offset, rows, (generation, where, slot), row in sources(task, producer, group):
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
            given: rows that each of its samples gave, for every count of its model; then the place
                of each one's shape, for every choice of sizes.

        Returns:
            where rows vary, of every task that is wanted its number and the rows that each module
            after its own has from it.
        """
        emitted: list[tuple[int, tuple[int, ...]]] = []
        groups = len(
            deployment.applications.row_groups(deployment.plan.models[dispatch.model].name)
        )
        at, row = 0, [0] * (1 + groups)
        for number in dispatch.request_ids:
            task = self._tasks.pop(number)
            end = at + task.rows
            rows = (task.rows, *(sum(counts[at:end]) for counts in given[:groups]))
            job = task.job
            if task.wanted and not job.over:
                if job.readers[task.module]:
                    output_slot.holders += 1
                    output = Output(task.first_row, rows, output_slot, tuple(row))
                    job.outputs.setdefault(task.module, []).append(output)
                left = job.tasks.get(task.module, set())
                left.discard(number)
                if given and number >= FIRST_TASK:
                    choices = [places[at:end] for places in given[groups:]]
                    choose(deployment, task, choices)
                    after = rows_after(deployment, task, rows, choices)
                    emitted.append((number, tuple(after)))
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
        application = deployment.applications.numbers[job.graph.name]
        found: list[RowSlice] = []
        for module, outputs in job.outputs.items():
            if job.graph.modules[module].size_of is not None:
                found += pieces_of_size(job, application, module)
                continue
            groups = 1 + len(deployment.applications.row_groups(job.graph.modules[module].model))
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
