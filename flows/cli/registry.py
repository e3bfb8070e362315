"""Commands, found by looking: one file each, below the package of their group.

A command is a function under `@command(WORDS, EXAMPLE, ...)` in a file of its group's package,
named as users type it; nothing else lists it. Not here: what commands do, and any heavy import.
"""

import pkgutil
import re
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass
from importlib import import_module
from math import inf, isfinite
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from flows.cli.option_fields import expanded
from flows.options import range_in_words
from flows.value_errors import reason_of
from triton_backend.contract.errors import InputError
from triton_backend.contract.fields import check_finite

# In the order of a first day with it; a group's heading is its package's docstring.
GROUPS = ("start", "prepare", "plan", "simulate", "serve", "operate")
PACKAGE = "flows.cli"

Function = TypeVar("Function", bound=Callable[..., None])


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """One command: its words (`warehouse`, `check`), its function and what its help ends with."""

    module: str
    words: tuple[str, ...]
    function: Callable[..., None]
    examples: tuple[str, ...]
    takes_more: bool


_ARGUMENTS, _OPTIONS = "Arguments", "Options"
# Types of pydantic's complaints about a value that is out of its range.
_RANGES = ("greater_than_equal", "less_than_equal")
_TAKES_MORE = {"allow_extra_args": True, "ignore_unknown_options": True}
_declared: list[Declared] = []
_families: dict[str, str] = {}


def command(words: str, *examples: str, takes_more: bool = False) -> Callable[[Function], Function]:
    """Declare the decorated function a command: `simulate`, or `warehouse check` of a family.

    With `takes_more` it is given options that it does not declare, as `typer.Context.args`.
    """

    def declare(function: Function) -> Function:
        _declared.append(
            Declared(
                module=function.__module__,
                words=tuple(words.split()),
                function=function,
                examples=examples,
                takes_more=takes_more,
            )
        )
        return function

    return declare


def family(word: str, about: str) -> None:
    """Declare a word under which several commands stand."""
    _families[word] = about


class GroupedCommands(TyperGroup):
    """Help that lists commands under the headings of their groups."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write one section per group."""
        del ctx
        sections: dict[str, list[tuple[str, str]]] = {}
        width = max(map(len, self.commands))
        for name, found in self.commands.items():
            heading = str(getattr(found, "rich_help_panel", None) or "Commands")
            line = found.get_short_help_str(formatter.width - 6 - width)
            sections.setdefault(heading, []).append((name.ljust(width), line))
        for heading, rows in sections.items():
            with formatter.section(heading):
                formatter.write_dl(rows)


