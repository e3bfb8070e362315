"""Changes are small, one at a time, in what runs; a draw repeats itself."""

import ast
from pathlib import Path

import pytest

from scripts.mutate import PARTS, ROOT, draw, explained, files_of, mutants_of

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
