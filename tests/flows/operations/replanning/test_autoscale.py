"""Autoscaling: rates by the second, the instants of plans, simulated and live."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from flows.clock import now_utc
from flows.operations.replanning.autoscale import (
    Follower,
    LiveState,
    RatesGuide,
    follow_live,
    follow_simulated,
    follower_of,
    limited,
)
from flows.operations.replanning.demands import with_rates
from flows.operations.replanning.planner import cheapest_planner, least_objective, options_of
from flows.operations.replanning.rows import Measured, with_rows
from flows.planning import PlanOptions, make_plan
from tests.fakes.applications import hand_application, hand_module, with_applications
from tests.fakes.plans import Own, two_stages
from tests.fakes.plans import make_plan as make_fake_plan
from tests.flows.operations.fake_gateway import workspace_of
from tests.flows.planning.gpulets.cases import case
from tests.flows.planning.small import cluster as small_cluster
from tests.flows.planning.small import profile, workload
from triton_backend.contract.cluster import Cluster, GpuClass, NodeGroup
from triton_backend.contract.errors import InputError, PoolPipeError
from triton_backend.contract.plan import Plan
from triton_backend.contract.workload import ModelDemand, Workload
from triton_backend.scheduler.policies.demand import RateTracker, Sizing
from triton_backend.simulator.offered import Instant
from triton_backend.simulator.scenario import SimOptions
from warehouse.db import WarehouseInUseError
from warehouse.profiles import import_profile


def test_targets_are_the_highest_rate_of_a_period_with_headroom() -> None:
    tracker = RateTracker(period_s=9)  # weight of a second: 2 / 10
    for _ in range(20):
        tracker.second({"a": 100, "b": 400})
    tracker.second({"a": 200, "b": 400})
    assert tracker.targets_rps() == pytest.approx({"a": 1.5 * 120, "b": 1.2 * 400})
    for _ in range(30):
        tracker.second({"a": 0, "b": 400})
    assert tracker.targets_rps()["a"] < 1.5 * 120 * 0.81


def test_the_first_second_counts_no_more_than_those_after_it() -> None:
    tracker = RateTracker(period_s=20)
    for count in (30, 0, 0, 10, 0):
        tracker.second({"a": count})
    assert tracker.targets_rps() == pytest.approx({"a": 1.5 * 8})


def test_targets_of_a_rise_are_what_it_comes_to_by_the_end_of_the_next_period() -> None:
    tracker = RateTracker(period_s=20)
    for second in range(60):
        tracker.second({"rising": 200 + 4 * second, "falling": 600 - 4 * second, "still": 500})
    end = 59 + 20 + 15  # a period and what loading takes
    targets = tracker.targets_rps()
    assert targets["rising"] == pytest.approx(1.2 * (200 + 4 * end))
    assert 1.2 * 470 < targets["falling"] < 1.2 * 490  # a period ago, averaged
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


def test_more_is_never_planned_for_less() -> None:
    rates = np.linspace(0, 400, 4_001).tolist()
    planned_rps = [Sizing().planned_rps(rate) for rate in rates]
    assert planned_rps == sorted(planned_rps)
    assert planned_rps[1_000] == 1.5 * 100
    assert planned_rps[-1] == 1.2 * 400


def unlimited(rate_rps: float) -> tuple[Follower, list[float]]:
    """A follower whose planner carries whatever is asked for, and what it was asked for so far."""
    first = two_stages()
    (model,) = first.models
    asked: list[float] = []

    def made(rates_rps: Mapping[str, float], rows: Measured | None = None) -> Plan:
        del rows
        asked.append(rates_rps[model.name])
        workload = with_rates(first.workload, rates_rps)
        return replace(first, plan_id=f"p{len(asked)}", workload=workload)

    follower = Follower.of(made, first)
    follower.planned_rps = {model.name: Sizing().planned_rps(rate_rps)}
    return follower, asked


def periods_followed(
    follower: Follower, tracker: RateTracker, rate_rps: float, seed: int, periods: int
) -> None:
    """So many periods of 20 s of Poisson arrivals."""
    (name,) = follower.planned_rps
    for counts in np.random.default_rng(seed).poisson(rate_rps, (periods, 20)):
        for count in counts.tolist():
            tracker.second({name: count})
        follower.next_plan(tracker.targets_rps(), tracker.now_rps())


@pytest.mark.parametrize("rate_rps", [3, 10, 30, 100, 124, 126, 150, 400, 1_000])
def test_a_steady_rate_leaves_the_plan_as_it_is(rate_rps: int) -> None:
    hours = 5
    follower, asked = unlimited(rate_rps)
    periods_followed(follower, RateTracker(20.0), rate_rps, 1, hours * 180)
    most_an_hour = {3: 15, 10: 6}.get(rate_rps, 1)
    assert len(asked) <= most_an_hour * hours


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("rate_rps", [3, 10, 100, 1_000])
def test_three_times_the_rate_is_planned_for_at_once_and_left_within_two_periods(
    rate_rps: float, seed: int
) -> None:
    follower, asked = unlimited(rate_rps)
    tracker = RateTracker(20.0)
    periods_followed(follower, tracker, rate_rps, seed, 10)
    before = len(asked)
    periods_followed(follower, tracker, 3 * rate_rps, seed, 1)
    assert len(asked) == before + 1
    periods_followed(follower, tracker, 3 * rate_rps, seed, 10)
    high = asked[-1]
    assert high > 2.8 * rate_rps
    before = len(asked)
    periods_followed(follower, tracker, rate_rps, seed, 2)
    assert len(asked) == before + 1
    assert asked[-1] < 0.75 * high
    periods_followed(follower, tracker, rate_rps, seed, 4)
    assert asked[-1] < 2.5 * rate_rps


def test_rows_of_modules_are_followed_as_rates_are() -> None:
    """Twice the rows ask for a plan at once, half of them after two periods, chance for none."""
    modules = [hand_module("detect", "m0"), hand_module("cars", "m1", "detect", rows=2, max_rows=8)]
    own = [[Own(latency_us=(1_000,) * 8)]]
    served = with_applications(make_fake_plan(own, own), hand_application("app", modules))
    graph = served.applications[0].application
    first = replace(served, workload=Workload(applications=(graph,)))
    means: list[float] = []

    def made(rates_rps: Mapping[str, float], rows: Measured | None = None) -> Plan:
        (application,) = with_rows([graph], rows or {})
        means.append(application.module("cars").rows_per_request)
        asked = with_rates(Workload(applications=(application,)), rates_rps)
        return replace(first, plan_id=f"p{len(means)}", workload=asked)

    follower, rates = Follower.of(made, first), {"app": 10.0}

    def period(samples: int, rows: int) -> Plan | None:
        return follower.next_plan(rates, rates, {("app", "cars"): (samples, rows)})

    assert period(600, 1_240) is None
    assert period(99, 700) is None  # too few to tell
    assert period(600, 2_400) is not None
    assert period(600, 2_400) is None
    assert period(600, 2_300) is None
    assert period(600, 1_200) is None
    assert period(600, 1_200) is not None
    assert means == pytest.approx([4.0, 2.0])


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
    starts: tuple[int, ...] = ()  # of gateways, after the first
    others: dict[int, Plan] = field(default_factory=dict[int, Plan])  # by their rollout's second

    def in_force(self, known: Plan) -> Plan:
        before = [second for second in self.others if second <= self.clock]
        return self.others[max(before)] if before else known

    def offered(self) -> Mapping[str, int]:
        if self.clock in self.away:
            raise PoolPipeError("no answer")
        return {n: sum(r[n] for r in self.rates[: self.clock]) for n in self.rates[0]}

    def rows(self) -> Measured:
        """Counts of a gateway that is started again now and then."""
        since = max((start for start in self.starts if start <= self.clock), default=0)
        return {("app", "cars"): (10 * (self.clock - since), 20 * (self.clock - since))}

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


def test_periods_without_a_request_are_named() -> None:
    first, follower = planned()
    system, said = FakeSystem([{}] * 60), list[str]()
    follow_live(follower, system, 5.0, said.append, follower_of=never_asked, periods=2)
    brought, used = system.brought[0], f"{gpus(first)} to {gpus(system.brought[0])} GPUs"
    assert said == [
        f"no requests: plan {first.plan_id} stays",
        f"no requests: plan {brought.plan_id}, {used}: done",
    ]


def test_a_loop_ends_once_its_time_is_over_and_looks_no_more() -> None:
    _, follower = planned()
    script = [{m.name: 1 for m in follower.in_force.models}] * 60
    system, said = FakeSystem(script), list[str]()
    follow_live(
        follower,
        system,
        5.0,
        said.append,
        follower_of=never_asked,
        advisory=True,
        over=lambda: system.clock >= 15,
    )
    assert (system.clock, len(said)) == (15, 3)


def test_a_rollout_that_fails_is_tried_again_and_ends_nothing() -> None:
    first, follower = planned()
    script = [{m.name: round(2 * m.throughput_rps) for m in first.models}] * 60
    system, said = FakeSystem(script, refuses=1), list[str]()
    follow_live(follower, system, 5.0, said.append, follower_of=never_asked, periods=3)
    assert ["a step failed" in line for line in said[:2]] == [True, False]
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


def test_rows_of_a_gateway_that_was_started_anew_are_counted_from_there() -> None:
    first, follower = planned()
    script = [{m.name: round(m.throughput_rps / 1.5) for m in first.models}] * 60
    system = FakeSystem(script, starts=(12,))
    tracker = RateTracker(5.0)
    state = LiveState(tracker=tracker, before=system.offered())
    guide = RatesGuide(
        follower=follower,
        system=system,
        period_s=5.0,
        state=state,
        former=(first, follower.planned_rps),
        follower_of=never_asked,
    )
    guide.counted.append(system.rows())
    samples: list[int] = []
    for _ in range(8):
        guide.watch(lambda _: None)
        samples.append(guide.rows["app", "cars"][0])
    assert samples == [50, 100, 0, 50, 100, 150, 150, 150]


@pytest.mark.long
@pytest.mark.parametrize("name", ["pool", "no-partitioning", "subclusters", "gpulets"])
def test_a_plan_of_most_throughput_is_followed_by_its_planner(name: str) -> None:
    options = PlanOptions(planner=name)
    known, cluster, asked = {"net": profile()}, small_cluster(), workload()
    plan = make_plan(known, cluster, asked, options)
    objective = least_objective(options_of(plan), plan.workload, cluster)
    again = cheapest_planner(known, cluster, asked, options, objective=objective, in_force=plan)
    followed = again({"net": 5.0})
    assert followed.models[0].throughput_rps >= 5.0
    assert followed.cluster == cluster
    assert followed.price_paid is None


def test_plans_of_most_throughput_are_followed_at_least_cost_where_prices_are_stated() -> None:
    prices = small_cluster(fast_hourly_cost=2.0, slow_hourly_cost=1.0)
    asked, options = workload(), PlanOptions(planner="pool")
    assert least_objective(options, asked, prices) == "cost"
    assert least_objective(options, asked, small_cluster()) == "gpus"
    assert least_objective(options, asked, small_cluster(fast_hourly_cost=2.0)) == "gpus"
    assert least_objective(replace(options, objective="power"), asked, prices) == "power"


def test_a_plan_under_cost_is_not_followed_where_a_class_states_no_price(tmp_path: Path) -> None:
    work = workspace_of(tmp_path)
    with work.open() as warehouse:
        import_profile(warehouse, profile(), "by hand", now_utc())
    prices = small_cluster(fast_hourly_cost=2.0, slow_hourly_cost=1.0)
    asked = workload(ModelDemand(name="net", slo_us=15_000, rate_rps=5.0))
    plan = make_plan({"net": profile()}, prices, asked, PlanOptions(objective="cost"))
    assert follower_of(work, prices, asked, plan, print).in_force is plan
    bare = replace(plan, cluster=small_cluster()).counted()
    reason = f"plan {plan.plan_id}, gpu_classes.fast.hourly_cost: needed for the objective 'cost'"
    with pytest.raises(InputError, match=reason):
        follower_of(work, bare.cluster, asked, bare, print)


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
    with pytest.raises(InputError, match="option max_gpus: 0 is not positive"):
        limited(cluster, 0)
