"""Options of a command from declared ones: a parameter that is a dataclass of options stands for all.

Here: what Typer takes of an `Option`, and how texts become values again. Not here: what an option is.
"""

from collections.abc import Callable
from dataclasses import is_dataclass
from functools import wraps
from inspect import Parameter, signature
from math import isinf
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from flows.cli.shared_options import pairs, rates
from flows.options import Option, asked

_METAVARS = {int: "N", float: "X", str: "TEXT"}


Group = tuple[Option, ...]


def expanded(command: Callable[..., None]) -> Callable[..., None]:
    """The function with every parameter that stands for options replaced by them.

    Such a parameter has a dataclass as its type, and is given an instance; or it is a `dict` annotated
    with `flows.options.asked(...)`, and is given the values by name. Left out are options without a flag, and
    those whose name another parameter of the command has.
    """
    parameters = signature(command).parameters
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Group] = {}
    shown: dict[str, Parameter] = {}
    for name, parameter in parameters.items():
        if found := _group(hints[name]):
            groups[name] = tuple(o for o in found if o.flag and o.name not in parameters)
            shown |= {option.name: _parameter(option) for option in groups[name]}
        else:
            shown[name] = parameter
    if not groups:
        return command

    @wraps(command)
    def run(**given: Any) -> None:
        for name, options in groups.items():
            found = [(option, given.pop(option.name)) for option in options]
            values = {o.name: _read(o, value) for o, value in found if value is not None}
            given[name] = hints[name](**values) if is_dataclass(hints[name]) else values
        command(**given)

    typed: Any = run
    typed.__signature__ = signature(command).replace(parameters=[*shown.values()])
    typed.__annotations__ = {name: parameter.annotation for name, parameter in shown.items()}
    return run


def _group(hint: Any) -> Group:
    """The options that a parameter stands for; none where it is one of its own."""
    if is_dataclass(hint) and isinstance(hint, type):
        return asked(hint)
    notes: tuple[Any, ...] = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    return next((note for note in notes if isinstance(note, tuple)), ())


def _parameter(option: Option) -> Parameter:
    """An option as Typer reads it from a signature."""
    kind = option.kind if get_origin(option.kind) is None else list[str]
    numbers = option.kind in (int, float)
    declared: Any = typer.Option(
        f"{option.flag}/--no-{option.flag[2:]}" if option.default is True else option.flag,
        metavar=None if option.kind is bool else _metavar(option),
        min=option.least if numbers and not isinf(option.least) else None,
        max=option.most if numbers and not isinf(option.most) else None,
        rich_help_panel=option.panel,
        help=option.help,
    )
    return Parameter(
        option.name,
        Parameter.KEYWORD_ONLY,
        default=None if option.unset else option.default,
        annotation=Annotated[kind | None if option.unset else kind, declared],
    )


def _metavar(option: Option) -> str:
    return option.metavar or "|".join(map(str, option.choices)) or _METAVARS[option.kind]


def _read(option: Option, value: Any) -> Any:
    """A value of the option's kind, from what Typer found.

    Raises:
        InputError: a text is no `NAME=VALUE`.
    """
    if get_origin(option.kind) is tuple:
        return tuple(value)
    if option.value is option.kind:
        return value
    if option.value is float:
        return rates(option.flag, value)
    found = pairs(option.flag, value)
    if get_origin(option.value) is tuple:
        return {name: tuple(text.split(",")) for name, text in found.items()}
    return found
