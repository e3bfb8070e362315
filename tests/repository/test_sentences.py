"""Sentences: words that hide the subject of a sentence stay out of prose, help and errors."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.repository.files import ROOT, tracked_files

WORDS = re.compile("whoever|nobody|somebody|anew", re.IGNORECASE)
FORBIDDEN = re.compile(rf"\b({WORDS.pattern})\b", re.IGNORECASE)
# A pronoun for a process; people may be meant.
WHO = re.compile(
    r"\b(?<!people )(?<!users )(?<!user )(?<!operators )(?<!readers )(who|whom)\b(?!`)",
    re.IGNORECASE,
)
FIRST = re.compile(r"\W*(who|what|whether|that)\b", re.IGNORECASE)
HEADING = re.compile(r"^(#.*)$", re.MULTILINE)
LABELS = [
    "Context",
    "Choice",
    "Cost",
    "Tried",
]  # of a record of a decision; the last may be missing
LABEL = re.compile(r"^\*\*(\w+)\*\*: ", re.MULTILINE)
MOST_WORDS = 180  # of a record, tables left out
# All of Python that may hold a mark of the other; its tokenizer takes twenty times as long.
STRING_OR_COMMENT = re.compile(
    r'''"""(?:\\.|[^\\])*?"""|'{3}(?:\\.|[^\\])*?'{3}'''
    r"""|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|#[^\n]*""",
    re.DOTALL,
)
BODIES = "body", "orelse", "finalbody", "handlers", "cases"  # of statements
PROSE = {".md", ".j2", ".toml", ".yaml"}
# The rules themselves, and the table of older names.
RULES = {
    Path("docs/reference/glossary.md"),
    Path("tests/flows/cli/test_registry_help.py"),
    Path("tests/repository/test_sentences.py"),
    Path("tests/repository/test_words.py"),
}

Place = tuple[int, str]


def docstrings(tree: ast.AST) -> Iterator[Place]:
    """Texts that stand alone in a body, those below fields too, with the numbers of their lines."""
    for name in BODIES:
        for each in getattr(tree, name, []):
            said = getattr(getattr(each, "value", None), "value", None)
            if name == "body" and isinstance(each, ast.Expr) and isinstance(said, str):
                yield each.lineno, said.strip()
            yield from docstrings(each)


def comments(text: str) -> Iterator[tuple[int, str, bool]]:
    """Comments with the numbers of their lines; False: it goes on with the line before."""
    number, counted, before = 1, 0, -1
    for found in STRING_OR_COMMENT.finditer(text):
        if found[0].startswith("#"):
            number += text.count("\n", counted, found.start())
            counted = found.start()
            alone = not text[text.rfind("\n", 0, counted) + 1 : counted].strip()
            yield number, found[0], not (alone and before == number - 1)
            before = number if alone else -1


