"""Changes are small, one at a time, in what runs; a draw repeats itself."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import mutate
from scripts.mutate import (
    CORE,
    PARTS,
    ROOT,
    Processes,
    State,
    chosen_tests,
    draw,
    explained,
    files_of,
    mutants_of,
    statement_lines,
)

SOURCE = '''"""A module < with words."""

import os

LEAST: int = 3


@cached(4)
def later(a: int, b: "tuple[int, 2]") -> int:
    """Whether a < b."""
    if a <= b != 7:
        raise ValueError(f"{a} < {b + 1}")
    é = a * -b // min(a, LEAST)  # a < b
    return é - 2 if flag is True else é
'''


def test_only_what_runs_is_changed_and_one_place_at_a_time() -> None:
    made = [m.describe(SOURCE) for m in mutants_of(Path("m.py"), SOURCE)]
    assert made == [
        "m.py:5: LEAST: int = 4",
        "m.py:11: if not (a <= b != 7):",
        "m.py:11: if a < b != 7:",
        "m.py:11: if a <= b == 7:",
        "m.py:11: if a <= b != 8:",
        "m.py:13: é = a * -b * min(a, LEAST)  # a < b",
        "m.py:13: é = a // -b // min(a, LEAST)  # a < b",
        "m.py:13: é = a * -b // max(a, LEAST)  # a < b",
        "m.py:14: return é - 2 if not (flag is True) else é",
        "m.py:14: return é + 2 if flag is True else é",
        "m.py:14: return é - 3 if flag is True else é",
    ]


@pytest.mark.slow
def test_every_change_of_the_product_is_a_program() -> None:
    for mutant in draw(PARTS, 100, seed=0):
        ast.parse(mutant.apply((ROOT / mutant.path).read_text()))


@pytest.mark.long
def test_a_draw_repeats_itself() -> None:
    part = ["triton_backend/contract/shares.py"]
    assert draw(part, 5, seed=1) == draw(part, 5, seed=1) != draw(part, 5, seed=2)
    pieces = draw(part, 3, seed=1) + draw(part, 2, seed=1, skip=3)
    assert pieces == draw(part, 5, seed=1)


def test_a_part_that_is_not_there_is_named() -> None:
    with pytest.raises(FileNotFoundError, match="flows/nothing"):
        files_of(["flows/nothing"])


def test_what_the_table_does_not_name_is_not_explained() -> None:
    assert not explained("flows/clock.py:1: nothing = 1")


HEADS = """LEAST = 3


def later(a, b):
    limit = (
        a
        + b
    )
    if (
        a < limit
    ):
        return [
            b,
        ]
    return 0
"""


@pytest.mark.parametrize(
    ("changed", "lines"),
    [("3", None), ("b\n    )", {5, 6, 7, 8}), ("< limit", {9, 10, 11}), ("b,", {12, 13, 14})],
)
def test_a_change_belongs_to_the_whole_statement_or_to_the_head_of_a_longer_one(
    changed: str, lines: set[int] | None
) -> None:
    assert statement_lines(HEADS, HEADS.index(changed)) == lines


# Results are stored

UNITS = Path("triton_backend/contract/units.py")
OWN, OTHER = (
    "tests/triton_backend/contract/test_units.py",
    "tests/triton_backend/scheduler/reservations/test_probe.py",
)


def mutant_at(text: str) -> mutate.Mutant:
    """The first change of the statement that holds a text."""
    source = (ROOT / UNITS).read_text()
    place = source.index(text)
    return next(m for m in mutants_of(UNITS, source) if m.start >= place)


def test_the_quick_tests_come_first_and_who_runs_no_changed_line_never(
    tmp_path: Path,
) -> None:
    source = (ROOT / UNITS).read_text()
    mutant = mutant_at("round(value_s")
    line = source.count("\n", 0, mutant.start) + 1
    ran, not_ran = {str(UNITS): [line]}, {str(UNITS): [line + 5]}
    state = State(tmp_path)
    state.keep_tests(OWN, {"own::slow": (9.0, ran), "own::else": (0.1, not_ran)})
    state.keep_tests(OTHER, {"other::slow": (3.0, ran), "other::quick": (1.0, ran)})
    for each in (state, State(tmp_path)):  # an interrupted command goes on
        assert list(chosen_tests(each, mutant, source, own=True)) == ["own::slow"]
        others = chosen_tests(each, mutant, source, own=False)
        assert list(others) == ["other::quick", "other::slow"]
    assert chosen_tests(state, mutant, source, own=True)["own::slow"] > others["other::slow"] > 3.0


def test_what_was_noticed_stays_so_and_what_survived_is_tried_again_with_other_tests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = (ROOT / UNITS).read_text()
    caught, alive = mutant_at("round(value_s"), mutant_at("math.ceil")
    state = State(tmp_path)
    assert state.noticed_by(caught, source) is None
    state.keep_result(caught, source, "test::one")
    state.keep_result(alive, source, "")
    file = tmp_path / "tried.jsonl"
    file.write_text(file.read_text() + '{"key": "cut sho')  # by an interruption
    State(tmp_path).keep_result(caught, source, "test::one")
    again = State(tmp_path)
    assert (again.noticed_by(caught, source), again.noticed_by(alive, source)) == ("test::one", "")
    assert again.noticed_by(caught, source + "\n") is None
    fewer = mutate.Part(("tests/triton_backend/contract/**/test_*.py",), plain=True)
    monkeypatch.setattr(mutate, "CORE", fewer)
    assert (again.noticed_by(caught, source), again.noticed_by(alive, source)) == (
        "test::one",
        None,
    )


@pytest.mark.slow
def test_tests_of_the_changed_module_fail_those_of_the_unchanged_one_pass(tmp_path: Path) -> None:
    """In an interpreter of its own: the process that forks is one for all of an interpreter."""
    code = "import sys; from tests.scripts.test_mutate import try_both; try_both(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, tmp_path], cwd=ROOT, check=True)


def try_both(folder: str) -> None:
    """A change that is noticed, and none."""
    processes, state = Processes(), State(Path(folder))
    tests, failed = processes.answer_of(mutate._watch, OWN, CORE)  # runs in a process of its own
    assert not failed
    state.keep_tests(OWN, tests)
    source = (ROOT / UNITS).read_text()
    mutant = mutant_at("math.ceil")
    assert chosen_tests(state, mutant, source, own=True)
    found = mutate.noticed(state, processes, mutant, own=True)
    assert found.startswith(f"{OWN}::")
    assert state.noticed_by(mutant, source) == found
    unchanged = mutate.Mutant(path=UNITS, start=mutant.start, end=mutant.start, text="")
    assert mutate.noticed(state, processes, unchanged, own=True) == ""
    assert state.noticed_by(unchanged, source) is None  # all other tests are to be tried
    assert mutate.noticed(state, processes, unchanged, own=False) == ""
    assert state.noticed_by(unchanged, source) == ""
    assert (ROOT / UNITS).read_text() == source