class PanelledCommand(TyperCommand):
    """A command whose help has panels, and that names all options that are missing at once."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write one section per panel: arguments, options without a panel, then the panels.

        Ranges are left out: most of them only exclude what makes no sense, and an error names them.
        """
        sections: dict[str, list[tuple[str, str]]] = {_ARGUMENTS: [], _OPTIONS: []}
        for parameter in self.get_params(ctx):
            shown: Any = copy(parameter)
            shown.min = shown.max = None
            record = shown.get_help_record(ctx)
            if record is None:
                continue
            if shown.param_type_name == "argument":
                sections[_ARGUMENTS].append((shown.metavar, record[1]))
            else:
                panel = getattr(shown, "rich_help_panel", None)
                sections.setdefault(panel or _OPTIONS, []).append(record)
        for heading, rows in sections.items():
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse; where required parameters are missing, name all of them.

        Raises:
            InputError: a value has another type than its parameter, is not finite, or is out of
                its range.
            TyperException: as Typer does, or parameters are missing.
        """
        given = list(args)
        try:
            rest = super().parse_args(ctx, args)
        except typer.TyperException as error:
            known, _, _ = self.make_parser(ctx).parse_args(given)
            missing = [p for p in self.params if p.required and known.get(p.name) in (None, ())]
            # Any other complaint of Typer is about a value that was given.
            if getattr(error, "param", None) not in missing:
                if (reason := _why_not(error)) is None:
                    raise
                raise InputError(_spelled(getattr(error, "param", None)), reason) from error
            names = ", ".join(_spelled(parameter) for parameter in missing)
            raise typer.TyperException(f"missing: {names}") from error
        for parameter in self.params:
            check_finite(_spelled(parameter), ctx.params.get(str(parameter.name)))
        return rest

    def invoke(self, ctx: Any) -> Any:
        """Run the command.

        Raises:
            InputError: as the command does; an option that is named by its name in code is named as
                it is typed.
        """
        try:
            return super().invoke(ctx)
        except InputError as error:
            more = bool(self.context_settings.get("allow_extra_args"))
            raise as_typed(error, self._options(ctx.params), more=more) from error

    def _options(self, given: Mapping[str, Any]) -> dict[str, str]:
        """How options are typed, by their names in code.

        Left out is an option whose value is its own name: then that may be the name of a file.
        """
        options = {str(p.name): p for p in self.params if p.param_type_name == "option"}
        return {n: _spelled(p) for n, p in options.items() if str(given.get(n)) != n}


def as_typed(error: InputError, options: Mapping[str, str], *, more: bool = False) -> InputError:
    """A complaint about an option with every option in it as a user types it.

    Checks are shared with files and forms, where options have their names in code: `option
    time_limit_s`, `low_load_factor`, `minimum_rps.net` of a table by name.

    Args:
        error: any complaint; one about anything else is given back as it is.
        options: how options are typed, by their names in code.
        more: whether the command takes others, too.
    """
    marked = error.where.startswith("option ")
    # Without the mark a dot is that of a file: `workload.yaml`.
    name, dot, key = (
        error.where[len("option ") :].partition(".") if marked else (error.where, "", "")
    )
    typed = options.get(name)
    if typed is None and more and marked:
        typed = f"--{name.replace('_', '-')}"
    if typed is None:
        return error
    reason = re.sub(r"\w+_\w+", lambda found: options.get(found[0], found[0]), error.reason)
    return InputError(f"{typed} {key}" if dot else typed, reason)


def _why_not(error: typer.TyperException) -> str | None:
    """A complaint of pydantic's about a value in words of ours; None for any other complaint."""
    found = getattr(error.__cause__, "errors", None)
    if found is None:
        return None
    first, parameter = found()[0], getattr(error, "param", None)
    kind, value = str(first["type"]), first["input"]
    if kind in _RANGES and not isfinite(float(value)):
        return f"{value} is no finite number"
    if kind in _RANGES:
        least, most = (getattr(parameter, end, None) for end in ("min", "max"))
        ends = -inf if least is None else least, inf if most is None else most
        return f"{value} is not {range_in_words(*ends)}"
    return reason_of(first)


def _spelled(parameter: Any) -> str:
    """A parameter as a user types it: the long name of an option, the noun of an argument."""
    return (
        max(parameter.opts, key=len) if parameter.param_type_name == "option" else parameter.metavar
    )


def add_commands(app: typer.Typer) -> None:
    """Import every file of every group, and give the application what they declare."""
    families: dict[str, typer.Typer] = {}
    for group in GROUPS:
        package = import_module(f"{PACKAGE}.{group}")
        for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            import_module(found.name)
        heading = (package.__doc__ or group).rstrip(".")
        mine = [d for d in _declared if d.module.startswith(f"{package.__name__}.")]
        for declared in sorted(mine, key=lambda d: d.words):
            *above, name = declared.words
            parent = app
            for word in above:
                if word not in families:
                    families[word] = typer.Typer(help=_families[word])
                    app.add_typer(families[word], name=word, rich_help_panel=heading)
                parent = families[word]
            parent.command(
                name,
                cls=PanelledCommand,
                epilog=_example(declared.examples),
                rich_help_panel=None if above else heading,
                context_settings=_TAKES_MORE if declared.takes_more else None,
            )(expanded(declared.function))


def _example(lines: tuple[str, ...]) -> str:
    """The end of a help page: one command a user can copy, or several, each on a line."""
    # The backspace tells the formatter to leave these lines as they are.
    return "\n".join(("\b", "Example:", *(f"  {line}" for line in lines)))
