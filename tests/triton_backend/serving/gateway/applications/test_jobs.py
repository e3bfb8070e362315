from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.triton_backend.serving import served_applications, small_plans
from tests.triton_backend.serving.served_applications import module, one_stage
from tests.triton_backend.serving.system import deploy
from triton_backend.contract.applications import Module
from triton_backend.contract.decisions import FIRST_TASK, Dispatch, TaskReady
from triton_backend.serving.deployment import Deployment
from triton_backend.serving.gateway.applications.job import InputSlot, Job, RetainedOutputSlot
from triton_backend.serving.gateway.applications.jobs import Jobs, RetainedOutputs
from triton_backend.serving.transport.wire import NONE, RowSlice

A, B, C, D = range(4)
JOB = 5


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    models = small_plans.plan(*(one_stage(f"m_{name}") for name in "abcd"))
    return deploy(
        tmp_path, served_applications.with_applications(models, served_applications.diamond())
    )


class Books:
    """The books of one job of a diamond, its batches made by hand."""

    def __init__(self, deployment: Deployment, samples: int = 3) -> None:
        self.deployment = deployment
        self.retained = RetainedOutputs(deployment, 0)
        self.jobs = Jobs()
        inputs = InputSlot(1, 0, 9)
        self.jobs.begin(
            Job(JOB, deployment.applications.graphs[0], samples, inputs, deadline_us=10**6)
        )
        self._next = FIRST_TASK

    def ready(self, module: int, *rows: int, of_rows: int = 3) -> list[int]:
        """Tasks of so many rows each."""
        numbers: list[int] = []
        for n, count in enumerate(rows):
            self.jobs.ready(
                TaskReady(
                    request_id=self._next,
                    job_id=JOB,
                    module=module,
                    first_row=sum(rows[:n]),
                    rows=count,
                    of_rows=of_rows,
                )
            )
            numbers.append(self._next)
            self._next += 1
        return numbers

    def batch(self, module: int, tasks: Sequence[int]) -> tuple[Dispatch, RetainedOutputSlot]:
        batch = Dispatch(
            batch_id=0, model=module, pipeline=0, request_ids=tuple(tasks), samples=0, hops=()
        )
        self.jobs.dispatched(batch)
        output_slot = self.retained.grant(module)
        assert output_slot is not None
        return batch, output_slot

    def run(
        self, module: int, tasks: Sequence[int], *given: Sequence[int]
    ) -> list[tuple[int, tuple[int, ...]]]:
        batch, output_slot = self.batch(module, tasks)
        return self.jobs.ended(self.deployment, batch, output_slot, given)

    def pieces(self, module: int, tasks: Sequence[int]) -> list[RowSlice]:
        batch, _ = self.batch(module, tasks)
        return self.jobs.pieces(self.deployment, batch)


def test_two_lives_of_the_scheduler_grant_none_of_each_others_slots(deployment: Deployment) -> None:
    granted: list[set[int]] = []
    for life in (8, 9):
        retained, slots = RetainedOutputs(deployment, life), set[int]()
        while (output_slot := retained.grant(A)) is not None:
            slots.add(output_slot.slot)
        granted.append(slots)
    assert not granted[0] & granted[1]
    assert granted[0] | granted[1] == set(range(deployment.retained_slots(A)))


def test_rows_come_from_the_request_and_then_from_retained_outputs(deployment: Deployment) -> None:
    books = Books(deployment)
    first = books.ready(A, 2, 1)
    assert books.pieces(A, first) == [
        RowSlice(0, 2, 0, A, NONE, 0, 1, 0, 9, 0),
        RowSlice(2, 1, 0, A, NONE, 0, 1, 0, 9, 2),
    ]
    books.run(A, first[1:])  # the later rows are there first, retained by themselves
    books.run(A, first[:1])
    (task,) = books.ready(B, 3)
    pieces = books.pieces(B, [task])
    assert [(one.at, one.rows, one.producer, one.row) for one in pieces] == [
        (0, 2, A, 0),
        (2, 1, A, 0),
    ]
    assert pieces[0].slot != pieces[1].slot


