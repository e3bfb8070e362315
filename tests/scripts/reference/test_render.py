"""The committed reference is what the code renders today."""

import re

import pytest

from scripts.reference.render import FOLDER, outdated, pages


@pytest.mark.long  # and true of the locked versions: an older pydantic words schemas otherwise
def test_every_generated_page_is_up_to_date() -> None:
    assert outdated(FOLDER, pages()) == []


def test_a_page_that_differs_or_is_missing_is_outdated() -> None:
    wanted = {"metrics.md": "another text", "none.md": ""}
    assert outdated(FOLDER, wanted) == ["metrics.md", "none.md"]


def test_no_cell_of_a_generated_table_is_long_or_empty() -> None:
    long = [
        f"{name}: {cell}"
        for name, text in pages().items()
        for line in text.splitlines()
        if line.startswith("| ")
        for cell in re.split(r"(?<!\\)\|", line)[1:-1]
        if len(cell.split()) > 25
    ]
    assert long == []
