"""A running system whose plans follow what is announced and what comes in."""

from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise

import pytest

from flows.operations.steering.live import CutsGuide, announced_rps, excess_demand, steer_live
from flows.operations.steering.policy import (
    Demand,
    Steering,
    entries_of,
    entry_of,
    with_entries,
)
from tests.flows.operations.steering.steered import MS, PROBLEM, demand, own_entries, steered
from triton_backend.contract.errors import PoolPipeError
from triton_backend.contract.plan import Plan
from triton_backend.contract.workload import Workload


@dataclass(slots=True)
class FakeSystem:
    """Two looks a second; what is announced and counted by entry by a script."""

    announces: list[list[Demand]]
    counts: list[dict[tuple[str, str], int]]
    refuses: int = 0
    looks: int = -1
    asked_at: list[int] = field(default_factory=list[int])
    brought: list[Plan] = field(default_factory=list[Plan])
    others: dict[int, Plan] = field(default_factory=dict[int, Plan])  # by the look of their rollout

    def in_force(self, known: Plan) -> Plan:
        return self.others.pop(self.looks, known)

    def wait(self, seconds: float) -> float:
        assert seconds > 0 or self.looks < 0
        self.looks += 1
        return 0.5

    def offered(self) -> dict[tuple[str, str], int]:
        counts = self.counts[min(self.looks, len(self.counts)) - 1]
        if not counts:
            raise PoolPipeError("no answer")
        return counts

    def announced(self) -> list[Demand]:
        return self.announces[min(self.looks, len(self.announces)) - 1]

    def bring(self, plan: Plan) -> str:
        self.asked_at.append(self.looks)
        if self.refuses:
            self.refuses -= 1
            raise PoolPipeError("a step failed")
        self.brought.append(plan)
        return "done"


def never_asked(plan: Plan) -> Steering:
    raise AssertionError(plan.plan_id)


def test_a_plan_that_another_rollout_brought_is_steered_from_then_on() -> None:
    """It has an entry for the client already.

    Who steers the plan before it would bring one more.
    """
    first, asked = steered(), demand(2, 60, 20)
    other = first.planner(with_entries(PROBLEM.workload, entries_of([asked])), first.in_force)
    system = FakeSystem([[], [asked]], [{("net", "first"): 0}], others={2: other})
    said: list[str] = []
    made_anew = partial(replace, steered())
    steer_live(
        first, system, said.append, steering_of=lambda plan: made_anew(in_force=plan), decisions=8
    )
    assert system.brought == []
    assert said == [f"plan {other.plan_id} of another rollout is in force"]


def test_a_running_system_follows_what_is_announced_and_tries_again() -> None:
    system = FakeSystem([[], [demand(2, 60, 20)]], [{("net", "first"): 0}], refuses=1)
    said: list[str] = []
    steer_live(steered(), system, said.append, steering_of=never_asked, decisions=8)
    assert [own_entries(plan) for plan in system.brought] == [[(2, 22.0)]]
    refused, done = (line.split(": ")[-1] for line in said)
    assert (refused, done) == ("a step failed; asked again after 1 s", "done")


def test_a_refused_plan_is_asked_for_again_after_waits_that_grow() -> None:
    system = FakeSystem([[], [demand(2, 60, 20)]], [{("net", "first"): 0}], refuses=99)
    said: list[str] = []
    steer_live(steered(), system, said.append, steering_of=never_asked, decisions=24)
    waits = [after - before for before, after in pairwise(system.asked_at)]
    assert waits == [4, 6, 10]  # looks, two a second, of which every second one plans
    assert len(said) == len(system.asked_at)


def counting_plans(steering: Steering) -> list[int]:
    """Numbers of entries of the plans that a steering has made from now on."""
    made, planner = list[int](), steering.planner

    def planned(workload: Workload, in_force: Plan) -> Plan:
        made.append(len(workload.models[0].entries))
        return planner(workload, in_force)

    steering.planner = planned
    return made


