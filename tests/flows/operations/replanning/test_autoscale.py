"""Autoscaling: rates by the second, the instants of plans, simulated and live."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from flows.operations.replanning.autoscale import (
    Follower,
    RateTracker,
    Sizing,
    follow_live,
    follow_simulated,
    follower_of,
    limited,
)
from flows.operations.replanning.backtest_run import cheapest_planner
from flows.planning import PlanOptions, make_plan
from flows.state import ProjectState
from flows.workspace import Workspace
from tests.fakes.applications import hand_application, hand_module, with_applications
from tests.fakes.plans import two_stages
from tests.flows.planning.gpulets.cases import case
from triton_backend.contract.cluster import Cluster, GpuClass, NodeGroup
from triton_backend.contract.errors import InputError, PoolPipeError
from triton_backend.contract.plan import Plan
from triton_backend.simulator.offered import Instant
from triton_backend.simulator.scenario import SimOptions
from warehouse.db import WarehouseInUseError


def test_a_plan_of_applications_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    served = two_stages()
    module = hand_module("only", served.models[0].name)
    plan = with_applications(served, hand_application("app", [module]))
    nothing = Workspace(state=ProjectState(home=tmp_path), warehouse=tmp_path / "w.duckdb")
    with pytest.raises(InputError, match="is of applications; autoscale follows"):
        follower_of(nothing, plan.cluster, plan.workload, plan, lambda _: None)
    assert [*tmp_path.iterdir()] == []


def test_targets_are_the_highest_rate_of_half_a_minute_with_headroom() -> None:
    tracker = RateTracker(period_s=9)  # weight of a second: 2 / 10
    for _ in range(20):
        tracker.second({"a": 100, "b": 400})
    tracker.second({"a": 200, "b": 400})
    assert tracker.targets_rps() == pytest.approx({"a": 1.5 * 120, "b": 1.2 * 400})
    for _ in range(30):
        tracker.second({"a": 0, "b": 400})
    assert tracker.targets_rps()["a"] < 1.5 * 120 * 0.81


def test_targets_of_a_rise_are_what_it_comes_to_by_the_end_of_the_next_period() -> None:
    tracker = RateTracker(period_s=20)
    for second in range(60):
        tracker.second({"rising": 200 + 4 * second, "falling": 600 - 4 * second, "still": 500})
    end = 59 + 20 + 15  # a period and what loading takes
    targets = tracker.targets_rps()
    assert targets["rising"] == pytest.approx(1.2 * (200 + 4 * end))
    assert 1.2 * 480 < targets["falling"] < 1.2 * 530  # half a minute ago, averaged
    assert targets["still"] == pytest.approx(1.2 * 500)


def test_chance_is_no_rise() -> None:
    random = np.random.default_rng(5)
    for _ in range(20):
        tracker = RateTracker(period_s=20)
        for count in random.poisson(200, 60).tolist():
            tracker.second({"a": count})
        assert 1.2 * 195 < tracker.targets_rps()["a"] < 1.2 * 245


def test_thresholds_are_those_of_the_system_at_full_speed() -> None:
    tracker = RateTracker(period_s=20, sizing=Sizing().slowed(50))
    for _ in range(30):
        tracker.second({"large": 200 / 50, "small": 100 / 50})
    assert tracker.targets_rps() == pytest.approx({"large": 1.2 * 4, "small": 1.5 * 2})


def planned(options: PlanOptions | None = None) -> tuple[Plan, Follower]:
    """A plan of two models for 40 % of what four GPUs carry, and its follower."""
    asked = case(3, 2, 4)
    options = options or PlanOptions(planner="gpulets")
    most = make_plan(asked.profiles, asked.cluster, asked.workload, options)
    workload = replace(
        asked.workload,
        models=tuple(
            replace(m, rate_rps=0.4 * most.model(m.name).throughput_rps)
            for m in asked.workload.models
        ),
    )
    first = make_plan(asked.profiles, asked.cluster, workload, replace(options, objective="gpus"))
    planner = cheapest_planner(
        asked.profiles, asked.cluster, workload, options, objective="gpus", in_force=first
    )
    return first, Follower.of(planner, first)


def gpus(plan: Plan | None) -> int:
    assert plan is not None
    return sum(plan.gpus_used.values())


def test_a_plan_is_made_at_once_for_more_and_after_two_periods_for_less() -> None:
    first, follower = planned()
    rates = {m.name: m.throughput_rps for m in first.models}
    assert follower.next_plan({n: 1.005 * r for n, r in rates.items()}) is None
    more = follower.next_plan({n: 2.0 * r for n, r in rates.items()})
    assert gpus(more) > gpus(first)
    low = {n: 0.5 * r for n, r in rates.items()}
    assert follower.next_plan(low) is None
    less = follower.next_plan(low)
    assert gpus(less) < gpus(more)


def test_beyond_its_gpus_a_plan_serves_what_it_can() -> None:
    first, follower = planned()
    rates = {m.name: 100 * m.throughput_rps for m in first.models}
    plan = follower.next_plan(rates)
    assert gpus(plan) == 4
    assert plan is not None
    shares = [m.throughput_rps / rates[m.name] for m in plan.models]
    assert shares == pytest.approx([shares[0]] * len(shares))


def wave(plan: Plan, seconds: int, high: float) -> Instant:
    """One wave from a fifth of `high` times the plan's rates up to all of it and down again."""
    random = np.random.default_rng(5)
    instants: dict[str, np.ndarray] = {}
    for model in plan.models:
        shape = 0.2 + 0.8 * np.sin(np.pi * (np.arange(seconds) + 0.5) / seconds) ** 2
        counts = random.poisson(high * model.throughput_rps * shape)
        at = np.repeat(np.arange(seconds), counts) + random.uniform(0, 1, counts.sum())
        instants[model.name] = np.sort(at * 1e6).astype(np.int64)
    return Instant(by_model=instants)


