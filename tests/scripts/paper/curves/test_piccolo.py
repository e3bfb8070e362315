"""Piccolo's curves: distributions that never reach 100 % without a plan, worst cases by rule."""

from math import inf

import pytest

from flows.planning.applications.machines import Group, Machine, MachineSet
from scripts.paper.curves.piccolo import counted, reached


def test_workloads_without_a_plan_keep_a_distribution_below_100_percent() -> None:
    assert reached([2.0, inf, 1.0, inf]) == [(1.0, 25.0), (2.0, 50.0), (2.0, 50.0)]


def test_worst_cases_of_a_set_follow_the_rule_of_dispatch() -> None:
    machine = Machine(batch=10, duration_us=500_000, rate_rps=20.0, price=1.0)
    full = Group(machine=machine, machines=2.0, latency_us=0.0)
    part = Group(machine=machine, machines=0.5, latency_us=0.0)
    served = MachineSet(groups=(full, part))
    # 50 rows/s: the full ones fill at 50 rows/s, the partial one at its own 10
    assert counted(served, 50.0, "tc") == pytest.approx(500_000 + 1_000_000)
    assert counted(MachineSet(groups=(full,)), 40.0, "tc") == pytest.approx(750_000)
    assert counted(MachineSet(groups=(full,)), 40.0, "dt") == pytest.approx(1_000_000)
    assert counted(MachineSet(groups=(full,)), 40.0, "2d") == pytest.approx(1_000_000)
    assert counted(served, 50.0, "2d") == pytest.approx(1_500_000)