def test_a_plan_that_waits_is_made_once() -> None:
    system = FakeSystem([[], [demand(2, 60, 20)]], [{("net", "first"): 0}], refuses=99)
    steering = steered()
    made = counting_plans(steering)
    steer_live(steering, system, lambda _: None, steering_of=never_asked, decisions=24)
    assert len(system.asked_at) == 4
    assert len(made) == 2  # before the demand, and for it


def test_no_plan_is_made_while_all_plans_wait() -> None:
    """Two plans that were refused for one reason are of another rate of the same demand."""
    rising = [[], *([demand(2, 60, 20 + look)] for look in range(60))]
    system = FakeSystem(rising, [{("net", "first"): 0}], refuses=99)
    steering = steered()
    made = counting_plans(steering)
    steer_live(steering, system, lambda _: None, steering_of=never_asked, decisions=60)
    assert len(made) <= len(system.asked_at) == 5


def test_what_nobody_announced_is_counted_even_over_a_gateway_that_was_away() -> None:
    counts = [{("net", "first"): 45 * k, ("net", "cut-1"): 10 * k} for k in range(1, 12)]
    counts[4] = {}
    system, said = FakeSystem([[demand(0, 60, 90)]], counts), list[str]()
    steer_live(steered(), system, said.append, steering_of=never_asked, decisions=11, advisory=True)
    assert "no rates: no answer" in said
    assert system.brought == []
    assert any("net from 0 90.0 rps, net from 1 20.0 rps" in line for line in said)


def test_only_what_exceeds_the_announced_is_unannounced() -> None:
    plan = steered().in_force
    rates = {("net", "first"): 50.0, ("net", "cut-1"): 0.2, ("net", "cut-2"): 9.0}
    assert excess_demand(plan, announced_rps([demand(0, 60, 10), demand(0, 60, 20)]), rates) == [
        Demand("net", 0, 60_000, 20.0),
        Demand("net", 2, 1_000_000, 9.0),
    ]
    assert excess_demand(plan, {("net", 0): 47.0, ("net", 2): 9.0}, rates) == []
    # 12 a second that are announced may be 17 in a second, and one that no client announced chance
    announced = {("net", 0): 12.0}
    assert (
        excess_demand(plan, announced, {("net", "first"): 17.0, ("net", "cut-2"): 1.0}, 1.0) == []
    )
    assert excess_demand(plan, announced, {("net", "first"): 19.0}, 1.0) == [demand(0, 60, 7)]


def test_who_moves_is_planned_for_once_although_its_requests_are_counted_before_and_after() -> None:
    # 20 a second move from block 2 to block 1 between two looks; the announcement follows a look
    # later.
    at = [[demand(2, 60, 20)]] * 6 + [[demand(1, 60, 20)]] * 8
    counts = [
        {("net", "cut-2"): 10 * min(k, 5), ("net", "cut-1"): 10 * max(k - 5, 0)}
        for k in range(1, 15)
    ]
    system, said = FakeSystem(at, counts), list[str]()
    steer_live(steered(), system, said.append, steering_of=never_asked, decisions=14)
    assert [own_entries(plan) for plan in system.brought] == [[(2, 22.0)], [(1, 22.0)]]


HONEST, LIE = demand(2, 60, 20), demand(1, 60, 1e6)


def counted(looks: int, *demands: Demand) -> list[dict[tuple[str, str], int]]:
    """Arrivals of demands, by sample, two a second."""
    return [
        {(d.model, entry_of(d).name): round(d.rate_rps * k / 2) for d in demands}
        for k in range(1, looks + 1)
    ]


