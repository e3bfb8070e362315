"""Words that nobody looks for stay out: one field term per concept, in code as in documents."""

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.repository.files import ROOT, tracked_files

PRODUCT = {"flows", "triton_backend", "warehouse", "model_repo_templates", "scripts", "docs"}
# Nowhere, neither in names nor in comments, docstrings and READMEs.
NOWHERE = {
    "told": "reported, given, notified",
    "books": "state",
    "errands": "outbox",
    "tally": "aggregator, count",
    "showcase": "report",
    "workercare": "supervisor",
    "intake": "admission",
    "ride": "shared batch",
    "rides": "shared batches",
    "shelf": "retained outputs",
    "shelves": "retained outputs",
    "brick": "item, column",
    "bricks": "items, columns",
    "guest": "former batch",
    "guests": "former batches",
}
# Not the name of a file, a folder, a class or a public function; as words they are plain English.
NO_NAMES = {
    "tell": "apply, notify",
    "acts": "kernel_api",
    "act_at": "handle_event",
    "addressed": "tables",
    "answers": "decoding, reference_outputs",
    "leave": "enqueue, release",
    "care": "maintenance, supervisor",
    "road": "channel",
    "wayon": "output_target",
    "onward": "output",
    "slow": "slow_worker",
    "drained": "quarantine",
    "pool_pace": "pool_slowdown",
    "well": "recovered",
    "adopting": "remote_generations",
    "supplying": "artifact_upload",
    "direct": "stage_probe",
    "demo": "example_project",
    "verdict": "acceptance",
    "patience": "queueing",
    "sustain": "sustained_load",
    "slack": "headroom",
    "overflow": "best_effort",
    "tried": "stage_result",
    "driver": "gateway",
    "door": "admission",
    "line": "queue",
    "hinders": "wastes_capacity",
    "give_up": "drop_head",
    "pulse": "heartbeat",
    "beat": "heartbeat",
    "alarm": "timerfd",
    "deaths": "process_exit",
    "minutes": "minute_stats",
    "ties": "tie_break",
    "settle": "tie_break",
    "keep": "incumbent",
    "wholes": "integers",
    "piped": "sigpipe",
    "held": "resource_usage, reserved",
}
PART_OF_A_NAME = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def words_of(text: str) -> set[str]:
    """Words of a text in lower case, those inside names of code too (`told_us`, `WorkerCare`)."""
    parts = {part.lower() for part in PART_OF_A_NAME.findall(text)}
    return parts | {word.lower() for word in re.findall(r"\w+", text)}


def old_words(text: str) -> Iterator[tuple[int, str]]:
    """Numbers of the lines that hold a word of `NOWHERE`, with the word."""
    if not words_of(text) & NOWHERE.keys():
        return
    for number, line in enumerate(text.splitlines(), 1):
        for word in sorted(words_of(line) & NOWHERE.keys()):
            yield number, word


def public_names(body: Sequence[ast.stmt]) -> Iterator[tuple[int, str]]:
    """Classes and public functions of a module, methods too, with the numbers of their lines."""
    for node in body:
        named = isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if named and not node.name.startswith("_"):
            yield node.lineno, node.name
        if isinstance(node, ast.ClassDef):
            yield from public_names(node.body)


def product_files() -> Iterator[tuple[Path, str]]:
    """Files of the product that are text, with it."""
    for path in tracked_files():
        if path.parts[0] in PRODUCT:
            try:
                yield path, (ROOT / path).read_text()
            except UnicodeDecodeError:
                continue


def test_old_words_are_nowhere_in_the_product() -> None:
    found = [
        f"{path}:{number}: {word} (say: {NOWHERE[word]})"
        for path, text in product_files()
        for number, word in old_words(text)
    ]
    assert found == []


def test_no_file_class_or_public_function_has_an_old_name() -> None:
    found: list[str] = []
    for path, text in product_files():
        found += [f"{path}: {p}" for p in (*path.parts[:-1], path.stem) if p.lower() in NO_NAMES]
        if path.suffix == ".py":
            found += [
                f"{path}:{number}: {name} (say: {NO_NAMES[name.lower()]})"
                for number, name in public_names(ast.parse(text).body)
                if name.lower() in NO_NAMES
            ]
    assert found == []


@pytest.mark.parametrize(
    "line", ["self.told_us = 1", "class WorkerCare:", "# The Books know.", "def Intake(x):"]
)
def test_an_old_word_is_noticed_in_whatever_form(line: str) -> None:
    assert len(list(old_words(line))) == 1


@pytest.mark.parametrize("line", ["bookstore", "untold", "BooksellerIntakes"])
def test_a_word_that_only_contains_one_is_none(line: str) -> None:
    assert list(old_words(line)) == []


def test_an_old_name_is_noticed_as_class_and_as_method() -> None:
    names = [
        name for _, name in public_names(ast.parse("class Turns:\n  def tell(self): ...\n").body)
    ]
    assert names == ["Turns", "tell"]
