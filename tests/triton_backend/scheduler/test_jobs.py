"""Jobs: DAGs of modules as tasks of queues, from arrival to done or dropped."""

from collections import deque
from collections.abc import Sequence
from typing import get_args

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.fakes.applications import diamond, hand_application, hand_module, with_applications
from tests.fakes.job_shell import JobShell, Rows, row_by_row
from tests.fakes.plans import Own, hand_model, hand_pipeline, hand_plan, hand_stage, make_plan
from tests.interpreters import printed_by
from triton_backend.contract.applications import ApplicationPlan, Module
from triton_backend.contract.cluster import NodeGroup
from triton_backend.contract.decisions import (
    FIRST_TASK,
    Decision,
    Dispatch,
    DropReason,
    JobDone,
    JobDropped,
    ModuleSkipped,
    TaskReady,
)
from triton_backend.contract.errors import InputError, InvariantError
from triton_backend.contract.events import (
    Arrival,
    Cancel,
    Emitted,
    Event,
    JobArrival,
    JobCancel,
    PlanChanged,
    StageDone,
    WorkerLost,
)
from triton_backend.contract.plan import PlacementRun, Plan
from triton_backend.scheduler.compiled import NONE
from triton_backend.scheduler.policies import late
from triton_backend.scheduler.scheduler import Scheduler
from triton_backend.scheduler.tables import CLOSED, LIVE, TASK_LIMIT, TASK_ROW, unpack
from triton_backend.serving.gateway.event_log import read_events, to_line

MS = 1_000
LATENCY_US = (4_000, 5_000, 6_000, 7_000)


def models(count: int, gpus: int = 1) -> Plan:
    """Models m0, m1, … of one stage and batch 4 each, on GPUs of their own."""
    return make_plan(*([[Own(latency_us=LATENCY_US, gpus=gpus)]] for _ in range(count)))


def shell(
    *modules: Module, rows: Rows = row_by_row, plan: Plan | None = None, policy: str | None = None
) -> JobShell:
    found = with_applications(plan or models(4), hand_application("app", modules))
    return JobShell(Scheduler(found, policy=policy), rows)


def giving(**rows: int) -> Rows:
    """Every piece gives a child so many rows; row by row where it is not named."""
    return lambda _job, _module, child, _first, own: rows.get(child, own)


def test_a_job_of_which_nothing_is_open_nor_will_be_is_damage() -> None:
    app = shell(hand_module("a", "m0"))
    app.arrive(0, 7, 100 * MS)
    tables = app.scheduler._tables
    known = unpack(tables.job_memory)
    (slot,) = np.flatnonzero(known.jobs["state"] == LIVE)
    tables.requests["job"] = NONE
    for name, value in (("first_task", NONE), ("open", 0), ("modules_left", 0)):
        known.jobs[slot][name] = value
    known.parts[slot]["state"] = CLOSED
    with pytest.raises(InvariantError, match="lives, and no task of it is open"):
        app.scheduler.check_invariants()


def test_a_task_keeps_its_first_row_beside_its_limit() -> None:
    app = shell(hand_module("a", "m0"))
    app.arrive(0, 7, 100 * MS)
    known = unpack(app.scheduler._tables.job_memory)
    (slot,) = np.flatnonzero(known.jobs["state"] == LIVE)
    task = known.tasks[known.jobs[slot]["first_task"]]
    assert (task[TASK_ROW], task[TASK_LIMIT]) == (0, 100 * MS)


def test_a_chain_runs_module_after_module_and_is_done() -> None:
    app = shell(hand_module("a", "m0"), hand_module("b", "m1", "a"), hand_module("c", "m2", "b"))
    app.arrive(0, 7, 100 * MS)
    app.run()
    assert app.outcomes() == {7: "done"}
    ready = [d for _, d in app.log if isinstance(d, TaskReady)]
    assert [(t.module, t.rows, t.of_rows) for t in ready] == [(0, 1, 1), (1, 1, 1), (2, 1, 1)]
    assert all(task.request_id >= FIRST_TASK for task in ready)
    assert len({task.request_id for task in ready}) == 3


