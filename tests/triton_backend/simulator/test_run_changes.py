"""Plans that change under load.

Nothing is lost, nothing accepted is late, a worker runs one batch at a time.
"""

from dataclasses import replace
from heapq import heappop, heappush

import numpy as np
import pytest

from tests.fakes.changes import ChangingRun, check_run, random_run
from tests.fakes.plans import Own, make_plan, two_stages
from tests.interpreters import printed_by
from triton_backend.contract.decisions import Decision, Dispatch, Drop, SetTimer
from triton_backend.contract.errors import InputError
from triton_backend.contract.events import Arrival, PlanChanged, StageDone, Timer, TransferDone
from triton_backend.contract.plan import Plan
from triton_backend.contract.units import s_to_us
from triton_backend.scheduler.scheduler import Scheduler
from triton_backend.simulator.failures import Failure
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import PlanChange, SimOptions
from triton_backend.simulator.world import DROPPED

SEEDS = 40


@pytest.mark.long
def test_random_changes_lose_nothing_and_make_nothing_late() -> None:
    in_flight = inherited = served = 0
    for seed in range(SEEDS):
        result, wrong = check_run(random_run(seed))
        assert wrong == [], f"seed {seed}"
        in_flight += sum(change.in_flight for change in result.changes)
        inherited += sum(change.inherited for change in result.changes)
        served += sum(model.served for model in result.models)
    assert min(in_flight, inherited, served) > SEEDS


class Exact:
    """Carries out what a scheduler decides exactly as reserved; notes the end of every request."""

    def __init__(self, run: ChangingRun) -> None:
        self._scheduler = Scheduler(run.plan, policy=run.options.policy, nic=run.options.nic)
        self._run = run
        self._names = [model.name for model in run.plan.models]
        self._heap: list[
            tuple[int, int, int, object]
        ] = []  # by instant, then as the simulator orders
        self._batches: dict[int, Dispatch] = {}
        self._pushed = 0
        self._timer_us: int | None = None
        self.ends: dict[int, tuple[int, int]] = {}  # batch, instant; batch -1 for a drop

    def _later(self, at_us: int, kind: int, what: object) -> None:
        self._pushed += 1
        heappush(self._heap, (at_us, kind, self._pushed, what))

    def play(self, requests: np.ndarray) -> None:
        for change in self._run.options.changes:
            self._later(s_to_us(change.at_s), -1, change.plan)
        number = 0
        while self._heap or number < len(requests) or self._timer_us is not None:
            due = [(self._heap[0][:2], "heap")] if self._heap else []
            due += [((self._timer_us, 6), "timer")] if self._timer_us is not None else []
            if number < len(requests):
                due.append(((int(requests[number]["arrival_us"]), 7), "arrival"))
            (now_us, kind), source = min(due)
            if source == "timer":
                self._timer_us = None
                self._obey(self._scheduler.handle(Timer(now_us=now_us)), now_us)
            elif source == "arrival":
                self._arrive(number, requests[number], now_us)
                number += 1
            elif kind < 0:
                plan = heappop(self._heap)[3]
                assert isinstance(plan, Plan)
                self._obey(self._scheduler.handle(PlanChanged(now_us=now_us, plan=plan)), now_us)
            else:
                self._report(heappop(self._heap)[3], now_us)

    def _arrive(self, number: int, row: np.void, now_us: int) -> None:
        names = [model.name for model in self._scheduler.plan.models]
        name = self._names[int(row["model"])]
        if name not in names:
            self.ends[number] = -1, now_us
            return
        arrival = Arrival(
            now_us=now_us,
            request_id=number,
            model=names.index(name),
            deadline_us=int(row["deadline_us"]),
        )
        self._obey(self._scheduler.handle(arrival), now_us)

    def _report(self, event: object, now_us: int) -> None:
        assert isinstance(event, StageDone | TransferDone)
        dispatch = self._batches[event.batch_id]
        if isinstance(event, StageDone) and event.stage == len(dispatch.hops) - 1:
            self.ends |= dict.fromkeys(dispatch.request_ids, (event.batch_id, now_us))
        self._obey(self._scheduler.handle(event), now_us)

    def _obey(self, decided: list[Decision], now_us: int) -> None:
        for decision in decided:
            if isinstance(decision, SetTimer):
                self._timer_us = decision.at_us
            elif isinstance(decision, Drop):
                self.ends[decision.request_id] = -1, now_us
            elif isinstance(decision, Dispatch):
                number = decision.batch_id
                self._batches[number] = decision
                for stage, (_, move_us, moved_us, start_us, end_us) in enumerate(decision.hops):
                    if moved_us > move_us:
                        moved = TransferDone(
                            now_us=moved_us,
                            batch_id=number,
                            stage=stage,
                            start_us=move_us,
                            end_us=moved_us,
                        )
                        self._later(moved_us, 1, moved)
                    done = StageDone(
                        now_us=end_us,
                        batch_id=number,
                        stage=stage,
                        start_us=start_us,
                        end_us=end_us,
                    )
                    self._later(end_us, 0, done)


