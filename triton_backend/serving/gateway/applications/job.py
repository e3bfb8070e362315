"""A job's rows: whose outputs they are, and in which slots they lie.

Rows of a module are numbered as its producers' are. A module that runs one size of a model has some
rows of its chooser, in their order; what reads all sizes has the chooser's rows again:

    chooser   0    1    2    3
    320       0         1            rows 0 and 2 of the chooser
    640            0         1       rows 1 and 3
    reader    0    1    2    3       from 320, 640, 320, 640

Here: one job, and where a task's rows are. Not here: which jobs there are (`jobs`).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from triton_backend.contract.applications import Application
from triton_backend.serving.applications import THE_REQUEST
from triton_backend.serving.deployment import Deployment
from triton_backend.serving.transport.shared_memory import SlotPool
from triton_backend.serving.transport.wire import NONE, RowSlice

THE_ANSWER = -1  # among those that read a module


class InputSlot(NamedTuple):
    """Where a front has written the inputs of a job.

    By whose generation's layout, in which gateway's front.
    """

    generation: int
    gateway: int
    slot: int


class Place(NamedTuple):
    """A slot for retained outputs of a vGPU."""

    generation: int
    vgpu: int
    slot: int


NOWHERE = Place(NONE, NONE, NONE)
Run = tuple[int, InputSlot | Place, int]
"""So many rows, in a slot, from a row there on."""


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
class Output:
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
        chosen: by the name of several sizes, the module of each row: from a row on, so many.
        dropped: optional modules that go without.
        done: its modules have ended; it is in hand until its front has read it.
        over: nothing of it is wanted, but tasks in batches may still end.
    """

    number: int
    graph: Application
    samples: int
    inputs: InputSlot
    deadline_us: int
    outputs: dict[int, list[Output]] = field(default_factory=dict[int, list[Output]])
    readers: dict[int, set[int]] = field(default_factory=dict[int, set[int]])
    tasks: dict[int, set[int]] = field(default_factory=dict[int, set[int]])
    chosen: dict[str, dict[int, list[int]]] = field(default_factory=dict[str, dict[int, list[int]]])
    dropped: set[int] = field(default_factory=set[int])
    done: bool = False
    over: bool = False

    def __post_init__(self) -> None:
        numbers = {module.name: m for m, module in enumerate(self.graph.modules)}
        self.readers = {m: set() for m in numbers.values()}
        for m, module in enumerate(self.graph.modules):
            for producer in self.graph.producers(module):
                self.readers[numbers[producer]].add(m)
        for source in self.graph.outputs.values():
            for maker in self.graph.makers(source.partition(".")[0]):
                self.readers[numbers[maker.name]].add(THE_ANSWER)

    def rows_of_size(self, module: int) -> list[int]:
        """The rows of its chooser that one of several sizes runs, in their order."""
        parts = self.chosen.get(self.graph.modules[module].read_as, {})
        sizes = (size for first_row in sorted(parts) for size in parts[first_row])
        return [row for row, size in enumerate(sizes) if size == module]

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
class Task:
    """Rows of a module of a job that run in one batch."""

    job: Job
    module: int
    first_row: int
    rows: int
    of_rows: int
    in_batch: bool = False
    wanted: bool = True


def pieces_of_size(job: Job, application: int, module: int) -> Iterator[RowSlice]:
    """Where the rows of one of several sizes lie, at their places among those of all."""
    for first, row, rows in _runs((row, n) for n, row in enumerate(job.rows_of_size(module))):
        for offset, count, place, there in _pieces(_outputs(job, module, 0), row, rows):
            yield RowSlice(first + offset, count, application, NONE, module, 0, *place, there)


def choose(deployment: Deployment, task: Task, choices: Sequence[Sequence[int]]) -> None:
    """Note which sizes the rows of a task are run by, of the modules that it chooses for."""
    application = deployment.applications.numbers[task.job.graph.name]
    modules: dict[str, dict[int, int]] = {}
    which: dict[str, int] = {}
    for m, (choice, place) in _sizes_after(deployment, application, task).items():
        several = task.job.graph.modules[m].read_as
        modules.setdefault(several, {})[place] = m
        which[several] = choice
    for several, by_place in modules.items():
        sizes = [by_place[place] for place in choices[which[several]]]
        task.job.chosen.setdefault(several, {})[task.first_row] = sizes