def test_a_module_takes_as_long_as_its_rows_are_there() -> None:
    app = shell(hand_module("a", "m0"), hand_module("b", "m1", "a"))
    for job in range(4):
        app.arrive(0, job, 100 * MS)
    for number in range(4):  # a client's batch keeps the GPU of the second module till 12 ms
        app.request(5 * MS, 10 + number, 1, 100 * MS)
    app.run()
    assert set(app.outcomes().values()) == {"done"}
    times = app.scheduler.take_times()
    assert [(name, sum(of.counts), sum(of.sums_us)) for name, of in times.modules.items()] == [
        (("app", "a"), 4, 4 * 7 * MS),
        (("app", "b"), 4, 4 * 12 * MS),
    ]
    assert [(sum(of.counts), sum(of.sums_us)) for of in times.waits.values()] == [
        (1, 0),
        (2, 0),
        (0, 0),
        (0, 0),
    ]
    assert sum(app.scheduler.take_times().modules["app", "b"].counts) == 0


def test_a_longer_timeout_makes_no_task_wait_longer_for_others() -> None:
    """Tasks gather as those of a job that has the SLO, through every module of a chain."""

    def sent_us(slos: int) -> list[int]:
        app = shell(
            hand_module("a", "m0"), hand_module("b", "m1", "a"), hand_module("c", "m2", "b")
        )
        slo_us = app.scheduler.plan.applications[0].application.slo_us
        app.arrive(0, 0, slos * slo_us)
        app.run()
        assert app.outcomes() == {0: "done"}
        return [at for at, d in app.log if isinstance(d, Dispatch)]

    assert sent_us(50) == sent_us(1)


def test_time_that_a_module_saves_is_there_for_the_next() -> None:
    # budgets are a third each, 33 ms; a batch of one that waits for more is sent at its last moment
    app = shell(hand_module("a", "m0"), hand_module("b", "m1", "a"), hand_module("c", "m2", "b"))
    app.arrive(0, 0, 99 * MS)
    app.run()
    sent = [at for at, d in app.log if isinstance(d, Dispatch)]
    ends = [d.hops[-1].end_us for _, d in app.log if isinstance(d, Dispatch)]
    # aims are D - tail: 99 - 2/3 x 99, 99 - 1/3 x 99, 99
    assert all(end <= aim for end, aim in zip(ends, (33 * MS, 66 * MS, 99 * MS), strict=True))
    assert sent[1] == ends[0] or sent[1] > ends[0]
    four = shell(hand_module("a", "m0"), hand_module("b", "m1", "a"))
    for job in range(4):
        four.arrive(0, job, 100 * MS)
    four.run()
    batches = [(at, len(d.request_ids)) for at, d in four.log if isinstance(d, Dispatch)]
    assert batches == [(0, 4), (7 * MS, 4)]  # full at once, long before its aim


def test_a_task_that_misses_its_aim_has_the_time_that_later_modules_can_spare() -> None:
    app = shell(hand_module("a", "m0"), hand_module("b", "m1", "a"))
    for number in range(4):  # a client's full batch keeps the only GPU of the first module busy
        app.request(0, 10 + number, 0, 50 * MS)
    app.arrive(0, 0, 16 * MS)  # its aim is at 8, with 4 for the second module it may end at 12
    app.run()
    assert app.outcomes() == {0: "done"}
    first = [d.hops[-1].end_us for _, d in app.log if isinstance(d, Dispatch)][1]
    assert 8 * MS < first <= 12 * MS


def test_an_application_of_one_module_decides_as_the_model_alone() -> None:
    app = shell(hand_module("a", "m0"))
    alone = JobShell(Scheduler(models(4)))
    for number, at_us in enumerate([0, 100, 3_000, 3_000, 9_000, 40_000, 40_001, 41_000]):
        app.arrive(at_us, number, (20 + 10 * (number % 3)) * MS)
        alone.request(at_us, number, 0, (20 + 10 * (number % 3)) * MS)
    app.run()
    alone.run()

    def sent(one: JobShell) -> list[tuple[int, int, object]]:
        return [(at, d.samples, d.hops) for at, d in one.log if isinstance(d, Dispatch)]

    assert sent(app) == sent(alone)
    assert app.ends == alone.requests


