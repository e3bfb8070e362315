"""The problems, and what is said of both sides."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from scripts.paper import against_triton
from scripts.paper.against_triton import (
    Found,
    Problem,
    compare,
    figures_of,
    main,
    read_compared,
    read_kept,
)
from scripts.paper.tuning import Demand
from tests.scripts.paper.test_tuning import demand
from triton_backend.contract.errors import InputError


def found(cluster: str, triton: float, ours: float, auto: float | None = None) -> Found:
    return Found(
        group="G1",
        cluster=cluster,
        seconds=1,
        planned_rps=100,
        triton_rps=triton,
        ours_rps=ours,
        triton_chosen="a",
        ours_chosen="b",
        auto_rps=auto,
    )


def test_ratios_and_leads_count_every_problem_alike() -> None:
    figures = figures_of(
        [found("HC1-L", 100, 600), found("HC2-L", 100, 50, 200), found("one class", 80, 80, 40)]
    )
    values = {figure.name: figure.value for figure in figures}
    assert values["two classes: PoolPipe / Triton, sum of goodput of 2"] == 650 / 200
    assert values["two classes: PoolPipe / Triton, mean of ratios of 2"] == pytest.approx(3**0.5)
    assert values["two classes: PoolPipe / Triton, least of 2"] == 0.5
    assert values["two classes: problems where Triton is ahead"] == 1
    assert values["one class: problems where both are equal"] == 1
    assert values["HC1-L: goodput of PoolPipe, tuned"] == 600
    assert values["two classes: problems with auto"] == 1
    assert values["two classes: auto / Triton, least of 1"] == 2
    assert values["one class: problems where Triton is ahead of auto"] == 1


def test_problems_of_earlier_runs_count_and_those_of_other_times_are_refused(
    tmp_path: Path,
) -> None:
    rows = [found("HC1-L", 100, 600, 500), found("one class", 80, 80)]
    kept = tmp_path / "run.json"
    kept.write_text(json.dumps({"rows": [asdict(one) for one in rows]}))
    assert read_compared([kept], 1) == rows
    with pytest.raises(InputError, match="was simulated for 1 s, not 3"):
        read_compared([kept], 3)
    kept.write_text("{}")
    with pytest.raises(InputError, match="is no run of this script"):
        read_compared([kept], 1)


def test_a_run_goes_on_from_the_latest_row_of_every_problem(tmp_path: Path) -> None:
    kept = tmp_path / "rows.jsonl"
    assert read_kept(kept, 1) == []
    rows = [found("HC1-L", 100, 600), found("one class", 80, 80), found("HC1-L", 100, 600, 500)]
    kept.write_text("".join(json.dumps(asdict(one)) + "\n" for one in rows))
    assert read_kept(kept, 1) == [rows[2], rows[1]]
    with pytest.raises(InputError, match="--kept: was simulated for 1 s, not 3"):
        read_kept(kept, 3)
    kept.write_text(kept.read_text() + "[1]\n")
    with pytest.raises(InputError, match="line 4 is no row"):
        read_kept(kept, 1)


def test_a_kept_row_is_not_searched_again_and_one_without_auto_gets_it_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = demand()

    def small(_: Problem) -> Demand:
        return made

    def refused(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(Problem, "demand", small)
    problem = Problem(folder=tmp_path, group="G1", cluster="HC1-L", seconds=1)
    first = compare(problem, None, auto=False)
    assert first.auto_rps is None
    assert first.triton_rps > 0
    monkeypatch.setattr(against_triton, "tuned", refused)
    other = replace(first, planned_rps=2 * first.planned_rps)  # loads of another default plan
    with pytest.raises(AssertionError):  # searched
        compare(problem, other, auto=False)
    again = compare(problem, first, auto=True)
    assert again.auto_rps is not None
    assert again.auto_rps >= first.triton_rps
    assert replace(again, auto_rps=None, auto_chosen="") == first


def test_a_folder_without_tables_is_refused_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--data", str(tmp_path), "--clusters", "HC1-L"])
    assert ended.value.code == 2
    assert "give the folder of tables" in capsys.readouterr().err
