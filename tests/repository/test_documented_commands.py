"""Every command line of the documents is one that the programs here take."""

import re
import runpy
import shlex
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from functools import cache
from io import StringIO
from typing import Any

import pytest
import typer

from flows.cli.main import app
from tests.repository.files import ROOT, tracked_files

DOCUMENTS = [path for path in tracked_files() if path.suffix == ".md"]
BLOCK_LINE = re.compile(r"^(?:    |\$ )(?=\S)", re.MULTILINE)
INLINE = re.compile(r"`([^`\n]+)`")
PROGRAM = re.compile(r"(poolpipe |python |scripts/(?!\*))")
ROOT_COMMAND: Any = typer.main.get_command(app)


def command_lines(text: str) -> Iterator[str]:
    """Indented lines, lines after a prompt and inline code that begin with one of our programs."""
    joined = text.replace("\\\n", " ")
    lines = [
        line[match.end() :] for line in joined.splitlines() if (match := BLOCK_LINE.match(line))
    ]
    for line in (*lines, *INLINE.findall(joined)):
        bare = line.removeprefix(".venv/bin/")
        if PROGRAM.match(bare):
            yield bare


def words_of(line: str) -> list[str]:
    """The words of a command line without its comment; optional parts count as given."""
    plain = re.sub(r"\[(-[^\]]*)\]", r"\1", line)
    return shlex.split(plain.partition(" #")[0].partition(" <<")[0])


LINES = sorted(
    {(str(path), line) for path in DOCUMENTS for line in command_lines((ROOT / path).read_text())}
)


@cache
def help_of(script: str) -> str:
    """The help of a script."""
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as printed:
        patch.setattr(sys, "argv", [script, "--help"])
        with pytest.raises(SystemExit):
            runpy.run_path(str(ROOT / script), run_name="__main__")
    return printed.getvalue()


def check_poolpipe(words: list[str]) -> None:
    """Parse as the command itself does, without running it."""
    found, context, rest = ROOT_COMMAND, None, words
    while hasattr(found, "commands"):
        context = found.context_class(found, parent=context, info_name=rest[0] if rest else "")
        if not rest or rest[0].startswith("-"):
            return
        assert rest[0] in found.commands, f"no command {rest[0]}"
        found, rest = found.commands[rest[0]], rest[1:]
    context = found.context_class(found, parent=context, **found.context_settings)
    try:
        found.make_parser(context).parse_args(list(rest))
    except typer.TyperException as error:
        if "requires an argument" not in str(error):  # prose may name an option without its value
            raise


def check_script(script: str, arguments: list[str]) -> None:
    """The file is there, and knows the options."""
    path = ROOT / script
    assert path.is_file(), f"no {script}"
    options = [word.partition("=")[0] for word in arguments if word.startswith("--")]
    if options and path.suffix == ".py":
        assert [option for option in options if option not in help_of(script)] == []
    elif path.name == "test":
        assert [option for option in options if option not in path.read_text()] == []


@pytest.mark.parametrize(("document", "line"), LINES)
def test_command_line_is_one_that_its_program_takes(document: str, line: str) -> None:
    del document
    program, *arguments = words_of(line)
    if program == "python":
        if arguments[0] == "-m" and arguments[1].startswith("scripts."):
            check_script(f"{arguments[1].replace('.', '/')}.py", arguments[2:])
        elif arguments[0].startswith("scripts/"):
            check_script(arguments[0], arguments[1:])
    elif program == "poolpipe":
        check_poolpipe(arguments)
    else:
        check_script(program, arguments)


@pytest.mark.parametrize(
    "words", [["plann"], ["serve", "--htp-port", "8000"], ["warehouse", "forget"]]
)
def test_a_command_line_that_is_none_is_noticed(words: list[str]) -> None:
    with pytest.raises((AssertionError, typer.TyperException)):
        check_poolpipe(words)


def test_an_option_that_a_script_does_not_have_is_noticed() -> None:
    with pytest.raises(AssertionError):
        check_script("scripts/benchmarks/soak.py", ["--hours"])
