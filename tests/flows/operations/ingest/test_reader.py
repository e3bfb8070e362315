"""Event files to minutes: what counts where, and that it does not matter how reading was cut."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from flows.operations.ingest import reader as module
from flows.operations.ingest.reader import ingest
from flows.workspace import Workspace
from tests.fakes.applications import hand_application, hand_module, with_applications
from tests.fakes.plans import two_tails
from tests.flows.operations.fake_gateway import (
    MINUTE_US,
    SLO_US,
    STARTED_US,
    Log,
    shared_plan,
    table,
    the_plan,
    workspace_of,
)
from triton_backend.contract.decisions import (
    FIRST_TASK,
    Abort,
    DropReason,
    JobDone,
    JobDropped,
    Member,
    ModuleSkipped,
    SharedBatch,
    TaskReady,
)
from triton_backend.contract.events import JobArrival, SharedBatchDone
from triton_backend.serving.gateway.admission import Refused, RefusedJob
from warehouse.plans import add_plan

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
COUNTS = "minute, model, offered, served, late, dropped, failed, batches, samples, latency_sum_us"
VGPU_COUNTS = "vgpu, pool, model, stage, gpu_class, share, batches, busy_us, profiled_us"
SECOND_US = 1_000_000
TABLES = ("model_minutes", "vgpu_minutes", "drop_minutes")


def everything(work: Workspace) -> list[Any]:
    return [table(work, name, "*") for name in TABLES]


def mixed_log() -> Log:
    """Three minutes in which everything happens that can become of a request."""
    log = Log()
    log.plan("one", 1)
    log.serve(SECOND_US, requests=2)
    log.serve(2 * SECOND_US, took_us=SLO_US + 1)
    log.drop(log.arrive(3 * SECOND_US, model=1), model=1)
    log.drop(log.arrive(4 * SECOND_US), reason=DropReason.CANCELLED)
    failed = log.dispatch((log.arrive(5 * SECOND_US),), (1, 3))
    log.done(failed, 0, 5 * SECOND_US, 5 * SECOND_US + 4_000)
    log.done(failed, 1, 5 * SECOND_US + 5_000, 5 * SECOND_US + 5_000)
    across = log.dispatch((log.arrive(MINUTE_US - 1_000),), (0, 2))
    log.done(across, 0, MINUTE_US - 1_000, MINUTE_US + 2_000)
    log.done(across, 1, MINUTE_US + 2_000, MINUTE_US + 4_000)
    log.serve(2 * MINUTE_US)
    return log


@pytest.mark.long
def test_every_request_counts_once_in_the_minute_it_arrived_in(tmp_path: Path) -> None:
    work = workspace_of(tmp_path, the_plan())
    mixed_log().write(work)
    ingest(work)
    late_us = SLO_US + 1
    assert table(work, "model_minutes", COUNTS) == [
        (NOON, "a", 6, 3, 1, 1, 1, 3, 4, 2 * 8_000 + late_us + 5_000),
        (NOON, "b", 1, 0, 0, 1, 0, 0, 0, 0),
        (NOON + timedelta(minutes=1), "a", 0, 0, 0, 0, 0, 1, 1, 0),
        (NOON + timedelta(minutes=2), "a", 1, 1, 0, 0, 0, 1, 1, 8_000),
    ]
    assert table(work, "drop_minutes", "model, reason, dropped") == [
        ("a", "cancelled", 1),
        ("b", "deadline", 1),
    ]


@pytest.mark.long
def test_a_request_that_a_new_scheduler_puts_off_counts_once(tmp_path: Path) -> None:
    """It is dropped for want of workers, and offered again as they report."""
    log, plan = Log(), the_plan()
    log.plan("one", 1)
    served, lost = log.arrive(SECOND_US), log.arrive(SECOND_US)
    for again_us in (1_000, 2_000):
        for request in (served, lost):
            log.drop(request)
        for request in (served, lost):
            log.arrive_again(request, SECOND_US, SECOND_US + again_us)
    batch = log.dispatch((served,), (0, 2))
    log.done(batch, 0, SECOND_US + 2_000, SECOND_US + 4_000)
    log.done(batch, 1, SECOND_US + 4_000, SECOND_US + 6_000)
    log.drop(lost)
    whole = workspace_of(tmp_path / "whole", plan)
    log.write(whole)
    ingest(whole)
    assert table(whole, "model_minutes", COUNTS) == [(NOON, "a", 2, 1, 0, 1, 0, 1, 1, 6_000)]
    assert table(whole, "drop_minutes", "model, reason, dropped") == [("a", "deadline", 1)]
    grown = workspace_of(tmp_path / "grown", plan)
    for lines in range(1, len(log.lines) + 1):
        log.write(grown, lines=slice(lines))
        ingest(grown)
    assert everything(grown) == everything(whole)


def test_a_vgpu_is_busy_as_measured_and_as_the_plan_has_it(tmp_path: Path) -> None:
    work = workspace_of(tmp_path, the_plan())
    log = Log()
    log.plan("one", 1)
    log.serve(SECOND_US, requests=2)
    log.serve(2 * SECOND_US, requests=1, took_us=6_000)
    log.write(work)
    ingest(work)
    assert table(work, "vgpu_minutes", VGPU_COUNTS) == [
        (0, "gpu-0.0.0", "a", 0, "GPU", 300, 2, 4_000 + 3_000, 5_000 + 3_000),
        (2, "gpu-2.0.0", "a", 1, "GPU", 300, 2, 4_000 + 3_000, 2_500 + 2_000),
    ]


@pytest.mark.long
def test_the_end_of_a_shared_batch_is_that_of_its_members_and_one_run(tmp_path: Path) -> None:
    work = workspace_of(tmp_path, the_plan())
    log = Log()
    log.plan("one", 1)
    batches = [log.dispatch((log.arrive(SECOND_US),), (0, 2)) for _ in range(2)]
    for batch in batches:
        log.done(batch, 0, SECOND_US, SECOND_US + 3_000)
    capacity = tuple(Member(batch, 1, row, 1) for row, batch in enumerate(batches))
    start_us = log.start_us + SECOND_US
    shared_batch: dict[str, int] = {
        "shared_batch_id": 9,
        "start_us": start_us,
        "end_us": start_us + 6_000,
    }
    log.say(SharedBatch(**shared_batch, capacity=2, members=capacity))
    log.say(SharedBatchDone(**shared_batch, now_us=start_us + 6_000))
    half = len(log.lines) - 1
    log.write(work, lines=slice(half))
    ingest(work)
    log.write(work)
    ingest(work)
    assert table(work, "model_minutes", COUNTS) == [(NOON, "a", 2, 2, 0, 0, 0, 2, 2, 12_000)]
    assert table(work, "vgpu_minutes", VGPU_COUNTS) == [
        (0, "gpu-0.0.0", "a", 0, "GPU", 300, 2, 6_000, 6_000),
        (2, "gpu-2.0.0", "a", 1, "GPU", 300, 1, 6_000, 2_500),
    ]


@pytest.mark.long
def test_a_shared_vgpu_counts_by_the_models_of_its_batches(tmp_path: Path) -> None:
    work = workspace_of(tmp_path, shared_plan())
    log = Log()
    log.plan("shared", 1)
    for model in (0, 1, 1):
        batch = log.dispatch((log.arrive(SECOND_US, model),), (0,), model=model)
        log.done(batch, 0, SECOND_US, SECOND_US + 4_000)
    log.write(work)
    ingest(work)
    assert table(work, "vgpu_minutes", VGPU_COUNTS) == [
        (0, "gpu-0.0.0", "a", 0, "GPU", 150, 1, 4_000, 3_000),
        (0, "gpu-0.0.0", "b", 0, "GPU", 150, 2, 8_000, 2 * 2_000),
    ]
    assert table(work, "model_minutes", "model, served, batches") == [("a", 1, 1), ("b", 2, 2)]


def as_format_2(document: dict[str, Any]) -> dict[str, Any]:
    """A cursor as it was written when a batch had the numbers of its plan; there is one model."""
    document["format"] = 2
    assert document["batches"]
    document["batches"] = [
        (key, [ids, 0, 0, path, samples])
        for key, (ids, _, _, samples, path, *_) in document["batches"]
    ]
    return document


def as_format_1(document: dict[str, Any]) -> dict[str, Any]:
    """A cursor as it was written when vGPUs had one stage each."""
    document = as_format_2(document)
    del document["format"]
    document["batches"] = [
        (key, [ids, path, n]) for key, (ids, _, _, path, n) in document["batches"]
    ]
    document["vgpus"] = [
        ((plan_id, vgpu, minute), (model, stage, gpu_class, 300 // share, [1]), counts)
        for (plan_id, vgpu, model, stage, minute), (_, gpu_class, share), counts in document[
            "vgpus"
        ]
    ]
    assert document["vgpus"]
    return document


@pytest.mark.long
@pytest.mark.parametrize("earlier", [as_format_1, as_format_2])
def test_reading_goes_on_from_a_cursor_of_an_earlier_format(
    tmp_path: Path, earlier: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    log, plan = mixed_log(), the_plan()
    whole = workspace_of(tmp_path / "whole", plan)
    log.write(whole)
    ingest(whole)
    grown = workspace_of(tmp_path / "grown", plan)
    path = log.write(grown, lines=slice(5))  # a batch is on its way, with its first stage done
    ingest(grown)
    with grown.open() as warehouse:
        (row,) = warehouse.rows("SELECT source, document FROM ingest_cursors")
        document = earlier(json.loads(row["document"]))
        warehouse.insert(
            "ingest_cursors",
            [row | {"document": json.dumps(document), "changed_at": NOON}],
            replace=True,
        )
    path = log.write(grown)
    assert ingest(grown).bytes_read < path.stat().st_size
    columns = "vgpu, model, stage, batches, busy_us, profiled_us"
    assert table(grown, "vgpu_minutes", columns) == table(whole, "vgpu_minutes", columns)
    assert table(grown, "model_minutes", "*") == table(whole, "model_minutes", "*")


def test_a_batch_that_ends_under_a_later_plan_counts_for_its_own(tmp_path: Path) -> None:
    work = workspace_of(tmp_path, shared_plan(), the_plan())
    log = Log()
    log.plan("shared", 1)
    batch = log.dispatch((log.arrive(SECOND_US, 1),), (0,), model=1)
    log.plan("one", 2, at_us=SECOND_US, rollout=True)
    log.done(batch, 0, SECOND_US, SECOND_US + 4_000)
    log.write(work)
    ingest(work)
    counts = "plan_id, vgpu, model, stage, batches, busy_us, profiled_us"
    assert table(work, "vgpu_minutes", counts) == [("shared", 0, "b", 0, 1, 4_000, 2_000)]
    assert table(work, "model_minutes", "plan_id, model, served") == [("shared", "b", 1)]


@pytest.mark.long
def test_reading_twice_changes_nothing(tmp_path: Path) -> None:
    work = workspace_of(tmp_path, the_plan())
    mixed_log().write(work)
    first = ingest(work)
    before = everything(work)
    second = ingest(work)
    assert (first.bytes_read > 0, second.bytes_read, second.minutes) == (True, 0, 0)
    assert everything(work) == before


@pytest.mark.slow
@pytest.mark.parametrize("piece", [1, 1 << 20])
def test_a_growing_file_ends_with_the_rows_of_the_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    log, plan = mixed_log(), the_plan()
    whole = workspace_of(tmp_path / "whole", plan)
    log.write(whole)
    ingest(whole)
    monkeypatch.setattr(module, "PIECE_BYTES", piece)
    grown = workspace_of(tmp_path / "grown", plan)
    for lines in range(1, len(log.lines) + 1, 3 if piece > 1 else 30):
        path = log.write(grown, lines=slice(lines))
        with path.open("a") as file:
            file.write(log.lines[min(lines, len(log.lines) - 1)][:20])  # being written just now
        ingest(grown)
    log.write(grown)
    ingest(grown)
    assert everything(grown) == everything(whole)


@pytest.mark.long
@pytest.mark.parametrize("roll", [0, 9_999])
def test_a_request_may_end_in_the_next_file_and_an_old_file_may_be_gone(
    tmp_path: Path, roll: int
) -> None:
    log, plan = mixed_log(), the_plan()
    whole = workspace_of(tmp_path / "whole", plan)
    log.write(whole)
    ingest(whole)
    rolled = workspace_of(tmp_path / "rolled", plan)
    first = log.write(rolled, roll=roll, lines=slice(10))
    ingest(rolled)
    log.write(rolled, roll=roll + 1, lines=slice(10, None))
    first.unlink()
    ingest(rolled)
    assert everything(rolled) == everything(whole)


@pytest.mark.long
def test_a_file_that_rolls_away_while_it_is_read_keeps_no_other_from_being_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, work = mixed_log(), workspace_of(tmp_path, the_plan())
    first = log.write(work, roll=0, lines=slice(10))
    second = log.write(work, roll=1, lines=slice(10, None))
    line = len(f"{log.lines[0]}\n".encode())
    real = module.add_statistics

    def store(*given: Any) -> None:
        real(*given)
        first.unlink(missing_ok=True)

    monkeypatch.setattr(module, "add_statistics", store)
    monkeypatch.setattr(module, "PIECE_BYTES", 1)
    assert ingest(work).bytes_read == line + second.stat().st_size
    assert ingest(work).bytes_read == 0


def test_a_rollout_splits_a_minute_by_plan_and_keeps_who_waited(tmp_path: Path) -> None:
    work = workspace_of(tmp_path, the_plan("one"), the_plan("two", names=("a",)))
    log = Log()
    log.plan("one", 1)
    log.serve(SECOND_US)
    waiting, dropped = log.arrive(2 * SECOND_US), log.arrive(2 * SECOND_US, model=1)
    log.plan("two", 2, at_us=2 * SECOND_US + 1_000, rollout=True)
    log.drop(dropped, reason=DropReason.MODEL_REMOVED)
    batch = log.dispatch((waiting,), (1, 3))
    log.done(batch, 0, 2 * SECOND_US + 1_000, 2 * SECOND_US + 2_000)
    log.done(batch, 1, 2 * SECOND_US + 2_000, 2 * SECOND_US + 3_000)
    log.serve(3 * SECOND_US)
    log.write(work)
    ingest(work)
    assert table(work, "model_minutes", "plan_id, model, offered, served, dropped, batches") == [
        ("one", "a", 2, 2, 0, 1),
        ("one", "b", 1, 0, 1, 0),
        ("two", "a", 1, 1, 0, 2),
    ]
    assert table(work, "drop_minutes", "model, reason, dropped") == [("b", "model_removed", 1)]


@pytest.mark.long
def test_what_was_open_when_the_gateway_ended_has_failed(tmp_path: Path) -> None:
    work = workspace_of(tmp_path, the_plan())
    killed = Log()
    killed.plan("one", 1)
    killed.serve(SECOND_US)
    killed.arrive(2 * SECOND_US)
    path = killed.write(work)
    with path.open("a") as file:
        file.write('{"t":"Arrival","now_us":7')
    ingest(work)
    assert table(work, "model_minutes", "offered, served, failed") == [(2, 1, 0)]
    again = Log(STARTED_US + 30 * SECOND_US)
    again.plan("one", 1, at_us=30 * SECOND_US)
    again.lines[-1] = again.lines[-1].replace(
        f'"now_us": {again.start_us + 30 * SECOND_US}', f'"now_us": {again.start_us}'
    )
    again.serve(SECOND_US)
    again.write(work)
    for _ in range(2):
        ingest(work)
        assert table(work, "model_minutes", "offered, served, failed") == [(1, 1, 0), (2, 1, 1)]
    instances = table(work, "model_minutes", "DISTINCT instance")
    assert instances == [("2026-01-01T12:00:00+00:00",), ("2026-01-01T12:00:30+00:00",)]


def test_an_aborted_batch_counts_when_its_requests_run_again(tmp_path: Path) -> None:
    work = workspace_of(tmp_path, the_plan())
    log = Log()
    log.plan("one", 1)
    request = log.arrive(SECOND_US)
    lost = log.dispatch((request,), (0, 2))
    log.say(Abort(batch_id=lost))
    log.done(lost, 0, SECOND_US, SECOND_US + 1_000)
    batch = log.dispatch((request,), (1, 2))
    log.done(batch, 0, SECOND_US, SECOND_US + 4_000)
    log.done(batch, 1, SECOND_US + 4_000, SECOND_US + 8_000)
    log.write(work)
    ingest(work)
    assert table(work, "model_minutes", COUNTS) == [(NOON, "a", 1, 1, 0, 0, 0, 1, 1, 8_000)]


def test_an_outcome_that_never_comes_is_given_up(tmp_path: Path) -> None:
    work = workspace_of(tmp_path, the_plan())
    log = Log()
    log.plan("one", 1)
    log.arrive(SECOND_US)
    log.serve(12 * MINUTE_US)
    log.write(work)
    ingest(work)
    assert table(work, "model_minutes", "offered, served, failed") == [(1, 0, 1), (1, 1, 0)]


@pytest.mark.long
def test_the_plan_of_an_older_start_is_read_from_the_warehouse(tmp_path: Path) -> None:
    work = workspace_of(tmp_path, the_plan("newer"))
    log = Log()
    log.plan("one", 1)
    log.serve(SECOND_US)
    log.write(work)
    with work.open() as warehouse:
        add_plan(warehouse, the_plan("one"), NOON)
    assert ingest(work).skipped == 0
    assert table(work, "model_minutes", "plan_id, served") == [("one", 1)]


def test_lines_of_a_plan_nobody_knows_are_counted_and_passed_over(tmp_path: Path) -> None:
    work = workspace_of(tmp_path)
    log = Log()
    log.plan("gone", 1)
    log.serve(SECOND_US)
    log.write(work)
    assert ingest(work).skipped == 4
    assert everything(work) == [[], [], []]


def test_nothing_is_read_where_nothing_was_served(tmp_path: Path) -> None:
    work = workspace_of(tmp_path)
    assert ingest(work).bytes_read == 0


@pytest.mark.long
def test_a_job_counts_for_its_application_and_its_modules_rows_with_it(tmp_path: Path) -> None:
    plan = with_applications(
        the_plan("apps"),
        hand_application(
            "app",
            [
                hand_module("first", "a"),
                hand_module("second", "b", "first", rows=2.0, max_rows=4, optional=True),
            ],
        ),
    )
    work, log = workspace_of(tmp_path, plan), Log()
    log.plan("apps", 1)

    def arrive(job: int, at_us: int, samples: int = 1) -> None:
        now_us = STARTED_US + at_us
        deadline_us = now_us + SLO_US
        log.say(
            JobArrival(
                now_us=now_us, job_id=job, application=0, deadline_us=deadline_us, samples=samples
            )
        )

    def run(job: int, module: int, pieces: tuple[int, ...], at_us: int, took_us: int) -> None:
        first = 0
        for rows in pieces:
            task = FIRST_TASK + len(log.lines)
            ready = TaskReady(
                request_id=task,
                job_id=job,
                module=module,
                first_row=first,
                rows=rows,
                of_rows=sum(pieces),
            )
            log.say(ready)
            first += rows
            batch = log.dispatch((task,), (4,) if module else (0, 2), model=module)
            for stage in range(1 if module else 2):
                log.done(batch, stage, at_us, at_us + took_us)

    arrive(7, SECOND_US)  # three rows in two pieces
    run(7, 0, (1,), SECOND_US, 1_000)
    run(7, 1, (2, 1), SECOND_US + 1_000, 8_000)
    log.say(JobDone(job_id=7))
    arrive(8, 2 * SECOND_US, samples=2)  # no rows
    log.say(JobDropped(job_id=8, reason=DropReason.BEGUN_ANEW, deadline_us=0))
    arrive(8, 2 * SECOND_US, samples=2)
    run(8, 0, (2,), 2 * SECOND_US, 1_000)
    log.say(ModuleSkipped(job_id=8, module=1))
    log.say(JobDone(job_id=8))
    arrive(9, 3 * SECOND_US)  # late
    run(9, 0, (1,), 3 * SECOND_US, SLO_US + 1)
    log.say(ModuleSkipped(job_id=9, module=1, reason=DropReason.DEADLINE))
    log.say(JobDone(job_id=9))
    arrive(10, 4 * SECOND_US)
    log.say(JobDropped(job_id=10, reason=DropReason.DEADLINE, deadline_us=0, module=0))
    arrive(12, 4 * SECOND_US)
    log.say(JobDropped(job_id=12, reason=DropReason.FAILED, deadline_us=0))
    refused_us = STARTED_US + 5 * SECOND_US
    log.say(RefusedJob(now_us=refused_us, application=0, deadline_us=refused_us, samples=1))
    arrive(11, MINUTE_US)  # and nothing more is known of it
    path = log.write(work, lines=slice(4))
    ingest(work)
    log.write(work)
    ingest(work)
    assert path.exists()
    later = NOON + timedelta(minutes=1)
    jobs = [row for row in table(work, "model_minutes", COUNTS) if row[1] == "app"]
    assert jobs == [
        (NOON, "app", 6, 2, 1, 2, 1, 0, 0, 9_000 + 1_000 + SLO_US + 1),
        (later, "app", 1, 0, 0, 0, 0, 0, 0, 0),
    ]
    assert table(work, "module_minutes", "minute, application, module, samples, rows") == [
        (NOON, "app", "first", 4, 4),
        (NOON, "app", "second", 3, 3),
    ]
    assert table(work, "drop_minutes", "model, reason, dropped") == [
        ("app", "deadline", 1),
        ("app", "overload", 1),
    ]


@pytest.mark.long
@pytest.mark.parametrize("named_by_us", [10**9, 1_800_000_000_000_000])
def test_a_life_after_the_hosts_restart_is_read_on(tmp_path: Path, named_by_us: int) -> None:
    """Names of an earlier form are instants of the host's clock, which begins again."""
    work = workspace_of(tmp_path, the_plan())
    former = Log(10**12)
    former.plan("one", 1)
    former.write(work)
    ingest(work)
    log = Log(10**9)
    log.plan("one", 1, at_us=MINUTE_US)
    log.serve(MINUTE_US + SECOND_US)
    rest = len(log.lines)
    log.serve(MINUTE_US + 2 * SECOND_US, requests=500)
    log.start_us = named_by_us
    log.write(work, lines=slice(rest))
    ingest(work)
    log.write(work)
    assert ingest(work).bytes_read > 0
    offered = table(work, "model_minutes", "minute, model, offered")
    assert offered == [(NOON + timedelta(minutes=1), "a", 501)]


