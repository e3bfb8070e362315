"""Gpulets' curves on a small problem: any cut places what halves place, and no more at more."""

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from flows.planning import PlanOptions
from flows.planning.gpulets.tables import read_tables
from flows.planning.registry import Inputs
from scripts.paper.curves import gpulets
from scripts.paper.curves.panels import Asked
from tests.flows.planning.gpulets.cases import case
from triton_backend.simulator.results import Goodput


@pytest.mark.long
def test_mixes_that_halves_place_are_placed_by_the_best_cuts_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = case(6, 3, 2, percents=(20, 50, 80, 100))
    inputs = Inputs(
        profiles=asked.profiles,
        cluster=asked.cluster,
        workload=asked.workload,
        options=PlanOptions(planner="gpulets"),
    )
    tables = read_tables(inputs)

    def known(*_: object) -> object:
        return tables

    for name, value in {"tables_of": known, "profiles_of": known, "constants": known}.items():
        monkeypatch.setattr(gpulets, name, value)
    monkeypatch.setattr(gpulets, "GPUS", 2)
    monkeypatch.setattr(gpulets, "SCALES", (1.0, 3.0, 9.0))
    monkeypatch.setattr(gpulets, "MIXES_A_DRAW", 10)
    (panel,) = gpulets.schedulable(Asked(data=Path(), seeds=1, seconds=1, draws=1)).panels
    halves, best = (panel.series[name] for name in (gpulets.HALVES, "ideal-static"))
    assert [scale for scale, _ in best] == [1.0, 3.0, 9.0]
    assert all(low[1] <= high[1] for low, high in zip(halves, best, strict=True))
    assert best[0][1] >= best[-1][1]


def test_goodputs_are_ratios_to_each_base_and_the_first_is_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rates = {("a", "one"): 2.0, ("a", "two"): 3.0, ("b", "one"): 4.0, ("b", "two"): 3.0}

    def plan_of(_: Path, system: str, items: gpulets.Items, gpus: int) -> object:
        assert gpus == 2
        return (system, items[0][0])

    def find_goodput(plan: tuple[str, str], *_: object, step: float) -> Goodput:
        assert step > 0
        return Goodput(load_factor=1.0, rps=rates[plan])

    monkeypatch.setattr(gpulets, "plan_of", plan_of)
    monkeypatch.setattr(gpulets, "find_goodput", find_goodput)
    how = gpulets.Compared("0", "t", 2, ("a", "b"), ("a", "b"))
    cases = {name: [(name, 1.0, 1)] for name in ("one", "two")}
    asked = Asked(data=Path(), seeds=1, seconds=1, draws=1)
    found = gpulets.goodputs(asked, how, cases, gpulets.plans_of(asked, how, cases))
    (panel,) = found.panels
    assert panel.series == {"a": [("one", 1.0), ("two", 1.0)], "b": [("one", 2.0), ("two", 1.0)]}
    assert [(figure.name, figure.value) for figure in found.figures] == [
        ("figure 0, b over a: median", 1.5),
        ("figure 0, b over a: worst", 1.0),
        ("figure 0, b over a, mean", 1.5),
        ("figure 0, a over b: median", 0.75),
        ("figure 0, a over b: worst", 0.5),
        ("figure 0, a over b, mean", 0.75),
    ]


def test_a_rate_over_none_is_large_and_finite() -> None:
    assert gpulets.over([2.0, 3.0], [4.0, 0.0]) == [0.5, 3.0 / 1e-9]


def test_highest_rates_are_ratios_of_what_plans_promise() -> None:
    class Promised(NamedTuple):
        value: float

        @property
        def objective(self) -> "Promised":
            return self

    rates = dict.fromkeys(gpulets.COMPARED, (2.0, 2.0)) | {
        gpulets.GREEDY: (1.0, 1.5),
        gpulets.EXACT: (3.0, 2.0),
    }
    plans: Any = {name: [Promised(rate) for rate in own] for name, own in rates.items()}
    found = gpulets.highest_rates("t", ("one", "two"), plans)
    values = {figure.name: figure.value for figure in found.figures}
    assert values["figure 16, one: exact plan over ideal-static"] == 1.5
    assert values["figure 16, two: exact plan over gpulets-greedy"] == 2 / 1.5
    assert values["figure 16, gpulets-greedy over ideal-static, mean"] == 0.625
    (panel,) = found.panels
    assert panel.series["gpulets"] == [("one", 1.5), ("two", 1.0)]
