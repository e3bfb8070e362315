"""Gpulets' curves on a small problem: any cut places what halves place, and no more at more."""

from pathlib import Path

import pytest

from flows.planning import PlanOptions
from flows.planning.gpulets.tables import read_tables
from flows.planning.registry import Inputs
from scripts.paper.curves import gpulets
from scripts.paper.curves.panels import Asked
from tests.flows.planning.gpulets.cases import case


@pytest.mark.long
def test_mixes_that_halves_place_are_placed_by_the_best_cuts_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = case(6, 3, 2, percents=(20, 50, 80, 100))
    inputs = Inputs(profiles=asked.profiles, cluster=asked.cluster, workload=asked.workload)
    tables = read_tables(inputs, PlanOptions(planner="gpulets"))

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