@pytest.mark.parametrize(("rows", "most"), [(0, 0), (1, 1), (3, 3), (8, 8), (7, 7), (50, 8)])
def test_rows_that_vary_are_tasks_of_one_and_joined_again(rows: int, most: int) -> None:
    app = shell(*diamond(), rows=giving(cars=rows, people=1))
    app.arrive(0, 0, 200 * MS)
    app.run()
    assert app.outcomes() == {0: "done"}
    hand = app.finished[0]
    assert [task.rows for task in hand.tasks.get("cars", [])] == [1] * most
    assert [task.rows for task in hand.tasks["join"]] == [1]
    if not rows:
        assert hand.skipped["cars"].reason is None


def test_no_rows_all_the_way_down_end_a_job_at_once() -> None:
    modules = [
        hand_module("a", "m0"),
        hand_module("b", "m1", "a", rows=2, max_rows=4),
        hand_module("c", "m2", "b", rows=2, max_rows=4),
    ]
    app = shell(*modules, rows=giving(b=0))
    app.arrive(0, 0, 60 * MS)
    app.run()
    decided = [d for _, d in app.log if isinstance(d, ModuleSkipped | JobDone)]
    assert decided == [
        ModuleSkipped(job_id=0, module=1),
        ModuleSkipped(job_id=0, module=2),
        JobDone(job_id=0),
    ]


def test_rows_that_pair_up_must_be_as_many() -> None:
    modules = [
        hand_module("a", "m0"),
        hand_module("b", "m1", "a", rows=2, max_rows=4),
        hand_module("c", "m2", "a", rows=2, max_rows=4),
        hand_module("d", "m3", "b", "c", rows=2, max_rows=4),
    ]
    equal = shell(*modules, rows=giving(b=3, c=3))
    equal.arrive(0, 0, 200 * MS)
    equal.run()
    assert equal.finished[0].tasks["d"][0].of_rows == 3
    unlike = shell(*modules, rows=giving(b=3, c=2))
    unlike.arrive(0, 0, 200 * MS)
    unlike.run()
    assert unlike.outcomes() == {0: DropReason.ROWS_DIFFER.text}


def test_samples_of_a_job_multiply_fixed_rows() -> None:
    modules = [hand_module("a", "m0"), hand_module("b", "m1", "a", rows=2, max_rows=2)]
    app = shell(*modules)
    app.arrive(0, 0, 200 * MS, samples=3)
    app.run()
    assert [(t.first_row, t.rows, t.of_rows) for t in app.finished[0].tasks["b"]] == [
        (0, 2, 6),
        (2, 2, 6),
        (4, 2, 6),
    ]
    app.arrive(app.now_us, 1, 200 * MS, samples=5)
    assert app.outcomes()[1] == "too_large"


def test_samples_of_a_job_multiply_the_rows_that_a_module_runs_at_most() -> None:
    modules = [hand_module("a", "m0"), hand_module("b", "m1", "a", rows=1.5, max_rows=4)]
    app = shell(*modules, rows=giving(b=7))
    app.arrive(0, 0, 200 * MS, samples=3)
    app.run()
    assert [(t.first_row, t.rows, t.of_rows) for t in app.finished[0].tasks["b"]] == [
        (row, 1, 7) for row in range(7)
    ]


@pytest.mark.parametrize(("mean", "rows"), [(2.0, 2), (3.0, 3), (1.5, 3)])
def test_rows_of_several_jobs_fill_the_batches_that_are_planned(mean: float, rows: int) -> None:
    """Pairs or triples fill batches of four, of which no row stays free for others."""
    modules = [
        hand_module("a", "m0"),
        hand_module("b", "m1", "a", rows=mean, max_rows=int(max(rows, mean))),
    ]
    app = shell(*modules, rows=giving(b=rows))
    for job in range(4):
        app.arrive(0, job, 200 * MS)
    app.run()
    assert set(app.outcomes().values()) == {"done"}
    sent = [d.samples for _, d in app.log if isinstance(d, Dispatch)]
    assert sent == [4] * (1 + rows)