def test_a_slot_is_free_when_all_that_read_it_have_ended(deployment: Deployment) -> None:
    books = Books(deployment)
    books.run(A, books.ready(A, 3))
    (b,), (c,) = books.ready(B, 3), books.ready(C, 3)
    books.run(B, [b])
    assert books.retained.taken == 2
    batch, output_slot = books.batch(C, [c])
    output_slot.release()
    books.jobs.aborted(batch)  # its worker died: the inputs are still there
    assert [one.producer for one in books.jobs.pieces(deployment, batch)] == [A]
    books.run(C, [c])
    assert books.retained.taken == 2  # of B and C; A's is not wanted any more
    books.run(D, books.ready(D, 3))
    (piece,) = books.jobs.done(JOB, deployment)
    assert piece[:6] == (0, 3, 0, NONE, D, 0)
    assert not books.jobs.open(JOB)
    assert books.retained.taken == 1
    books.jobs.drop(JOB)  # its front has read it
    assert (books.retained.taken, len(books.jobs)) == (0, 0)


def test_a_dropped_job_gives_back_all_but_the_slots_of_batches_that_run(
    deployment: Deployment,
) -> None:
    books = Books(deployment)
    books.run(A, books.ready(A, 3))
    running, (waits,) = books.ready(B, 3), books.ready(C, 3)
    batch, output_slot = books.batch(B, running)
    assert books.jobs.drop(JOB) is not None
    assert books.jobs.drop(JOB) is None
    assert books.retained.taken == 1
    (piece,) = books.jobs.pieces(deployment, batch)
    assert piece.slot == NONE  # it runs on zeros
    assert books.jobs.ended(deployment, batch, output_slot, ()) == []
    assert books.retained.taken == 0
    with pytest.raises(KeyError):
        books.batch(C, [waits])


def test_rows_that_vary_follow_each_other_and_the_request_is_there_for_all_of_them(
    tmp_path: Path,
) -> None:
    """`b` runs the rows of `a`, `c` one per request, `d` as many as `b`, each with the request."""

    def several(name: str, *after: str, inputs: Mapping[str, str]) -> Module:
        model = f"m_{name}"
        return Module(
            name=name, model=model, after=after, rows_per_request=2.0, max_rows=4, inputs=inputs
        )

    graph = served_applications.application(
        "actdet",
        module("a"),
        several("b", "a", inputs={"input": "a.crops"}),
        module("c", "a"),
        several("d", "b", inputs={"input": "b.output", "scene": "request.input"}),
    )
    models = small_plans.plan(*(one_stage(f"m_{name}") for name in "abcd"))
    deployment = deploy(tmp_path, served_applications.with_applications(models, graph))
    assert deployment.applications.row_groups("m_a") == ("crops_rows",)
    assert deployment.largest_request(deployment.served["actdet"]) == 1
    books = Books(deployment, samples=2)
    tasks = books.ready(A, 1, 1, of_rows=2)
    assert books.run(A, tasks, (3, 0)) == [(tasks[0], (3, 1)), (tasks[1], (0, 1))]
    (b,), (c,) = books.ready(B, 3), books.ready(C, 2, of_rows=2)
    assert [p[:2] + p[4:6] + p[9:] for p in books.pieces(B, [b])] == [(0, 3, A, 1, 0)]
    assert [p[:2] + p[4:6] + p[9:] for p in books.pieces(C, [c])] == [
        (0, 1, A, 0, 0),
        (1, 1, A, 0, 1),
    ]
    alone = Books(deployment, samples=1)
    alone.run(A, alone.ready(A, 1, of_rows=1), (3,))
    alone.run(B, alone.ready(B, 3))
    (d,) = alone.ready(D, 3)
    assert sorted(p[:2] + p[4:6] + p[9:] for p in alone.pieces(D, [d])) == [
        (0, 1, NONE, 0, 0),
        (0, 3, B, 0, 0),
        (1, 1, NONE, 0, 0),
        (2, 1, NONE, 0, 0),
    ]


