"""A parameter that is a dataclass of options, or one of several, stands for all their options.

    @command("draw", "poolpipe draw --red")
    def draw(*, what: Circle | Square, pen: Pen, as_json: AsJson = False) -> None: ...

Every field of `Circle`, `Square` and `Pen` is an option of the command, once, and the function gets
an instance. A field is declared by `flows.options.option(...)`, or as Typer reads a parameter. Not
here: what an option is.

Of several kinds the last one is the plain one. An option that it lacks asks for the first kind that
has it. What is given beside it and is no field of that kind is refused: the dataclass alone says
what goes together. An option is given if its value differs from its default.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import wraps
from inspect import Parameter, signature
from math import isinf
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import typer
from typer.models import OptionInfo

from flows.cli.shared_options import pairs, rates
from flows.options import Option, options_of
from triton_backend.contract.errors import InputError

Kinds = tuple[type, ...]
_METAVARS = {int: "N", float: "X", str: "TEXT"}


@dataclass(frozen=True, slots=True)
class _Group:
    """The options that one parameter stands for.

    Attributes:
        kinds: dataclasses of which the function gets one; of none it gets the values by name.
        declared: by name, those declared by `flows.options`.
        shown: by name, all of them as Typer reads them, those of the plain kind first.
    """

    kinds: Kinds
    declared: Mapping[str, Option]
    shown: Mapping[str, Parameter]

    def made(self, given: dict[str, Any]) -> Any:
        """The function's argument; its values are taken out of `given`."""
        found = {name: given.pop(name) for name in self.shown}
        values = {
            name: _read(self.declared[name], value) if name in self.declared else value
            for name, value in found.items()
            if value is not None or name not in self.declared
        }
        return self._kind_given(values) if self.kinds else values

    def _kind_given(self, values: Mapping[str, Any]) -> Any:
        """An instance of the kind that the values ask for.

        A kind may say why an option does not go with it, by name, in a class variable `reasons`.

        Raises:
            InputError: an option was given that is none of that kind's, or the kind refuses a
                value.
        """
        given = [name for name, value in values.items() if value != self.shown[name].default]
        asking = [name for name in given if name not in _names(self.kinds[-1])]
        kind = next((k for k in self.kinds if _names(k) & set(asking)), self.kinds[-1])
        own = _names(kind)
        made = kind(**{name: value for name, value in values.items() if name in own})
        for name in given:
            if name not in own:
                by = next(option for option in asking if option in own)
                reason = getattr(kind, "reasons", {}).get(name)
                more = f"; {reason}" if reason else ""
                flags = _flag(self.shown[name]), _flag(self.shown[by])
                raise InputError(flags[0], f"does not go with {flags[1]}{more}")
        return made


def expanded(command: Callable[..., None]) -> Callable[..., None]:
    """The function with every parameter that stands for options replaced by them.

    Such a parameter has a dataclass as its type, or a union of some; or it is a `dict` annotated
    with `flows.options.asked(...)`, and is given the values by name. Left out are options without a
    flag, and those whose name another parameter of the command has.

    Raises:
        TypeError: a field has no default.
    """
    parameters = signature(command).parameters
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, _Group] = {}
    shown: list[Parameter] = []
    for name, parameter in parameters.items():
        if found := _group(hints[name], own=set(parameters)):
            groups[name] = found
            shown += found.shown.values()
        else:
            shown.append(parameter.replace(annotation=hints[name]))
    if not groups:
        return command

    @wraps(command)
    def run(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group.made(given)
        command(**given)

    typed: Any = run
    typed.__signature__ = signature(command).replace(parameters=shown)
    typed.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    return run


def _group(hint: Any, own: set[str]) -> _Group | None:
    """The options that a parameter stands for; None where it is one of its own."""
    kinds: Kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if all(isinstance(kind, type) and is_dataclass(kind) for kind in kinds):
        declared = {name: o for kind in reversed(kinds) for name, o in options_of(kind).items()}
        shown: dict[str, Parameter] = {}
        for kind in reversed(kinds):
            for name, each in _parameters(kind).items():
                shown.setdefault(name, each)
    else:
        kinds = ()
        notes: tuple[Any, ...] = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
        options = next((note for note in notes if isinstance(note, tuple)), ())
        declared = {option.name: option for option in options}
        shown = {option.name: _parameter(option) for option in options if option.flag}
    shown = {name: each for name, each in shown.items() if name not in own}
    return _Group(kinds, declared, shown) if shown else None


def _parameters(kind: type[Any]) -> dict[str, Parameter]:
    """By name, the options of a dataclass as Typer reads them.

    Raises:
        TypeError: a field has no default.
    """
    declared = options_of(kind)
    hints = get_type_hints(kind, include_extras=True)
    found: dict[str, Parameter] = {}
    for field in fields(kind):
        if field.name in declared:
            if declared[field.name].flag:
                found[field.name] = _parameter(declared[field.name])
        elif field.default is MISSING:
            raise TypeError(f"{kind.__name__}.{field.name}: an option needs a default")
        else:
            found[field.name] = Parameter(
                field.name,
                Parameter.KEYWORD_ONLY,
                default=field.default,
                annotation=hints[field.name],
            )
    return found


def _parameter(option: Option) -> Parameter:
    """A declared option as Typer reads it from a signature."""
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


def _flag(option: Parameter) -> str:
    """How an option is spelled: `--trace-time`."""
    info = next(note for note in option.annotation.__metadata__ if isinstance(note, OptionInfo))
    # In an annotation, Typer keeps the first spelling where a default is elsewhere.
    spelled = [str(info.default), *(info.param_decls or ())]
    long = (text.partition("/")[0] for text in spelled if text.startswith("--"))
    return next(long, f"--{option.name.replace('_', '-')}")


def _names(kind: type[Any]) -> set[str]:
    return {field.name for field in fields(kind)}