def test_a_required_module_that_is_dropped_takes_its_job_with_it() -> None:
    """Queued siblings leave in the same answer; the one that runs ends and is forgotten."""
    app = shell(*diamond(), rows=giving(cars=1, people=1))
    for busy in range(12):  # people is busy long past the job's deadline
        app.request(0, 100 + busy, 2, 500 * MS)
    app.arrive(0, 0, 20 * MS)
    app.run()
    end = app.ends[0]
    assert isinstance(end, JobDropped)
    assert (end.reason, end.module) == (DropReason.DEADLINE, 2)
    # The least time of `join` is kept for it.
    assert end.best_finish_us is not None
    assert end.deadline_us < min(20 * MS, end.best_finish_us)
    assert app.scheduler.queue_lengths() == (0, 0, 0, 0)
    assert app.scheduler.in_flight() == 0


def test_an_optional_module_that_is_dropped_is_skipped_and_the_job_goes_on() -> None:
    app = shell(*diamond(optional=True), rows=giving(cars=1, people=6))
    for busy in range(12):
        app.request(0, 100 + busy, 2, 500 * MS)
    app.arrive(0, 0, 20 * MS)
    app.run()
    assert app.outcomes() == {0: "done"}
    assert app.finished[0].skipped["people"].reason is DropReason.DEADLINE
    assert app.finished[0].ended["join"] == 1


def test_a_cancelled_job_leaves_everything() -> None:
    app = shell(*diamond(), rows=giving(cars=8, people=8))
    app.arrive(0, 0, 200 * MS)
    app.arrive(0, 1, 200 * MS)
    app.run(40 * MS)
    cancel = JobCancel(now_us=max(40 * MS, app.now_us), job_id=0, reason=DropReason.FAILED)
    decided = app.apply(cancel)
    assert decided[0] == JobDropped(job_id=0, reason=DropReason.FAILED, deadline_us=200 * MS)
    app.run()
    assert app.outcomes() == {0: "failed", 1: "done"}
    with pytest.raises(InputError, match="not in hand"):
        app.apply(JobCancel(now_us=app.now_us, job_id=0))


def test_a_lost_worker_queues_tasks_again_and_what_they_emitted_is_forgotten() -> None:
    plan = models(2, gpus=2)
    app = shell(hand_module("a", "m0"), hand_module("b", "m1", "a", rows=2, max_rows=4), plan=plan)
    for job in range(4):
        app.arrive(0, job, 100 * MS)
    (batch,) = app.batches.values()
    app.apply(Emitted(now_us=1, request_id=batch.request_ids[0], rows=(4,)))
    app.apply(WorkerLost(now_us=2, vgpu=batch.hops[0].vgpu))
    app.run()
    assert set(app.outcomes().values()) == {"done"}
    assert all(hand.tasks["b"][0].of_rows == 1 for hand in app.finished.values())


def test_a_job_that_fits_no_more_after_a_loss_is_dropped_for_that() -> None:
    app = shell(hand_module("a", "m0"), plan=models(1, gpus=1))
    app.arrive(0, 0, 10 * MS)
    app.run(6 * MS)
    app.apply(WorkerLost(now_us=6 * MS, vgpu=0))
    app.run()
    assert app.outcomes() == {0: "worker_lost"}


def test_a_job_whose_task_ended_two_vgpus_is_dropped_for_that() -> None:
    app = shell(hand_module("a", "m0"), plan=models(1, gpus=3))
    for job in range(4):
        app.arrive(0, job, 100 * MS)
    for now_us in (2, 3):
        (batch,) = app.batches.values()
        app.apply(WorkerLost(now_us=now_us, vgpu=batch.hops[0].vgpu))
    app.run()
    assert app.outcomes() == dict.fromkeys(range(4), "deadly")
    app.scheduler.check_invariants()


