from typing import Any

import pytest

from scripts.figures.claims import Figures, Run
from scripts.figures.plots import details_of
from triton_backend.contract.errors import InputError


def run(at: str, plans: list[str]) -> Run:
    return Run(
        name=at,
        benchmark="planner",
        at=at,
        commit="0",
        quiet=True,
        transcribed=False,
        command="",
        load=None,
        figures={},
        details={"plans": plans},
    )


def test_a_series_is_of_the_newest_run_that_has_it() -> None:
    def of_three(plans: list[str] | None) -> Any:
        return "three" in (plans or ())

    figures = Figures(
        claims=(), runs=(run("1", ["two", "three"]), run("3", ["two"]), run("2", ["three"]))
    )
    assert details_of(figures, "planner", "plans", of_three) == ["three"]
    assert details_of(figures, "planner", "plans") == ["two"]
    with pytest.raises(InputError, match="no kept run has 'rows'"):
        details_of(figures, "planner", "rows")