def texts(tree: ast.AST) -> Iterator[Place]:
    """String constants, f-strings in parts, with the numbers of their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


@dataclass(frozen=True, slots=True)
class Source:
    """What the text of a module says, each with the number of its line."""

    docstrings: list[Place]
    comments: list[tuple[int, str, bool]]


@cache
def source(text: str) -> Source:
    """A module, read once for all rules."""
    return Source([*docstrings(ast.parse(text))], [*comments(text)])


def forbidden(path: Path, text: str) -> Iterator[Place]:
    """Numbers of lines with a forbidden word, and the word."""
    if not WORDS.search(text):
        return
    if path.suffix != ".py":
        places: list[Place] = list(enumerate(text.splitlines(), 1))
    else:
        found = source(text)
        # A test may name a model of its own `nobody`.
        own = path.parts[0] == "tests"
        places = [*(found.docstrings if own else texts(ast.parse(text)))]
        places += [(number, comment) for number, comment, _ in found.comments]
    for number, said in places:
        for word in FORBIDDEN.findall(said):
            if said.lower() != word.lower():
                yield number, word


def pronouns(path: Path, text: str) -> Iterator[Place]:
    """Numbers of lines that say who for a process, and the word; tests tell stories of theirs."""
    if path.parts[0] == "tests":
        return
    if path.suffix == ".py":
        found = source(text)
        places = [*found.docstrings, *((number, said) for number, said, _ in found.comments)]
    else:
        places = list(enumerate(text.splitlines(), 1))
    for number, said in places:
        for word in WHO.findall(said):
            yield number, word


def first_words(path: Path, text: str) -> Iterator[Place]:
    """Numbers of lines where a docstring, comment or heading begins without its subject."""
    if path.suffix == ".md":
        lines = list(enumerate(text.splitlines(), 1))
        begun = [(number, line) for number, line in lines if line.startswith("#")]
    elif path.suffix == ".py":
        read = source(text)
        begun = [*read.docstrings]
        begun += [(number, comment) for number, comment, begins in read.comments if begins]
    else:
        begun = []
    for number, said in begun:
        if found := FIRST.match(said):
            yield number, found[1]


def record_faults(text: str) -> Iterator[str]:
    """Faults of a text of decisions.

    Below its title and an introduction it has records alone, numbered from 1, some of them below
    headings of parts. A record has its labels, each once and with a text, and nothing before them.
    """
    title, _, *parts = HEADING.split(text)[1:]
    if not title.startswith("# Decisions"):
        yield f"{title}: not the title"
    number = 0
    for heading, body in zip(parts[::2], parts[1::2], strict=True):
        if not re.match(r"###? \d+ \S", heading):
            if body.strip():
                yield f"{heading}: a text outside the records"
            continue
        number += 1
        if int(heading.split()[1]) != number:
            yield f"{heading}: not number {number}"
        before, *said = LABEL.split(body)
        labels = said[::2]
        if labels not in (LABELS, LABELS[:-1]) or before.strip():
            yield f"{heading}: {labels or 'no labels'}"
        if not all(text.strip() for text in said[1::2]):
            yield f"{heading}: a label without a text"
        if len(re.sub(r"^\|.*", "", body, flags=re.MULTILINE).split()) > MOST_WORDS:
            yield f"{heading}: more than {MOST_WORDS} words"


def prose() -> Iterator[tuple[Path, str]]:
    """Every tracked file that the rules hold for, with its text."""
    for path in tracked_files():
        if path not in RULES and path.suffix in PROSE | {".py"}:
            yield path, (ROOT / path).read_text()


DECISIONS = [p for p in tracked_files() if p.name == "DECISIONS.md"]


@pytest.mark.parametrize("path", DECISIONS, ids=str)
def test_decisions_are_numbered_records(path: Path) -> None:
    assert list(record_faults((ROOT / path).read_text())) == []


def test_no_text_has_a_forbidden_word() -> None:
    found = [
        f"{path}:{number}: {word}"
        for path, text in prose()
        for number, word in forbidden(path, text)
    ]
    assert found == []


def test_a_process_is_named_where_it_acts() -> None:
    found = [
        f"{path}:{number}: {word}"
        for path, text in prose()
        for number, word in pronouns(path, text)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("# Who holds it waits.", ["Who"]),
        ("# Behind those whom it serves.", ["whom"]),
        ("# For people who read it, and a user who may not.", []),
        ("who = 1", []),
    ],
)
def test_a_pronoun_for_a_process_is_noticed(line: str, words: list[str]) -> None:
    assert [word for _, word in pronouns(Path("flows/a.py"), line)] == words


def test_docstrings_comments_and_headings_begin_with_their_subject() -> None:
    found = [
        f"{path}:{number}: {word}"
        for path, text in prose()
        for number, word in first_words(path, text)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.md", "It waits for nobody.\n"),
        ("flows/a.py", "def a():\n    raise ValueError('made anew')\n"),
        ("flows/a.py", "a = f'{a} of Somebody'\n"),
        ("tests/a.py", "a = 1  # whoever\n"),
        ("tests/a.py", '"""Of nobody."""'),
    ],
)
def test_a_forbidden_word_is_noticed(name: str, text: str) -> None:
    assert len(list(forbidden(Path(name), text))) == 1


@pytest.mark.parametrize(
    ("name", "text", "count"),
    [
        ("a.md", "# Who is it\n\nWho is it\n", 1),
        ("a.py", '"""What it is."""\na = 1  # that is one\n# whether\n# that goes on\n', 3),
        ("a.py", '"""A name."""\n# It is\n# what it is.\n', 0),
    ],
)
def test_a_first_word_is_noticed(name: str, text: str, count: int) -> None:
    assert len(list(first_words(Path(name), text))) == count


RECORD = "## 1 A is B\n\n**Context**: a\n\n**Choice**: b\n\n**Cost**: c\n"


def test_a_record_may_say_what_was_tried() -> None:
    second = RECORD.replace("## 1", "### 2") + "\n**Tried**: d\n"
    text = f"# Decisions: a part\n\nWords.\n\n{RECORD}\n## A part\n\n{second}"
    assert list(record_faults(text)) == []


@pytest.mark.parametrize(
    "text",
    [
        RECORD.replace("1", "2"),
        RECORD + "**Because**: d\n",
        RECORD.replace("**Cost**: c\n", ""),
        RECORD.replace("**Cost**: c", "Cost: c"),
        RECORD.replace("**Cost**: c", "**Cost**: "),
        RECORD.replace("**Context**", "Long ago.\n\n**Context**"),
        RECORD + "\n## A part\n\nMore.\n",
        RECORD + "c " * 200,
    ],
)
def test_a_record_of_another_form_is_noticed(text: str) -> None:
    assert len(list(record_faults("# Decisions\n\n" + text))) == 1