def test_a_job_has_one_sample_unless_it_says_otherwise() -> None:
    app = shell(hand_module("a", "m0"))
    arrival = JobArrival(now_us=0, job_id=0, application=0, deadline_us=100 * MS)
    ready = [d for d in app.scheduler.handle(arrival) if isinstance(d, TaskReady)]
    assert [task.rows for task in ready] == [1]


def test_a_task_of_a_cancelled_job_that_is_lost_counts_as_dropped() -> None:
    app = shell(hand_module("a", "m0"), plan=models(1, gpus=2))
    for job in range(4):
        app.arrive(0, job, 100 * MS)
    (batch,) = app.batches.values()
    app.apply(JobCancel(now_us=1, job_id=0, reason=DropReason.FAILED))
    app.apply(WorkerLost(now_us=2, vgpu=batch.hops[0].vgpu))
    app.scheduler.check_invariants()
    app.run()
    assert app.outcomes() == {0: "failed", 1: "done", 2: "done", 3: "done"}
    app.scheduler.check_invariants()


def test_what_the_shell_says_wrongly_is_refused() -> None:
    app = shell(hand_module("a", "m0"), hand_module("b", "m1", "a", rows=2, max_rows=4))
    for job in range(4):
        app.arrive(0, job, 100 * MS)
    task = next(iter(app.tasks))
    wrong = [
        (JobArrival(now_us=0, job_id=9, application=1, deadline_us=9), "no application number 1"),
        (JobArrival(now_us=0, job_id=9, application=0, deadline_us=9, samples=0), "0 samples"),
        (JobArrival(now_us=0, job_id=0, application=0, deadline_us=9), "in hand already"),
        (Emitted(now_us=0, request_id=task, rows=()), "1 modules come after"),
        (Emitted(now_us=0, request_id=task, rows=(-1,)), "gives"),
        (Emitted(now_us=0, request_id=task + (1 << 24), rows=(1,)), "no task in a batch"),
        (Emitted(now_us=0, request_id=3, rows=(1,)), "no task in a batch"),
        (Cancel(now_us=0, request_id=task), "neither queued nor in flight"),
        (Arrival(now_us=0, request_id=FIRST_TASK, model=0, deadline_us=9), "scheduler numbers"),
    ]
    for event, message in wrong:
        with pytest.raises(InputError, match=message):
            app.scheduler.handle(event)
    app.run()
    assert set(app.outcomes().values()) == {"done"}


@pytest.mark.long
def test_more_jobs_and_tasks_than_slots_make_room() -> None:
    modules = [hand_module("a", "m0"), hand_module("b", "m1", "a", rows=1, max_rows=900)]
    app = shell(*modules, rows=giving(b=20), plan=models(2, gpus=4))
    app.checks = False
    for job in range(270):
        app.arrive(0, job, 10_000 * MS)
    app.run()
    app.scheduler.check_invariants()
    assert set(app.outcomes().values()) == {"done"}


def changed(plan: Plan, *applications: ApplicationPlan) -> PlanChanged:
    return PlanChanged(now_us=5 * MS, plan=with_applications(plan, *applications))


OTHERS = {
    "the very same": (diamond(), True),
    "fewer rows foreseen": (diamond(rows=1.5), True),
    "always most rows": (diamond(rows=8.0), False),
    "more rows": (diamond(max_rows=9), False),
}


@pytest.mark.parametrize("which", OTHERS)
def test_a_job_never_sees_two_applications(which: str) -> None:
    app = shell(*diamond(), rows=giving(cars=5, people=2))
    other, same = OTHERS[which]
    first = hand_application("before", [hand_module("x", "m1")])
    for job in range(6):
        app.arrive(0, job, 200 * MS)
    app.run(5 * MS)
    assert app.batches
    app.apply(changed(models(4, gpus=2), first, hand_application("app", other, slo_us=90 * MS)))
    for hand in app.hand.values():
        hand.application = 1
    app.run()
    expected = "done" if same else DropReason.MODEL_REMOVED.text
    assert set(app.outcomes().values()) == {expected}
    app.arrive(app.now_us, 9, 200 * MS, application=1)
    app.run()
    assert app.outcomes()[9] == "done"


