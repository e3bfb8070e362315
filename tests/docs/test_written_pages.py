"""Rules for every page: short cells, a short glossary, commands that exist (`tests/repository`)."""

import re

from tests.docs.pages import DOCS, pages

MOST_WORDS = 25
MOST_TERMS = 80


def test_no_cell_of_a_table_is_long() -> None:
    long = [
        f"{path.relative_to(DOCS)}: {cell}"
        for path in pages()
        for line in path.read_text().splitlines()
        if line.startswith("| ")
        for cell in re.split(r"(?<!\\)\|", line)[1:-1]
        if len(cell.split()) > MOST_WORDS
    ]
    assert long == []


def test_the_glossary_is_short() -> None:
    terms = (DOCS / "reference" / "glossary.md").read_text()
    found = re.findall(r"^\| (?!term \||---).+ \|$", terms, re.MULTILINE)
    assert 0 < len(found) <= MOST_TERMS