def _sizes_after(
    deployment: Deployment, application: int, task: Task
) -> dict[int, tuple[int, int]]:
    """The modules that run sizes which a task chooses: their choice, and place in it."""
    name = task.job.graph.modules[task.module].name
    found: dict[int, tuple[int, int]] = {}
    for m, module in enumerate(task.job.graph.modules):
        chosen = deployment.applications.chosen(application, m)
        if chosen is not None and module.chooser == name:
            found[m] = chosen
    return found


def rows_after(
    deployment: Deployment,
    task: Task,
    rows: Sequence[int],
    choices: Sequence[Sequence[int]],
) -> Iterator[int]:
    """How many rows each module after its own has from a task, in the order of modules.

    Args:
        deployment: by whose plan it ran.
        task: has ended.
        rows: that it gave, by group.
        choices: of every choice of sizes, the place of each sample's.
    """
    graph = task.job.graph
    application = deployment.applications.numbers[graph.name]
    sizes = _sizes_after(deployment, application, task)
    for m, after in enumerate(graph.modules):
        if m in sizes:
            choice, place = sizes[m]
            yield choices[choice].count(place)
        elif graph.modules[task.module].name in after.parents:
            yield rows[deployment.applications.group_read(application, m, task.module)]


def sources(
    task: Task, producer: int, group: int
) -> Iterator[tuple[int, int, InputSlot | Place, int]]:
    """Where the rows of a task are that it reads of one producer.

    Row i of a module is row i of what its producer gave, or the last one where that gave fewer (one
    row for all, say); zeros where it gave none. Rows of sizes are those of their chooser, so a
    producer of one size gives some of them alone.

    Yields:
        the first of these rows among the task's, how many, their slot, and their first row there.
    """
    job = task.job
    if job.over or not task.wanted:
        yield 0, task.rows, NOWHERE, 0
        return
    whole = producer == THE_REQUEST or job.graph.modules[producer].size_of is None
    if producer == THE_REQUEST:
        runs: list[Run] = [(job.samples, job.inputs, 0)]
    else:
        runs = _outputs(job, producer, group)
    if not runs:
        if whole:
            yield 0, task.rows, NOWHERE, 0
        return
    for first, row, rows in _wanted(task, producer):
        for offset, count, place, there in _pieces(runs, row, rows):
            yield first + offset, count, place, there


def _outputs(job: Job, producer: int, group: int) -> list[Run]:
    """Where the rows of a module lie, in their order."""
    outputs = sorted(job.outputs.get(producer, ()), key=lambda one: one.first_row)
    return [
        (
            o.rows[group],
            Place(o.output_slot.generation, o.output_slot.vgpu, o.output_slot.slot),
            o.row[group],
        )
        for o in outputs
        if o.rows[group]
    ]


def _wanted(task: Task, producer: int) -> Iterable[tuple[int, int, int]]:
    """Rows of a task that a producer has: from which of the task's, from which there, how many."""
    job, first = task.job, task.first_row
    sized = job.graph.modules[task.module].size_of is not None
    of_size = producer != THE_REQUEST and job.graph.modules[producer].size_of is not None
    if not sized and not of_size:
        return [(0, first, task.rows)]
    rows = job.rows_of_size(task.module)[first:] if sized else range(first, first + task.rows)
    pairs = enumerate(rows[: task.rows])
    if not of_size:
        return _runs(pairs)
    places = {row: n for n, row in enumerate(job.rows_of_size(producer))}
    return _runs((at, places[row]) for at, row in pairs if row in places)


def _runs(pairs: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    """Pairs that go on by one in both numbers, as runs: the first pair, and how many."""
    first: tuple[int, int] | None = None
    count = 0
    for one, other in pairs:
        if first is not None and (one, other) == (first[0] + count, first[1] + count):
            count += 1
            continue
        if first is not None:
            yield *first, count
        first, count = (one, other), 1
    if first is not None:
        yield *first, count


def _pieces(
    runs: Sequence[Run], first: int, rows: int
) -> Iterator[tuple[int, int, InputSlot | Place, int]]:
    """Where so many rows from one on lie, and the last one again for those beyond it."""
    offset, begin = 0, 0
    for count, place, row in runs:
        at = first + offset
        taken = min(begin + count - at, rows - offset)
        if taken > 0:
            yield offset, taken, place, row + at - begin
            offset += taken
        begin += count
    count, place, row = runs[-1]
    for rest in range(offset, rows):
        yield rest, 1, place, row + count - 1