@pytest.mark.long
def test_the_scheduler_told_of_the_same_changes_decides_the_same() -> None:
    compared = 0
    for seed in range(3 * SEEDS):
        run = random_run(seed)
        options = replace(run.options, admission=False, count_io=False)
        if not run.exact or any(change.flush for change in options.changes):
            continue
        run = replace(run, options=options)
        rows = simulate(run.plan, options).requests
        shell = Exact(run)
        shell.play(rows)
        dropped = rows["outcome"] == DROPPED
        batches = np.where(dropped, -1, rows["batch_id"]).tolist()
        ends = zip(batches, rows["finish_us"].tolist(), strict=True)
        assert shell.ends == dict(enumerate(ends)), f"seed {seed}"
        compared += 1
    assert compared > SEEDS // 3


def test_the_same_plan_again_and_again_changes_nothing() -> None:
    plan = two_stages()
    options = SimOptions(load_factor=0.9, duration_s=1)
    changes = tuple(PlanChange(at_s=0.1 * n, plan=plan) for n in range(1, 9))
    plain, changed = (simulate(plan, options) for options in (options, SimOptions(
        load_factor=0.9, duration_s=1, changes=changes
    )))  # fmt: skip
    assert changed.requests.tobytes() == plain.requests.tobytes()
    assert changed.utilisation == pytest.approx(plain.utilisation)
    assert [change.inherited for change in changed.changes] == [6] * 8


def test_uses_are_numbered_by_the_plan_that_dispatched_them() -> None:
    slow, quick = Own(latency_us=(50_000,), gpus=2), Own(latency_us=(1_000,))
    before = make_plan([[slow]], [[quick]], names=["a", "b"])
    after = make_plan([[quick]], names=["b"], plan_id="after")
    options = SimOptions(load_factor=2.0, duration_s=1, changes=(PlanChange(at_s=0.5, plan=after),))
    result = simulate(before, options)
    assert result.changes[0].in_flight > 0
    former_batches = result.uses[(result.uses["plan"] == 0) & (result.uses["end_us"] > 500_000)]
    numbers = set(former_batches[["vgpu", "model"]].tolist())
    assert {(0, 0), (1, 0)} <= numbers <= {(0, 0), (1, 0), (2, 1)}
    new = result.uses[result.uses["plan"] == 1]
    assert set(new[["vgpu", "model"]].tolist()) == {(0, 0)}
    busy_us = (result.uses["end_us"] - result.uses["start_us"]).sum()
    span_us = result.uses["end_us"].max()
    assert result.utilisation["GPU"] == pytest.approx(busy_us / span_us / 3, rel=1e-9)


def test_a_node_that_has_failed_takes_new_workers_with_it() -> None:
    before = make_plan([[Own(latency_us=(1_000,))]], slo_us=10_000)
    after = make_plan([[Own(latency_us=(2_000,))]], slo_us=10_000, plan_id="after")
    result = simulate(
        before,
        SimOptions(
            load_factor=0.4,
            duration_s=1,
            failures=(Failure(start_s=0.4, end_s=0.8, node="n0"),),
            changes=(PlanChange(at_s=0.6, plan=after),),
        ),
    )
    rows = result.requests
    gone = rows[(rows["arrival_us"] > 400_000) & (rows["arrival_us"] < 785_000)]
    assert set(gone["outcome"].tolist()) == {DROPPED}
    assert result.uses["end_us"].max() > 900_000


APPLICATIONS_LATER = """
from tests.fakes.applications import hand_application, hand_module, with_applications
from tests.fakes.plans import Own, make_plan
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import PlanChange, SimOptions

before = make_plan([[Own(latency_us=(1_000,))]])
after = with_applications(before, hand_application("app", [hand_module("only", "m0")]))
changes = (PlanChange(at_s=0.01, plan=after),)
result = simulate(before, SimOptions(load_factor=0.5, duration_s=0.1, changes=changes))
print(result.attainment, *result.applications)
"""


@pytest.mark.slow
def test_a_later_plan_may_be_the_first_with_applications() -> None:
    assert printed_by(APPLICATIONS_LATER, compiled=False) == "1.0\n"


def test_a_pool_of_a_plan_that_takes_over_at_the_end_was_idle() -> None:
    plan = make_plan([[Own(latency_us=(1_000,))]])
    options = SimOptions(duration_s=1, changes=(PlanChange(at_s=2.0, plan=plan),))
    (pool,) = simulate(plan, options).pools.values()
    assert (pool.idle_fraction, pool.bad_rate) == (1.0, 0.0)


def test_changes_out_of_order_are_named() -> None:
    changes = tuple(PlanChange(at_s=at_s, plan=two_stages()) for at_s in (2.0, 1.0))
    with pytest.raises(InputError, match="changes of plan: their instants"):
        SimOptions(changes=changes)
    with pytest.raises(InputError, match="change of plan: at -1 s"):
        PlanChange(at_s=-1, plan=two_stages())
