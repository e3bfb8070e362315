"""Piccolo's curves: distributions that never reach 100 % without a plan, worst cases by rule."""

from math import inf
from pathlib import Path
from typing import NamedTuple

import pytest

from flows.planning.applications.heuristics import Rules, Served
from flows.planning.applications.machines import Group, Machine, MachineSet
from scripts.paper.curves import piccolo
from scripts.paper.curves.panels import Asked
from scripts.paper.curves.piccolo import counted, reached
from scripts.paper.piccolo import VARIANTS


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


class Known(NamedTuple):
    """A workload of two modules, with what a plan of each variant costs."""

    costs: dict[str, float]
    rates: tuple[float, ...] = (1.0, 1.0)

    @property
    def piccolo(self) -> Served:
        return served(2.0)

    def other(self, rules: Rules) -> Served | None:
        cost = next(cost for name, cost in self.costs.items() if VARIANTS[name] is rules)
        return None if cost == inf else served(cost)


def served(cost: float) -> Served:
    """Two modules of equal cost."""
    machine = Machine(batch=1, duration_us=1.0, rate_rps=1.0, price=cost / 2)
    one = MachineSet(groups=(Group(machine=machine, machines=1.0, latency_us=0.0),))
    return Served(sets=(one, one))


def test_distributions_are_ratios_to_piccolo_and_name_workloads_without_a_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = (*piccolo.FIRST, *piccolo.CONFIGURATIONS, *piccolo.QUANTA, piccolo.BY_THROUGHPUT)
    known = (Known(dict.fromkeys(names, 4.0)), Known(dict.fromkeys(names, inf)))

    def cases(*_: object) -> tuple[Known, ...]:
        return known

    monkeypatch.setattr(piccolo, "cases", cases)
    found = piccolo.distributions(Asked(data=Path(), seeds=1, seconds=1, draws=1))
    figures = {figure.name: (figure.value, figure.note) for figure in found.figures}
    where = "figure 7, max-configs 1: cost over piccolo"
    assert figures[where] == (2.0, "1 of 2 without a plan")
    assert figures[f"{where}, workloads at equal cost"][0] == 0.0
    where = "figure 6, without spatial: throughput of the first module at equal cost"
    assert figures[f"{where}: median"] == (0.25, "1 of 2 without a plan")
    assert "figure 9, without lc, 2 modules: cost over piccolo" in figures
    assert [len(panel.series) for panel in found.panels] == [3, 2, 1, 2]
    assert found.panels[1].series["max-configs 1"] == [(2.0, 50.0), (2.0, 50.0)]