def test_jobs_of_the_first_application_of_a_plan_go_on_module_after_module() -> None:
    app = shell(*diamond(), rows=giving(cars=5, people=2))
    app.arrive(0, 0, 200 * MS)
    app.run(5 * MS)
    last = hand_application("last", [hand_module("x", "m1")])
    app.apply(changed(models(4, gpus=2), hand_application("app", diamond(), slo_us=90 * MS), last))
    app.run()
    assert app.outcomes() == {0: "done"}
    ready = {decision.module for _, decision in app.log if isinstance(decision, TaskReady)}
    assert ready == set(range(len(diamond())))


def test_applications_may_come_and_go_with_plans() -> None:
    app = shell(*diamond(), rows=giving(cars=5))
    app.arrive(0, 0, 200 * MS)
    app.run(5 * MS)
    app.apply(changed(models(4)))
    assert app.outcomes() == {0: DropReason.MODEL_REMOVED.text}
    app.run()
    app.apply(
        PlanChanged(
            now_us=app.now_us,
            plan=with_applications(models(4), hand_application("app", diamond())),
        )
    )
    app.arrive(app.now_us, 1, 200 * MS)
    app.run()
    assert app.outcomes()[1] == "done"


def test_a_waiting_task_too_large_for_the_new_plan_drops_its_job() -> None:
    app = shell(hand_module("a", "m0"), hand_module("b", "m1", "a", rows=3, max_rows=4))
    app.arrive(0, 0, 200 * MS, samples=3)
    small = make_plan(*([[Own(latency_us=(4_000, 5_000), gpus=1)]] for _ in range(4)))
    app.apply(
        PlanChanged(
            now_us=1,
            plan=with_applications(
                small,
                hand_application(
                    "app",
                    [hand_module("a", "m0"), hand_module("b", "m1", "a", rows=3, max_rows=4)],
                ),
            ),
        )
    )
    assert app.outcomes() == {0: "too_large"}


CHANGES_UNDER_LATE_BINDING = """
import resource
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))  # seconds: an endless loop of kernels ends so
from tests.fakes.applications import hand_application, hand_module, with_applications
from tests.fakes.plans import Own, make_plan
from triton_backend.contract.decisions import JobDropped
from triton_backend.contract.events import JobArrival, PlanChanged
from triton_backend.scheduler.policies.late import POLICIES
from triton_backend.scheduler.scheduler import Scheduler

LATENCY_US = (4_000, 5_000, 6_000, 7_000)
CHAIN = [hand_module("a", "m0"), hand_module("b", "m1", "a", rows=3, max_rows=4)]
OTHER = [hand_module("a", "m0"), hand_module("b", "m1", "a", rows=4, max_rows=4)]

def plan(modules, largest=4):
    models = make_plan(*([[Own(latency_us=LATENCY_US[:largest])]] for _ in range(2)))
    return with_applications(models, *([hand_application("app", modules)] if modules else []))

CHANGES = {
    "left out": plan([]), "changed": plan(OTHER), "smaller": plan(CHAIN, 2), "same": plan(CHAIN)
}
for policy in POLICIES:
    for name, after in CHANGES.items():
        scheduler = Scheduler(plan(CHAIN), policy=policy)
        for job in range(4):
            event = JobArrival(now_us=0, job_id=job, application=0, deadline_us=90_000, samples=3)
            scheduler.handle(event)
        assert scheduler.queue_lengths()[0] > 0
        decided = scheduler.handle(PlanChanged(now_us=1_000, plan=after))
        scheduler.check_invariants()
        left = [item.reason.text for item in decided if isinstance(item, JobDropped)]
        print(policy, name, *left, sep=",", flush=True)
"""


@pytest.mark.slow
def test_a_change_of_plan_ends_with_jobs_that_wait_under_late_binding() -> None:
    printed = printed_by(CHANGES_UNDER_LATE_BINDING, compiled=False)
    left = {tuple(line.split(",")[:2]): line.split(",")[2:] for line in printed.splitlines()}
    for policy in late.POLICIES:
        assert set(left[policy, "left out"]) == {"model_removed"}
        assert set(left[policy, "changed"]) == {"model_removed"}
        assert set(left[policy, "smaller"]) == {"too_large"}
        assert left[policy, "same"] == []