def test_a_demand_that_does_not_fit_takes_nothing_from_those_that_come_in() -> None:
    """Also where there are more of them than a model may have entries."""
    made_up = [demand(1, 1.2**power / MS, 1e6 + power) for power in range(57, 62)]
    for lies in ([LIE], made_up):
        system = FakeSystem([[], [HONEST, *lies]], counted(9, HONEST))
        said: list[str] = []
        steer_live(steered(), system, said.append, steering_of=never_asked, decisions=9)
        assert [own_entries(plan) for plan in system.brought] == [[(2, 22.0)]], said


def test_made_up_demands_beyond_the_most_entries_crowd_out_none_that_comes_in() -> None:
    lies = [demand(1, 1.2**power / MS, 100) for power in range(1, 111)]
    lies += [lie._replace(block=0) for lie in lies]
    came_in = {("net", entry_of(HONEST).name): 20.0}
    assert HONEST.block not in {e.block for e in entries_of([*lies, HONEST])["net"]}
    assert HONEST.block in {e.block for e in entries_of([*lies, HONEST], came_in)["net"]}


def test_what_does_not_fit_is_tried_again_when_less_is_asked() -> None:
    steering = steered()
    steering.came_in = {("net", entry_of(HONEST).name): 20.0}
    plan = steering.next_plan([HONEST, LIE], 0.0)
    assert plan is not None
    assert own_entries(plan) == [(2, 22.0)]
    assert not steering.exceeded([HONEST, LIE])
    assert steering.exceeded([HONEST._replace(rate_rps=30.0), LIE])
    less = steering.next_plan([HONEST, LIE._replace(rate_rps=10.0)], 20.0)
    assert less is not None
    assert own_entries(less) == [(1, 11.0), (2, 22.0)]


def test_what_is_announced_and_does_not_come_in_is_believed_for_some_seconds_alone() -> None:
    """A client that has just moved is planned for at once; a lie costs GPUs for a while."""
    lie = LIE._replace(rate_rps=500.0)
    system = FakeSystem([[], [HONEST, lie]], counted(120, HONEST))
    steer_live(steered(), system, lambda _: None, steering_of=never_asked, decisions=120)
    first, *_, last = [dict(own_entries(plan)) for plan in system.brought]
    assert first == {1: 550.0, 2: 22.0}
    assert last[1] < 1
    assert last[2] == pytest.approx(22.0)


def test_a_client_that_sends_what_it_announced_is_believed() -> None:
    system = FakeSystem([[], [HONEST]], counted(30, HONEST))
    guide = CutsGuide(steering=steered(), system=system, steering_of=never_asked)
    system.wait(0.0)
    for _ in range(30):
        guide.watch(lambda _: None)
        guide.next_plan()
    assert guide.demands == (HONEST,)


def test_what_comes_in_at_another_entry_of_the_cut_is_planned_for_there() -> None:
    """Requests of a cut's tighter client that have more time take the other client's entry."""
    tight, wide = demand(2, 60, 20), demand(2, 90, 20)
    came_in = counted(30, tight._replace(rate_rps=4), wide._replace(rate_rps=36))
    system = FakeSystem([[], [tight, wide]], came_in)
    guide = CutsGuide(steering=steered(), system=system, steering_of=never_asked)
    system.wait(0.0)
    for _ in range(30):
        guide.watch(lambda _: None)
        guide.next_plan()
    asked = {entry.name: entry.rate_rps for entry in entries_of(guide.demands)["net"]}
    assert asked[entry_of(wide).name] > 1.1 * 30
    assert sum(asked.values()) > 1.1 * 37


def test_a_plan_whose_cuts_are_not_all_open_is_named_before_it_is_steered() -> None:
    said: list[str] = []
    for shadow_rps in (60.0, 0.0):
        plan = steered(shadow_rps=shadow_rps)
        system = FakeSystem([[]], [{("net", "first"): 0}])
        steer_live(plan, system, said.append, steering_of=never_asked, decisions=1)
    (note,) = said
    assert note.startswith("note: net: no shadow pool (plan --shadow-rps), so no plan ")