@pytest.mark.long
def test_requests_count_once_at_their_entry_however_they_end(tmp_path: Path) -> None:
    plan = two_tails()
    first, second = plan.models[0].entries
    log = Log()
    log.plan(plan.plan_id, 1)
    put_off = log.arrive(SECOND_US, entry=1)
    log.drop(put_off)
    log.arrive_again(put_off, SECOND_US, 2 * SECOND_US, entry=1)
    log.drop(log.arrive(3 * SECOND_US))
    log.arrive(4 * SECOND_US, entry=1, low=1)  # plans are not made for it
    refused_us = STARTED_US + 5 * SECOND_US
    refused = Refused(now_us=refused_us, model=0, deadline_us=refused_us, samples=1, entry=1)
    log.say(refused)
    log.arrive(MINUTE_US)
    columns = "minute, model, entry, block, budget_us, offered"
    name, later = plan.models[0].name, NOON + timedelta(minutes=1)
    expected = [
        (NOON, name, first.name, first.block, first.budget_us, 1),
        (NOON, name, second.name, second.block, second.budget_us, 2),
        (later, name, first.name, first.block, first.budget_us, 1),
    ]
    grown = workspace_of(tmp_path / "grown", plan)
    for lines in range(1, len(log.lines) + 1):
        log.write(grown, lines=slice(lines))
        ingest(grown)
    whole = workspace_of(tmp_path / "whole", plan)
    log.write(whole)
    ingest(whole)
    for work in (grown, whole):
        assert table(work, "entry_minutes", columns) == sorted(expected)