@st.composite
def dags(draw: st.DrawFn) -> tuple[Module, ...]:
    """Up to five modules over three models, any edges, rows that vary or not, optional ends."""
    made: list[Module] = []
    for number in range(draw(st.integers(1, 5))):
        after = tuple(m.name for m in made if draw(st.booleans()))
        alike = sorted({(m.rows_per_request, m.max_rows) for m in made if m.name in after})
        rows, most = 1.0, 1
        if after and len(alike) == 1:
            rows, most = draw(st.sampled_from([(1.0, 1), (2.0, 2), (1.5, 6), *alike]))
            if len(after) > 1 and (rows, most) not in alike:
                rows, most = 1.0, 1
        optional = any(m.optional for m in made if m.name in after) or draw(st.integers(0, 4)) == 0
        model = f"m{draw(st.integers(0, 2))}"
        made.append(
            hand_module(f"x{number}", model, *after, rows=rows, max_rows=most, optional=optional)
        )
    return tuple(made)


def hashed(job: int, _module: str, child: str, first: int, rows: int) -> int:
    """Rows by chance, but the same for every parent that gives them."""
    return sum((job * 7 + len(child) * 3 + row * 5) % 4 for row in range(first, first + rows))


ARRIVALS = st.lists(
    st.tuples(st.integers(0, 8 * MS), st.integers(1, 120 * MS), st.integers(0, 3)),
    min_size=1,
    max_size=14,
)


@pytest.mark.long
@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    dags(),
    ARRIVALS,
    st.sampled_from(["reservation", "reservation-ahead", "deferred", "eager", None]),
    st.booleans(),
    st.lists(st.tuples(st.integers(0, 60 * MS), st.integers(0, 5)), max_size=3),
)
def test_every_job_is_done_in_time_or_dropped_whatever_it_is_made_of(
    modules: Sequence[Module],
    arrivals: list[tuple[int, int, int]],
    policy: str | None,
    pairs: bool,
    cancelled: list[tuple[int, int]],
) -> None:
    """Offered = done + dropped; none is answered late; nothing of a job stays behind."""
    app = shell(*modules, rows=row_by_row if pairs else hashed, plan=models(3), policy=policy)
    at_us = 0
    cancels = sorted(cancelled)
    for job, (gap_us, slack_us, plain) in enumerate(arrivals):
        at_us += gap_us
        while cancels and cancels[0][0] <= at_us:
            when, which = cancels.pop(0)
            app.run(when)
            if which in app.hand:
                app.apply(JobCancel(now_us=max(when, app.now_us), job_id=which))
        app.arrive(at_us, job, slack_us)
        if plain:
            app.request(at_us, job, plain - 1, slack_us)
    app.run()
    assert sorted(app.ends) == list(range(len(arrivals)))
    assert app.late == []
    assert app.scheduler.in_flight() == 0
    assert sum(app.scheduler.queue_lengths()) == 0
    assert app.scheduler.request_ids() == ()