@pytest.mark.long
def test_plans_follow_a_wave_with_work_in_flight() -> None:
    first, follower = planned()
    offered = wave(first, 1_600, 1.2)
    options = SimOptions(arrivals=offered, duration_s=1_600)
    found = follow_simulated(follower, options, 20.0, lambda _: None)
    used = [period.gpus for period in found.periods]
    assert found.changes >= 3
    assert max(used) > min(used)
    assert used[40] == max(used)
    assert found.attainment >= 0.99
    assert sum(p.offered for p in found.periods) == sum(map(len, offered.by_model.values()))


@dataclass(slots=True)
class FakeSystem:
    """Counts by a script, one second after the other; every rollout takes three seconds."""

    rates: list[dict[str, int]]
    clock: int = 0
    read: int = 0
    brought: list[Plan] = field(default_factory=list[Plan])
    away: range = range(0)  # seconds in which no gateway answers
    refuses: int = 0  # rollouts that fail
    others: dict[int, Plan] = field(default_factory=dict[int, Plan])  # by their rollout's second

    def in_force(self, known: Plan) -> Plan:
        before = [second for second in self.others if second <= self.clock]
        return self.others[max(before)] if before else known

    def offered(self) -> Mapping[str, int]:
        if self.clock in self.away:
            raise PoolPipeError("no answer")
        return {n: sum(r[n] for r in self.rates[: self.clock]) for n in self.rates[0]}

    def wait(self, seconds: float) -> float:
        self.clock += round(seconds)
        passed, self.read = self.clock - self.read, self.clock
        return float(passed)

    def bring(self, plan: Plan) -> str:
        self.clock += 3
        if self.refuses:
            self.refuses -= 1
            raise PoolPipeError("a step failed")
        self.brought.append(plan)
        return "done"


def never_asked(plan: Plan) -> Follower:
    raise AssertionError(plan.plan_id)


@pytest.mark.parametrize("advisory", [False, True])
def test_a_running_system_is_brought_what_its_rates_ask_for(advisory: bool) -> None:
    first, follower = planned()
    rates = {m.name: round(m.throughput_rps) for m in first.models}
    script = [rates] * 5 + [{n: 2 * r for n, r in rates.items()}] * 60
    system, said = FakeSystem(script), list[str]()
    follow_live(
        follower, system, 5.0, said.append, follower_of=never_asked, periods=4, advisory=advisory
    )
    assert len(said) == 4
    assert (len(system.brought) > 0) is not advisory
    assert gpus(follower.in_force) > gpus(first)
    assert any("advice only" in line for line in said) is advisory


def test_a_rollout_that_fails_is_tried_again_and_ends_nothing() -> None:
    first, follower = planned()
    script = [{m.name: round(2 * m.throughput_rps) for m in first.models}] * 60
    system, said = FakeSystem(script, refuses=1), list[str]()
    follow_live(follower, system, 5.0, said.append, follower_of=never_asked, periods=3)
    assert [line.endswith("a step failed") for line in said[:2]] == [True, False]
    assert [gpus(plan) > gpus(first) for plan in system.brought] == [True]


def test_a_plan_that_another_rollout_brought_is_gone_on_from() -> None:
    """It carries the new rates already; the follower of the plan before it would bring one more."""
    first, follower = planned()
    other = follower.planner({m.name: 2 * m.throughput_rps for m in first.models})
    script = [{m.name: round(m.throughput_rps / 1.22) for m in other.models}] * 60
    system, said, adopted = FakeSystem(script, others={4: other}), list[str](), list[Follower]()

    def made_anew(plan: Plan) -> Follower:
        if not adopted:
            adopted.append(Follower.of(planned()[1].planner, plan))
            raise WarehouseInUseError("warehouse", "is being written")  # tried again
        return adopted[0]

    follow_live(follower, system, 5.0, said.append, follower_of=made_anew, periods=3)
    assert said[0].endswith("is being written")
    assert said[-1].endswith(f"plan {other.plan_id} stays")
    assert system.brought == []
    assert [one.in_force.plan_id for one in adopted] == [other.plan_id]


def test_a_gateway_that_is_away_for_seconds_changes_no_rate() -> None:
    first, follower = planned()
    script = [{m.name: round(m.throughput_rps / 1.5) for m in first.models}] * 60
    system, said = FakeSystem(script, away=range(2, 4)), list[str]()
    follow_live(follower, system, 5.0, said.append, follower_of=never_asked, periods=1)
    assert [line == "no rates: no answer" for line in said] == [True, True, False]
    assert said[-1].endswith(f"plan {first.plan_id} stays")


def test_only_the_first_gpus_of_a_cluster_are_used() -> None:
    nodes = (
        NodeGroup(count=2, gpu_class="A", gpus=2, nic_gbps=10),
        NodeGroup(count=1, gpu_class="A", gpus=4, nic_gbps=10),
    )
    cluster = Cluster(name="c", gpu_classes=(GpuClass(name="A"),), nodes=nodes)
    for most in range(1, 9):
        assert limited(cluster, most).gpus("A") == most
    assert [(g.count, g.gpus) for g in limited(cluster, 3).nodes] == [(1, 2), (1, 1)]
    assert limited(cluster, None) is cluster
    with pytest.raises(InputError, match="--max-gpus: 0 is not positive"):
        limited(cluster, 0)
