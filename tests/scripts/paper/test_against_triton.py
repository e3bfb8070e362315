"""The problems, and what is said of both sides."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from scripts.paper.against_triton import (
    Found,
    figures_of,
    main,
    read_compared,
)
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
    assert values["two classes: PoolPipe / Triton, sum of goodput"] == 650 / 200
    assert values["two classes: PoolPipe / Triton, mean of ratios"] == pytest.approx(3**0.5)
    assert values["two classes: PoolPipe / Triton, least"] == 0.5
    assert values["two classes: problems where Triton is ahead"] == 1
    assert values["one class: problems where both are equal"] == 1
    assert values["HC1-L: goodput of PoolPipe, tuned"] == 600
    assert values["two classes: problems with auto"] == 1
    assert values["two classes: auto / Triton, least"] == 2
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


def test_a_folder_without_tables_is_refused_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--data", str(tmp_path), "--clusters", "HC1-L"])
    assert ended.value.code == 2
    assert "give the folder of tables" in capsys.readouterr().err