@pytest.mark.long
@settings(deadline=None, derandomize=True, max_examples=100)
@example(  # three jobs, the first of which dies of x4 while x2 waits for the same pool
    (
        hand_module("x0", "m2", optional=True),
        hand_module("x1", "m1"),
        hand_module("x2", "m2", "x1", rows=2.0, max_rows=2, optional=True),
        hand_module("x3", "m0", "x0", "x2", optional=True),
        hand_module("x4", "m0", "x1", optional=True),
    ),
    [(0, 7, 0), (0, 9, 0), (0, 10, 0)],
    "eager",
    [],
)
@given(
    dags(),
    st.lists(st.tuples(st.integers(0, 6), st.integers(4, 60), st.integers(0, 3)), max_size=14),
    st.sampled_from(["deferred", "eager", "turns"]),
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 5)), max_size=8),
)
def test_who_leaves_at_an_instant_is_not_sent_with_who_goes_then(
    modules: Sequence[Module],
    arrivals: list[tuple[int, int, int]],
    policy: str,
    cancelled: list[tuple[int, int]],
) -> None:
    """Models share one pool, and all happens at whole ms: arrivals, cancels and ends coincide."""
    plan = one_pool([(4_000, 5_000, 6_000, 7_000), (2_000, 2_000), (1_000, 3_000)], policy)
    app = shell(*modules, rows=hashed, plan=plan)
    waiting = deque(sorted((at * MS, job) for at, job in cancelled))
    at_us = 0
    for job, (gap, slack, plain) in enumerate(arrivals):
        at_us += gap * MS
        while waiting and waiting[0][0] <= at_us:
            when, which = waiting.popleft()
            app.run(when - 1)
            if which in app.hand:
                app.apply(JobCancel(now_us=max(when, app.now_us), job_id=which))
        app.arrive(at_us, job, slack * MS)
        if plain:
            app.request(at_us, job, plain - 1, slack * MS)
    app.run()
    assert sorted(app.ends) == list(range(len(arrivals)))
    assert app.late == []
    assert app.scheduler.request_ids() == ()


def one_pool(tables: Sequence[Sequence[int]], policy: str) -> Plan:
    """A model per table of latencies by batch (µs), all of them on the same two vGPUs."""
    place = PlacementRun(node=0, gpu=0, slot=0, gpus=2)
    made = [
        hand_model(
            f"m{number}",
            hand_pipeline(hand_stage((0, 1), "GPU", place, table), batch=len(table), rate_rps=9.0),
            slo_us=100 * MS,
            policy=policy,
        )
        for number, table in enumerate(tables)
    ]
    return hand_plan(*made, nodes=[NodeGroup(count=1, gpu_class="GPU", gpus=2, nic_gbps=10.0)])


def test_reports_of_a_dropped_job_change_nothing() -> None:
    app = shell(hand_module("a", "m0"), hand_module("b", "m1", "a"))
    for job in range(4):
        app.arrive(0, job, 100 * MS)
    (batch,) = app.batches.values()
    for job in range(4):
        app.apply(JobCancel(now_us=1, job_id=job))
    end = batch.hops[0].end_us
    done = StageDone(
        now_us=end, batch_id=batch.batch_id, stage=0, start_us=batch.hops[0].start_us, end_us=end
    )
    assert app.scheduler.handle(done) == []
    app.scheduler.check_invariants()


def busy(policy: str | None) -> JobShell:
    """A diamond with rows that vary beside models that are asked for by themselves."""
    app = shell(*diamond(optional=True), rows=hashed, policy=policy)
    for number in range(60):
        app.arrive(number * 2 * MS, number, (30 + number % 7 * 20) * MS)
        app.request(number * 2 * MS, number, number % 4, 40 * MS)
        if number % 9 == 8:
            live = sorted(app.hand)
            app.apply(JobCancel(now_us=app.now_us, job_id=live[0]))
    app.run()
    return app


@pytest.mark.long
@pytest.mark.parametrize("policy", ["reservation-ahead", "throughput-cost", "deferred"])
def test_a_log_of_events_replays_to_the_same_decisions(policy: str) -> None:
    app = busy(policy)
    assert {"done", "cancelled"} <= set(app.outcomes().values())
    lines = [to_line(item) for item in app.items]
    again, expected = Scheduler(app.scheduler.plan, policy=policy), list[Decision]()
    for item in read_events(lines):
        if isinstance(item, get_args(Event)):
            assert not expected
            expected = again.handle(item)  # pyright: ignore[reportArgumentType]
        else:
            assert item == expected.pop(0)
    assert not expected


@pytest.mark.slow
def test_plain_python_decides_as_compiled_kernels() -> None:
    code = (
        "from tests.triton_backend.scheduler.test_jobs import busy\n"
        "for policy in ('reservation-ahead', 'throughput-cost', 'eager'):\n"
        "    print(*busy(policy).log, sep='\\n')\n"
    )
    assert printed_by(code, compiled=True) == printed_by(code, compiled=False) != ""
