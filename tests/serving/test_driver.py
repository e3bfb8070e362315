"""The gateway told things by hand: no socket, no clock."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from flows.release.render import ServeOptions
from tests.serving.gateway import HeldGateway, Letter
from tests.serving.plans import BATCH, SLO_US, plan, two_stage
from tests.serving.system import deploy
from triton_backend.core.decisions import DropReason
from triton_backend.core.errors import InputError
from triton_backend.serving.counters import State
from triton_backend.serving.driver import WAKE_US
from triton_backend.serving.driver_letters import Front, Worker
from triton_backend.serving.settings import Deployment
from triton_backend.serving.slow import LAST_RUNS, OVERDUE_AT_LEAST_US, PaceWatch
from triton_backend.serving.wire import HEADER_BYTES, Kind, parse_header
from triton_backend.serving.wire_bodies import (
    DROP_REASONS,
    LOCALS,
    ArrivalBody,
    DispatchBody,
    DropBody,
    TimesBody,
    unpack_dispatch,
    unpack_drop,
)

PAIR = Front("pair")
EPOCH = 7


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return deploy(tmp_path, plan(two_stage()), ServeOptions())


@pytest.fixture
def gateway(deployment: Deployment) -> HeldGateway:
    made = HeldGateway(deployment, epoch=EPOCH)
    for vgpu in range(3):
        made.worker_up(Worker(1, vgpu), 0)
    made.letters()
    return made


def arrive(gateway: HeldGateway, *numbers: int, now_us: int = 10, samples: int = 1) -> None:
    for number in numbers:
        gateway.intake.arrival(PAIR, ArrivalBody(number, now_us + SLO_US, samples), now_us)


def kinds(letters: list[Letter]) -> list[Kind]:
    return [parse_header(letter.data).kind for letter in letters]


def dispatches(letters: list[Letter]) -> list[tuple[int, DispatchBody]]:
    return [
        (parse_header(letter.data).batch_id, unpack_dispatch(letter.data[HEADER_BYTES:]))
        for letter in letters
        if parse_header(letter.data).kind is Kind.DISPATCH
    ]


def drops(letters: list[Letter]) -> list[DropBody]:
    return [
        unpack_drop(letter.data[HEADER_BYTES:])
        for letter in letters
        if parse_header(letter.data).kind is Kind.DROP
    ]


def finish(gateway: HeldGateway, batch: int, body: DispatchBody, now_us: int) -> None:
    for stage, hop in enumerate(body.hops):
        if stage:
            gateway.reports.transfer_done(batch, stage, TimesBody(hop.vgpu, now_us, now_us), now_us)
        gateway.reports.stage_done(batch, stage, TimesBody(hop.vgpu, now_us, now_us), now_us)


def test_a_full_batch_goes_to_its_front_with_a_path_and_slots(gateway: HeldGateway) -> None:
    arrive(gateway, 1, 2, 3, 4)
    ((batch, body),) = dispatches(gateway.letters())
    assert batch >> 32 == EPOCH
    assert (body.samples, body.requests) == (BATCH, (1, 2, 3, 4))
    assert [hop.vgpu for hop in body.hops] == [0, 1]
    assert gateway.in_flight == 1
    finish(gateway, batch, body, 50_000)
    assert gateway.in_flight == 0
    assert gateway.status()["counters"]["stage_runs"] == {"pair/0/FAST/0": 1, "pair/0/SLOW/1": 1}


def test_what_waits_is_dispatched_by_the_timer_before_the_last_moment(gateway: HeldGateway) -> None:
    arrive(gateway, 1)
    assert not gateway.letters()
    ring_us = gateway.timer_us
    assert ring_us is not None
    assert ring_us < 10 + SLO_US - gateway.deployment.settings.guard_us(SLO_US)
    gateway.timer(ring_us)
    ((_, body),) = dispatches(gateway.letters())
    assert body.requests == (1,)


def test_the_same_request_told_twice_counts_once(gateway: HeldGateway) -> None:
    arrive(gateway, 1, 1, 2, 3)
    assert not gateway.letters()
    assert dict(gateway.waiting()) == {"pair": 3}


@pytest.mark.parametrize("number", [-1, LOCALS, 1 << 62])
def test_a_number_that_would_be_another_fronts_is_refused(
    gateway: HeldGateway, number: int
) -> None:
    with pytest.raises(InputError, match="fronts count from 0"):
        arrive(gateway, number)
    with pytest.raises(InputError, match="fronts count from 0"):
        gateway.intake.cancel(PAIR, number, 20)
    gateway.intake.cancel(Front("other"), 0, 20)
    assert dict(gateway.waiting()) == {"pair": 0}


def test_a_model_that_is_not_planned_is_refused(gateway: HeldGateway) -> None:
    gateway.intake.arrival(Front("other"), ArrivalBody(1, SLO_US, 1), 10)
    (letter,) = gateway.letters()
    (drop,) = drops([letter])
    assert letter.to == Front("other")
    assert DROP_REASONS[drop.reason] is DropReason.MODEL_REMOVED


def test_a_lost_front_takes_its_queue_along(gateway: HeldGateway) -> None:
    arrive(gateway, 1, 2)
    gateway.intake.front_lost(PAIR, 20)
    assert dict(gateway.waiting()) == {"pair": 0}
    reasons = {DROP_REASONS[drop.reason] for drop in drops(gateway.letters())}
    assert reasons == {DropReason.CANCELLED}


def test_a_lost_worker_aborts_its_batch_and_the_requests_run_elsewhere(
    gateway: HeldGateway,
) -> None:
    arrive(gateway, 1, 2, 3, 4)
    ((batch, body),) = dispatches(gateway.letters())
    lost = body.hops[1].vgpu
    gateway.worker_lost(Worker(1, lost), 20)
    letters = gateway.letters()
    assert kinds(letters).index(Kind.ABORT) < kinds(letters).index(Kind.DISPATCH)
    assert Worker(1, body.hops[0].vgpu) in {letter.to for letter in letters}
    ((again, new_body),) = dispatches(letters)
    assert again != batch
    assert new_body.requests == body.requests
    assert lost not in {hop.vgpu for hop in new_body.hops}
    finish(gateway, batch, body, 40_000)
    assert gateway.in_flight == 1
    finish(gateway, again, new_body, 50_000)
    assert gateway.in_flight == 0


def test_a_batch_that_cannot_be_run_frees_all_it_reserved(gateway: HeldGateway) -> None:
    arrive(gateway, 1, 2, 3, 4)
    ((batch, _),) = dispatches(gateway.letters())
    gateway.reports.batch_failed(batch, 1, 30)
    assert gateway.in_flight == 1
    gateway.reports.batch_failed(batch, 0, 30)
    assert gateway.in_flight == 0
    assert gateway.status()["counters"]["batches_failed"] == 1


@pytest.mark.parametrize("stage", [-1, 0, 1, 2, 99])
@pytest.mark.parametrize("batch", [0, (EPOCH << 32) + 5, -1])
def test_reports_about_unknown_batches_change_nothing(
    gateway: HeldGateway, stage: int, batch: int
) -> None:
    before = gateway.status()
    for told in (gateway.reports.stage_done, gateway.reports.transfer_done):
        told(batch, stage, TimesBody(0, 0, 0), 20)
    gateway.reports.batch_failed(batch, stage, 20)
    gateway.worker_lost(Worker(9, 0), 20)
    gateway.intake.cancel(PAIR, 99, 20)
    assert gateway.status() == before


def test_a_stage_told_by_another_worker_changes_nothing(gateway: HeldGateway) -> None:
    arrive(gateway, 1, 2, 3, 4)
    ((batch, body),) = dispatches(gateway.letters())
    gateway.reports.stage_done(batch, 0, TimesBody(2, 20, 20), 20)
    gateway.reports.stage_done(batch, 1, TimesBody(3 - body.hops[1].vgpu, 20, 20), 20)
    assert not gateway.status()["counters"]["stage_runs"]
    finish(gateway, batch, body, 50_000)
    assert gateway.in_flight == 0


def test_reports_read_in_the_wrong_order_end_their_batch(gateway: HeldGateway) -> None:
    arrive(gateway, 1, 2, 3, 4)
    ((batch, body),) = dispatches(gateway.letters())
    gateway.reports.transfer_done(batch, 1, TimesBody(body.hops[1].vgpu, 21, 22), 50_000)
    gateway.reports.stage_done(batch, 1, TimesBody(body.hops[1].vgpu, 22, 30), 50_000)
    assert gateway.in_flight == 1
    gateway.reports.stage_done(batch, 0, TimesBody(body.hops[0].vgpu, 10, 20), 50_000)
    assert gateway.in_flight == 0
    assert sum(gateway.status()["counters"]["stage_runs"].values()) == 2


def test_a_failure_read_before_the_stage_that_went_well_ends_its_batch(
    gateway: HeldGateway,
) -> None:
    arrive(gateway, 1, 2, 3, 4)
    ((batch, body),) = dispatches(gateway.letters())
    gateway.reports.batch_failed(batch, 1, 50_000)
    gateway.reports.stage_done(batch, 0, TimesBody(body.hops[0].vgpu, 10, 20), 50_000)
    assert gateway.in_flight == 0
    assert gateway.status()["counters"]["batches_failed"] == 1


def rollout(gateway: HeldGateway, tmp_path: Path, *, up: bool = True) -> Deployment:
    new = deploy(tmp_path, replace(gateway.deployment.plan, plan_id="next"), generation=2)
    gateway.prepare(new)
    if up:
        for vgpu in range(3):
            gateway.worker_up(Worker(2, vgpu), 20)
    return new


def test_a_swap_waits_for_workers_and_for_what_is_in_flight(
    gateway: HeldGateway, tmp_path: Path
) -> None:
    arrive(gateway, 1, 2, 3, 4)
    ((batch, body),) = dispatches(gateway.letters())
    new = rollout(gateway, tmp_path, up=False)
    assert kinds(gateway.letters()) == [Kind.PLAN]
    for told, refusal in ((lambda: None, "0 of 3 workers"), (_ups(gateway), "not flushed")):
        told()
        with pytest.raises(InputError, match=refusal):
            gateway.swap(30)
    gateway.flush(40)
    arrive(gateway, 5, 6, 7, 8, now_us=41)
    assert gateway.state is State.FLUSHING
    finish(gateway, batch, body, 50_000)
    assert gateway.state is State.FLUSHED
    assert not dispatches(gateway.letters())
    gateway.swap(60_000)
    ((_, later),) = dispatches(gateway.letters())
    assert later.requests == (5, 6, 7, 8)
    assert gateway.status()["generation"] == new.generation


def _ups(gateway: HeldGateway) -> Callable[[], None]:
    def told() -> None:
        for vgpu in range(3):
            gateway.worker_up(Worker(2, vgpu), 20)

    return told


def test_an_abort_dispatches_what_waited_under_the_old_plan(
    gateway: HeldGateway, tmp_path: Path
) -> None:
    rollout(gateway, tmp_path)
    gateway.flush(30)
    arrive(gateway, 1, 2, 3, 4, now_us=31)
    gateway.letters()
    gateway.abort(40)
    ((_, body),) = dispatches(gateway.letters())
    assert body.requests == (1, 2, 3, 4)
    assert gateway.status()["prepared"] is None


def test_a_flush_that_nobody_ends_is_aborted_while_what_waits_can_be_served(
    gateway: HeldGateway, tmp_path: Path
) -> None:
    rollout(gateway, tmp_path)
    slo_us = gateway.deployment.plan.models[0].slo_us
    gateway.flush(30)
    arrive(gateway, 1, 2, 3, 4, now_us=31)
    gateway.letters()
    gateway.look(40)
    gateway.look(40 + min(99_000, slo_us // 3 - 1))
    assert gateway.state is State.FLUSHED
    gateway.look(40 + max(100_000, slo_us // 3))
    ((_, body),) = dispatches(gateway.letters())
    assert body.requests == (1, 2, 3, 4)
    assert (gateway.state, gateway.status()["prepared"]) == (State.SERVING, None)


def test_instants_that_go_back_are_told_as_the_last_one(gateway: HeldGateway) -> None:
    arrive(gateway, 1, now_us=1000)
    arrive(gateway, 2, now_us=500)
    assert dict(gateway.waiting()) == {"pair": 2}


def test_who_waits_for_a_slot_keeps_no_other_model_waiting(tmp_path: Path) -> None:
    deployment = deploy(tmp_path, plan(two_stage(), two_stage("other")), ServeOptions())
    gateway = HeldGateway(deployment)
    for vgpu in deployment.vgpus:
        gateway.worker_up(Worker(1, vgpu.index), 0)
    slots = deployment.worker_slots(0)
    for number in range(BATCH * (slots + 2)):
        gateway.intake.arrival(PAIR, ArrivalBody(number, 10**9, 1), 10)
    gateway.letters()
    assert gateway.in_flight == slots + 2
    for number in range(BATCH):
        gateway.intake.arrival(Front("other"), ArrivalBody(number, 10**9, 1), 20)
    (letter,) = gateway.letters()
    assert (letter.to, kinds([letter])) == (Front("other"), [Kind.DISPATCH])


def test_batches_wait_for_slots_rather_than_share_them(gateway: HeldGateway) -> None:
    slots = gateway.deployment.worker_slots(0)
    for number in range(BATCH * (slots + 2)):
        gateway.intake.arrival(PAIR, ArrivalBody(number, 10**9, 1), 10)
    sent = dispatches(gateway.letters())
    assert len(sent) == slots
    assert len({body.hops[0].slot for _, body in sent}) == slots
    assert gateway.in_flight == slots + 2
    batch, body = sent[0]
    finish(gateway, batch, body, 20)
    assert len(dispatches(gateway.letters())) == 1


def run_full_batch(gateway: HeldGateway, first: int, slow_vgpu: int, factor: int) -> list[Letter]:
    """Serve a batch and answer trials; a stage takes 5 ms, on one vGPU `factor` times as long."""
    now_us = first * 10**6
    arrive(gateway, *range(first, first + BATCH), now_us=now_us)
    letters = gateway.letters()
    for batch, body in dispatches(letters):
        for stage, hop in enumerate(body.hops):
            took_us = 5_000 * (factor if hop.vgpu == slow_vgpu else 1)
            if stage:
                gateway.reports.transfer_done(
                    batch, stage, TimesBody(hop.vgpu, now_us, now_us), now_us
                )
            now_us += took_us
            gateway.reports.stage_done(
                batch, stage, TimesBody(hop.vgpu, now_us - took_us, now_us), now_us
            )
    gateway.look(now_us)
    letters = gateway.letters()
    for letter in letters:
        if parse_header(letter.data).kind is Kind.TRIAL and isinstance(letter.to, Worker):
            took_us = 5_000 * (factor if letter.to.vgpu == slow_vgpu else 1)
            times = TimesBody(letter.to.vgpu, now_us - took_us, now_us)
            gateway.trial_done(letter.to, times, now_us)
    return letters


@pytest.mark.parametrize(("slow_vgpu", "drained"), [(1, True), (0, False)])
def test_a_worker_that_stays_slow_is_drained_where_its_pool_has_another(
    gateway: HeldGateway, slow_vgpu: int, *, drained: bool
) -> None:
    for number in range(1, 30):
        run_full_batch(gateway, number * BATCH, slow_vgpu, 4)
    assert gateway.status()["workers"]["up"] == 3 - drained
    assert gateway.counters.workers_drained == drained


def test_workers_that_are_all_slow_are_left_alone() -> None:
    watch = PaceWatch([(0, 0, 0)] * 3)
    for _ in range(LAST_RUNS):
        for vgpu in range(3):
            watch.ran(vgpu, took_us=40_000, expected_us=10_000, late_us=0)
    assert not any(watch.is_slow(vgpu, (0, 1, 2)) for vgpu in range(3))
    for _ in range(LAST_RUNS):
        watch.ran(2, took_us=100_000, expected_us=10_000, late_us=0)
    assert [watch.is_slow(vgpu, (0, 1, 2)) for vgpu in range(3)] == [False, False, True]
    assert not watch.is_slow(2, (2,))
    watch.forget(2)
    assert not watch.is_slow(2, (0, 1, 2))


def test_a_few_late_runs_are_not_slowness() -> None:
    watch = PaceWatch([(0, 0, 0)] * 2)
    for run in range(LAST_RUNS):
        watch.ran(0, took_us=1_000, expected_us=1_000, late_us=0)
        watch.ran(1, took_us=90_000 if run % 3 == 0 else 1_000, expected_us=1_000, late_us=0)
    assert not watch.is_slow(1, (0, 1))


def test_where_all_reports_are_late_more_patience_is_had() -> None:
    watch = PaceWatch([(0, 0, 0)] * 2)
    assert watch.overdue_after_us(1_000) == OVERDUE_AT_LEAST_US
    for _ in range(200):
        watch.ran(0, took_us=1_000, expected_us=1_000, late_us=100_000)
    assert watch.overdue_after_us(1_000) > 5 * OVERDUE_AT_LEAST_US


def test_a_batch_long_overdue_runs_again_elsewhere(gateway: HeldGateway) -> None:
    arrive(gateway, 1, 2, 3, 4)
    ((batch, body),) = dispatches(gateway.letters())
    gateway.reports.stage_done(batch, 0, TimesBody(0, 10, 5_010), 5_010)
    gateway.look(10_000 + OVERDUE_AT_LEAST_US)
    assert not gateway.letters()
    gateway.look(11_000 + OVERDUE_AT_LEAST_US)
    letters = gateway.letters()
    assert {Kind.RETIRE, Kind.ABORT, Kind.DISPATCH} <= set(kinds(letters))
    ((_, again),) = dispatches(letters)
    assert again.requests == body.requests
    assert again.hops[1].vgpu == 2


def test_the_only_worker_of_a_pool_is_waited_for(gateway: HeldGateway) -> None:
    arrive(gateway, 1, 2, 3, 4)
    gateway.letters()
    gateway.look(10 * OVERDUE_AT_LEAST_US)
    assert not gateway.letters()
    assert gateway.in_flight == 1


def test_a_new_scheduler_waits_for_the_workers_of_the_old_one(deployment: Deployment) -> None:
    gateway = HeldGateway(deployment, epoch=EPOCH)
    arrive(gateway, 1, 2, 3, 4)
    gateway.worker_up(Worker(1, 0), 20)
    gateway.worker_up(Worker(1, 1), 30)
    assert not gateway.letters()
    gateway.worker_up(Worker(1, 2), 40)
    assert kinds(gateway.letters()) == [Kind.DISPATCH]


def test_workers_that_never_report_do_not_hold_up_the_others(deployment: Deployment) -> None:
    gateway = HeldGateway(deployment, epoch=EPOCH)
    gateway.worker_up(Worker(1, 0), 20)
    gateway.worker_up(Worker(1, 1), 30)
    arrive(gateway, 1, 2, 3, 4, now_us=WAKE_US - 100)
    gateway.look(WAKE_US - 50)
    assert not gateway.letters()
    gateway.look(WAKE_US)
    assert kinds(gateway.letters()) == [Kind.DISPATCH]
