"""Factors of groups that share GPUs, sought with plans of a made-up system."""

from dataclasses import replace

import pytest

from flows.planning.promises import factors
from flows.planning.promises.factors import GRID, MOST, Factors, Steps
from flows.planning.watch import Watch
from tests.fakes.plans import two_stages
from tests.flows.planning.gpulets.cases import Held
from triton_backend.contract.errors import InfeasibleError
from triton_backend.contract.plan import Plan

GROUPS = {"calm": 0, "tight": 1}


class System:
    """Models that attain from their factor on; a plan costs the sum of factors."""

    def __init__(self, needed: dict[str, int], most: int = 10_000) -> None:
        self.needed, self.most = needed, most
        self.tried: list[Steps] = []
        self.objective = "cost"

    def plan(self, steps: Steps) -> Plan:
        self.tried.append(steps)
        assert len(self.tried) < 100
        if sum(steps) > self.most:
            raise InfeasibleError("cluster", "too few GPUs")
        plan = two_stages()
        paid = float(sum(steps))
        value = paid if self.objective == "cost" else 1 / paid
        objective = replace(plan.objective, name=self.objective, value=value)
        return replace(plan, objective=objective, options={"steps": steps})

    def attained(self, plan: Plan) -> dict[str, float]:
        steps = plan.options["steps"]
        return {
            name: 0.999
            if steps[GROUPS[name]] >= needed
            else min(0.5 + steps[GROUPS[name]] / 1_000, 0.98)
            for name, needed in self.needed.items()
        }


def sought(system: System, monkeypatch: pytest.MonkeyPatch, watch: Watch | None = None) -> Factors:
    monkeypatch.setattr(factors, "surely_attained", system.attained)
    found = Factors(groups=GROUPS, carrying=system.plan, watch=watch or Watch())
    assert found.begin()
    found.seek()
    return found


@pytest.mark.parametrize("needed", [GRID, GRID + 1, GRID + 2, 33, 50, 217])
@pytest.mark.parametrize("objective", ["cost", "throughput"])
def test_each_group_has_the_least_factor_with_which_it_attains(
    monkeypatch: pytest.MonkeyPatch, needed: int, objective: str
) -> None:
    system = System({"calm": GRID, "tight": needed})
    system.objective = objective
    found = sought(system, monkeypatch)
    assert found.best() == (GRID, needed, GRID)
    assert found.attains((GRID, needed, GRID))
    assert len(system.tried) == len({*system.tried}) < 20


def test_groups_grow_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    found = sought(System({"calm": 23, "tight": 61}), monkeypatch)
    assert found.best() == (23, 61, GRID)


def test_a_name_of_no_group_belongs_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    system = System({"calm": GRID})

    def attained(_: Plan) -> dict[str, float]:
        return {"calm": 1.0, "line": 0.7}

    monkeypatch.setattr(factors, "surely_attained", attained)
    found = Factors(groups=GROUPS, carrying=system.plan, watch=Watch())
    assert found.begin()
    assert found.attained[found.ones] == (0.7, 0.7)


def test_factors_without_a_plan_leave_those_that_attain_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    system = System({"calm": GRID, "tight": 60}, most=2 * GRID + 40)
    found = sought(system, monkeypatch)
    assert found.best() == (GRID, 40, GRID)
    assert not found.attains(found.best())
    assert {*found.refused.values()} == {"cluster: too few GPUs"}


def test_a_common_factor_is_sought_where_no_plan_attains(monkeypatch: pytest.MonkeyPatch) -> None:
    def attained(plan: Plan) -> dict[str, float]:
        return {"calm": plan.options["part"]}

    monkeypatch.setattr(factors, "surely_attained", attained)

    def carrying(steps: Steps) -> Plan:
        plan = two_stages()
        return replace(plan, options={"part": 0.9 + steps[-1] / 400})

    found = Factors(groups=GROUPS, carrying=carrying, watch=Watch(limit_s=0.0))
    assert found.begin()
    found.seek()
    assert found.best() == found.ones
    found.divide(found.ones)
    assert found.best() == (GRID, GRID, 36)
    assert found.factors(found.best()) == {"calm": 1.8, "tight": 1.8}


def test_a_factor_that_another_group_makes_too_small_grows_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`tight` needs a step more where `calm` has grown just enough."""
    system = System({"calm": 23, "tight": 41})

    def attained(plan: Plan) -> dict[str, float]:
        calm, tight, _ = plan.options["steps"]
        return {
            "calm": 0.999 if calm >= 23 else 0.5,
            "tight": 0.999 if tight >= (42 if calm == 23 else 41) else 0.5,
        }

    monkeypatch.setattr(factors, "surely_attained", attained)
    found = Factors(groups=GROUPS, carrying=system.plan, watch=Watch())
    assert found.begin()
    found.seek()
    assert found.best() in {(23, 42, GRID), (24, 41, GRID)}
    assert found.attains(found.best())


def test_factors_end_where_a_group_never_attains(monkeypatch: pytest.MonkeyPatch) -> None:
    system = System({"calm": GRID, "tight": 10 * MOST})
    found = sought(system, monkeypatch)
    assert not found.attains(found.best())
    assert len(system.tried) < 30


def test_a_plan_too_large_to_be_simulated_attains_for_no_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    system = System({"calm": GRID, "tight": 33})

    def attained(plan: Plan) -> dict[str, float] | None:
        return None if plan.options["steps"][1] > GRID else system.attained(plan)

    monkeypatch.setattr(factors, "surely_attained", attained)
    found = Factors(groups=GROUPS, carrying=system.plan, watch=Watch())
    assert found.begin()
    found.seek()
    assert {*found.attained.values()} - {found.attained[found.ones]} == {(0.0, 0.0)}


def test_nothing_is_tried_once_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Held()
    system = System({"calm": GRID, "tight": 33})
    monkeypatch.setattr(factors, "surely_attained", system.attained)

    def slow(steps: Steps) -> Plan:
        clock.now_s += 1.0
        return system.plan(steps)

    watch = Watch(limit_s=3.0, _clock=clock)
    found = Factors(groups=GROUPS, carrying=slow, watch=watch)
    assert found.begin()
    found.seek()
    assert len(system.tried) == 3
    assert not found.attains(found.best())
