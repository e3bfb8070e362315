"""The search for the highest load, and what is said of both sides."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from scripts.paper import against_triton
from scripts.paper.against_triton import LOADS, Found, Problem, figures_of, highest


@pytest.mark.parametrize("carries", [0, 1, 2, 37, len(LOADS) - 1, len(LOADS)])
@pytest.mark.parametrize("above", [0, 5, len(LOADS)])
def test_halving_finds_the_highest_load_that_holds(
    monkeypatch: pytest.MonkeyPatch, carries: int, above: int
) -> None:
    def holds(configuration: object, load: float, seeds: Sequence[int]) -> bool:
        del configuration, seeds
        return LOADS.index(load) < carries

    monkeypatch.setattr(against_triton, "holds", holds)
    assert highest(None, (0,), above) == max(carries, above)  # type: ignore[arg-type]


def test_ratios_and_leads_count_every_problem_alike() -> None:
    def found(cluster: str, triton: float, ours: float) -> Found:
        problem = Problem(folder=Path(), group="G1", cluster=cluster, seconds=1)
        return Found(
            problem=problem,
            planned_rps=100,
            triton_rps=triton,
            ours_rps=ours,
            triton_chosen="a",
            ours_chosen="b",
        )

    figures = figures_of(
        [found("HC1-L", 100, 600), found("HC2-L", 100, 50), found("one class", 80, 80)]
    )
    values = {figure.name: figure.value for figure in figures}
    assert values["mixed: PoolPipe / Triton, sum of goodput"] == 650 / 200
    assert values["mixed: PoolPipe / Triton, mean of ratios"] == pytest.approx(3**0.5)
    assert values["mixed: PoolPipe / Triton, least"] == 0.5
    assert values["mixed: problems where Triton is ahead"] == 1
    assert values["one class: problems where both are equal"] == 1
    assert values["HC1-L: goodput of PoolPipe, tuned"] == 600
