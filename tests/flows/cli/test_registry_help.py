"""Help of every command.

Each parameter explained, in one form, in panels that a reader can take in.
"""

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import pytest
import typer

from flows.cli.main import app, run

NOUN = re.compile(
    "APPLICATION|C|CLASS|COLUMN|DAYS|FACTOR|FILE"
    "|FOLDER|FROM|GIB|GPU|GPUS|H|HOST|HOURS|IMAGE|LABEL|MODEL|MS|N|NAME|NODE"
    "|PLAN|PORT|RANGE|RPS|RUN|SECONDS|SERIES|SHAPE|SHARE|STEP|TEXT|TO|URL|US|VALUE|W|WHAT"
)
LITERAL = re.compile(r"[a-z0-9-]+")  # one of the values that can be given
BETWEEN = re.compile(r"[|=@:,\[\]]|x(?=[A-Z])|(?<=[A-Z])-(?=[A-Z])")
LEAST_WORDS = 4
MOST_OPTIONS = 12
HOMEMADE = re.compile(
    r"\b(who|whoever|nobody|somebody|anew|so (long|much|many|often)|without it)\b",
    re.IGNORECASE,
)


def commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every command that can be run, by its words."""
    if not hasattr(command, "commands"):
        yield " ".join(words), command
        return
    for name, below in command.commands.items():
        yield from commands(below, (*words, name))


ROOT: Any = typer.main.get_command(app)
COMMANDS = dict(commands(ROOT))
PARAMETERS = [
    (f"{words} {parameter.opts[0]}", parameter)
    for words, command in COMMANDS.items()
    for parameter in command.params
]


def test_every_parameter_is_explained_in_a_sentence() -> None:
    findings = [
        (where, parameter.help)
        for where, parameter in PARAMETERS
        if len((parameter.help or "").split()) < LEAST_WORDS
        or not parameter.help.endswith(".")
        or HOMEMADE.search(parameter.help)
    ]
    assert findings == []


def test_every_command_says_in_a_sentence_what_it_does() -> None:
    first = re.compile(r"(What|Whether|Who|That|How)\b")
    findings = [
        (words, command.help)
        for words, command in COMMANDS.items()
        if HOMEMADE.search(command.help) or first.match(command.help)
    ]
    assert findings == []


def test_metavars_are_nouns_in_capitals_or_the_values_themselves() -> None:
    findings = [
        (where, parameter.metavar)
        for where, parameter in PARAMETERS
        if not getattr(parameter, "is_flag", False) and not _well_named(parameter.metavar)
    ]
    assert findings == []


def _well_named(metavar: str | None) -> bool:
    parts = list(filter(None, BETWEEN.split(metavar or "")))
    return bool(parts) and all(NOUN.fullmatch(p) or LITERAL.fullmatch(p) for p in parts)


def test_no_panel_of_a_command_holds_more_options_than_can_be_taken_in() -> None:
    panels = Counter(
        (words, getattr(parameter, "rich_help_panel", None) or "Options")
        for words, command in COMMANDS.items()
        for parameter in (*command.params, "--help")
        if getattr(parameter, "param_type_name", "option") == "option"
    )
    assert {panel: count for panel, count in panels.items() if count > MOST_OPTIONS} == {}


@pytest.mark.parametrize("words", COMMANDS)
def test_the_help_page_shows_panels_and_no_ranges(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*words.split(), "--help"]) == 0
    page = capsys.readouterr().out
    assert not re.search(r"[<>]=?[x\d]|<[a-z\[\]|]+>", page)
    for parameter in COMMANDS[words].params:
        panel = getattr(parameter, "rich_help_panel", None)
        assert panel is None or f"\n{panel}:\n" in page


def test_ranges_are_checked_though_help_leaves_them_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["simulate", "--plan", "plan.json", "--duration", "0"]) == 2
    assert "--duration" in capsys.readouterr().err


def test_all_missing_options_are_named_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["whatif", "--cluster", "cluster.yaml"]) == 2
    assert capsys.readouterr().err == "poolpipe: missing: --workload, --vary, --values\n"
    assert run(["layer-times"]) == 2
    assert capsys.readouterr().err == "poolpipe: missing: NAME, --class\n"


def test_one_missing_option_is_named_in_the_same_form(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "--cluster", "cluster.yaml"]) == 2
    assert capsys.readouterr().err == "poolpipe: missing: --workload\n"


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"poolpipe {version('poolpipe')}\n"


@pytest.mark.slow
def test_the_shell_completes_commands_and_options() -> None:
    def completed(line: str) -> list[str]:
        words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
        done = subprocess.run(
            [sys.executable, "-c", "from flows.cli.main import main; main()"],
            env=os.environ | words | {"_POOLPIPE_COMPLETE": "complete_bash"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.stdout.split()

    assert completed("poolpipe roll") == ["rollout"]
    assert completed("poolpipe whatif --val") == ["--values"]