def test_a_module_that_is_skipped_gives_zeros_and_no_rows_of_the_answer(
    deployment: Deployment,
) -> None:
    books = Books(deployment)
    books.run(A, books.ready(A, 3))
    books.jobs.skip(JOB, B)
    books.jobs.skip(JOB, C)
    assert books.retained.taken == 0
    (d,) = books.ready(D, 3)
    assert {piece.slot for piece in books.pieces(D, [d])} == {NONE}
    books.jobs.skip(JOB, D)
    assert books.jobs.done(JOB, deployment) == []


def test_jobs_of_a_batch_that_cannot_run_are_named_with_the_module(
    deployment: Deployment,
) -> None:
    books = Books(deployment)
    batch, output_slot = books.batch(A, books.ready(A, 3))
    assert books.jobs.failed(batch, output_slot) == [(JOB, "a")]
    assert books.retained.taken == 0


FIT, NARROW, WIDE, READER = range(4)


@pytest.fixture
def sized(tmp_path: Path) -> Deployment:
    return deploy(tmp_path, served_applications.sized_plan())


def test_rows_go_to_their_sizes_and_are_read_in_their_order(sized: Deployment) -> None:
    books = Books(sized, samples=4)
    assert sized.applications.choices("m_a") == {"x_shape": ((2,), (4,))}
    tasks = books.ready(FIT, 3, 1, of_rows=4)
    # The later task ends first. Of its rows: one for no narrow one, one wide one, one for all.
    assert books.run(FIT, tasks[1:], (1,)) == [(tasks[1], (0, 1, 1))]
    assert books.run(FIT, tasks[:1], (0, 1, 0)) == [(tasks[0], (2, 1, 3))]
    narrow, wide = books.ready(NARROW, 2, of_rows=2), books.ready(WIDE, 1, 1, of_rows=2)
    places = [(one.at, one.rows, one.producer, one.row) for one in books.pieces(NARROW, narrow)]
    assert places == [(0, 1, FIT, 0), (1, 1, FIT, 2)]
    later = books.pieces(WIDE, wide[1:])
    assert [(one.at, one.rows, one.producer, one.row) for one in later] == [(0, 1, FIT, 0)]
    books.run(NARROW, narrow)
    books.run(WIDE, wide)
    reader = books.ready(READER, 2, 2, of_rows=4)
    first, second = (books.pieces(READER, [task]) for task in reader)
    assert [(one.at, one.rows, one.producer, one.row) for one in first] == [
        (0, 1, NARROW, 0),
        (1, 1, WIDE, 0),
    ]
    assert [(one.at, one.rows, one.producer, one.row) for one in second] == [
        (0, 1, NARROW, 1),
        (1, 1, WIDE, 1),
    ]
    books.run(READER, reader)
    answer = books.jobs.done(JOB, sized)
    of_read = sorted((one.at, one.producer, one.row) for one in answer if one.producer != READER)
    assert of_read == [(0, NARROW, 0), (1, WIDE, 0), (2, NARROW, 1), (3, WIDE, 1)]


def test_rows_of_one_size_alone_come_from_it_alone(sized: Deployment) -> None:
    books = Books(sized, samples=2)
    books.run(FIT, books.ready(FIT, 2, of_rows=2), (1, 1))
    books.jobs.skip(JOB, NARROW)
    books.run(WIDE, books.ready(WIDE, 2, of_rows=2))
    pieces = books.pieces(READER, books.ready(READER, 2, of_rows=2))
    assert [(one.at, one.rows, one.producer, one.row) for one in pieces] == [(0, 2, WIDE, 0)]
