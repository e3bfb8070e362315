"""Losses among golden rows that are planned again."""

from dataclasses import replace
from pathlib import Path

import pytest

from scripts.golden.problems import problems
from scripts.golden.rows import STORED, Row, kept_beside, losses, measure, read, write

MOST = Row(
    name="two-stages-00", family="two-stages", value=100.0, bound=101.0, gap=0.001, cpu_seconds=2.0
)
LEAST = Row(name="cost-00", family="cost", value=10.0, bound=9.95, gap=0.005, cpu_seconds=2.0)


def stored(*rows: Row) -> dict[str, Row]:
    return {row.name: row for row in rows}


def test_the_same_rows_lose_nothing() -> None:
    assert losses(stored(MOST, LEAST), [MOST, LEAST]) == []


@pytest.mark.parametrize(
    ("old", "change", "says"),
    [
        (MOST, {"value": 99.0}, "two-stages-00: value 100 before, 99 now"),
        (LEAST, {"value": 10.2}, "cost-00: value 10 before, 10.2 now"),
        (MOST, {"gap": 0.02}, "two-stages-00: gap 0.1000% before, 2.0000% now"),
        (
            MOST,
            {"value": None, "gap": None, "refused": "too few GPUs"},
            "two-stages-00: 100 before, now refused: too few GPUs",
        ),
        (MOST, {"differences": ("pools",)}, "two-stages-00: does not verify: pools"),
        (MOST, {"cpu_seconds": 2.4}, "CPU seconds: 1.20 times"),
        (MOST, {"cpu_seconds": 3.2}, "CPU seconds of two-stages: 1.60 times"),
    ],
)
def test_what_got_worse_is_a_loss(old: Row, change: dict[str, object], says: str) -> None:
    found = losses(stored(old), [replace(old, **change)])
    assert any(text.startswith(says) for text in found), found


def test_values_within_both_gaps_are_a_loss_in_the_mean_alone() -> None:
    found = losses(stored(MOST), [replace(MOST, value=99.95)])
    assert found == ["values: 0.999500 of the stored ones in the geometric mean"]


def test_what_got_better_is_no_loss() -> None:
    assert losses(stored(MOST), [replace(MOST, value=110.0, gap=0.0, cpu_seconds=0.1)]) == []
    assert losses(stored(replace(MOST, value=None, refused="none")), [MOST]) == []


def test_rows_come_back_from_their_file(tmp_path: Path) -> None:
    rows = [MOST, replace(LEAST, value=None, bound=None, gap=None, refused="too few GPUs")]
    write(tmp_path / "rows.json", rows)
    assert read(tmp_path / "rows.json") == stored(*rows)


def test_every_problem_has_a_golden_row_that_verified() -> None:
    rows = read(STORED)
    assert set(rows) == {problem.name for problem in problems()}
    assert [row.name for row in rows.values() if row.differences] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["one-model-00", "applications-fixed-01", "gpulets-cost-00"])
def test_a_problem_planned_again_holds_its_row(name: str) -> None:
    row = measure(name)
    held = read(STORED)[name]
    assert losses({name: replace(held, cpu_seconds=row.cpu_seconds)}, [row]) == []


def test_rows_of_some_families_are_stored_beside_the_others(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    write(path, [MOST, LEAST])
    better = replace(LEAST, value=9.96)
    write(path, kept_beside(path, [better]))
    kept = read(path)
    assert list(kept) == [MOST.name, LEAST.name]
    assert kept[LEAST.name] == better
    assert replace(kept[MOST.name], commit="") == MOST
    assert kept[MOST.name].commit
