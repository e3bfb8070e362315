"""Options of a command from dataclasses; where they are of several kinds, what is given says which is meant.

    @command("draw", "poolpipe draw --red")
    @of_kinds
    def draw(*, what: Circle | Square, as_json: AsJson = False) -> None: ...

Every field of `Circle` and `Square` is an option of the command, once, in the form that parameters have:
`size: Annotated[int, typer.Option(min=1, help=...)] = 3`. The function gets an instance of one of them.
A parameter of one dataclass, `pen: Pen`, stands for its options likewise.

The last kind is the plain one. An option that it lacks asks for the first kind that has it. What is given
beside it and is no field of that kind is refused: the dataclass alone says what goes together. `given` is
whatever differs from its default.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from inspect import Parameter, signature
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from typer.models import OptionInfo

from triton_backend.contract.errors import InputError

Kinds = tuple[type, ...]


def of_kinds(function: Callable[..., None]) -> Callable[..., None]:
    """The function with options in place of every parameter typed as a dataclass, or as one of several.

    Raises:
        TypeError: it has no such parameter, or a field of it has no default.
    """
    hints = get_type_hints(function, include_extras=True)
    stated = signature(function).parameters
    groups = {name: found for name in stated if (found := _kinds(hints[name]))}
    if not groups:
        raise TypeError(f"{function.__name__} has no parameter typed as dataclasses of options")
    options = {name: options_of(kinds) for name, kinds in groups.items()}
    shown: list[Parameter] = []
    for name, parameter in stated.items():
        own = options.get(name)
        shown += own.values() if own else [parameter.replace(annotation=hints[name])]

    @wraps(function)
    def run(**values: Any) -> None:
        for name, kinds in groups.items():
            values[name] = kind_given(
                kinds, {option: values.pop(option) for option in options[name]}
            )
        function(**values)

    typed: Any = run
    typed.__signature__ = signature(function).replace(parameters=shown)
    typed.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    return run


def options_of(kinds: Kinds) -> dict[str, Parameter]:
    """By name, the parameters that Typer reads: those of the plain kind first, each option once.

    Raises:
        TypeError: a field has no default.
    """
    found: dict[str, Parameter] = {}
    for kind in reversed(kinds):
        hints = get_type_hints(kind, include_extras=True)
        for field in fields(kind):
            if field.default is MISSING:
                raise TypeError(f"{kind.__name__}.{field.name}: an option needs a default")
            parameter = Parameter(
                field.name,
                Parameter.KEYWORD_ONLY,
                default=field.default,
                annotation=hints[field.name],
            )
            found.setdefault(field.name, parameter)
    return found


def kind_given(kinds: Kinds, values: Mapping[str, Any]) -> Any:
    """An instance of the kind that the values ask for.

    A kind may say why an option does not go with it, by name, in a class variable `reasons`.

    Raises:
        InputError: an option was given that is none of that kind's, or the kind refuses its values.
    """
    options = options_of(kinds)
    given = [name for name, option in options.items() if values[name] != option.default]
    asking = [name for name in given if name not in _names(kinds[-1])]
    kind = next((k for k in kinds if _names(k) & set(asking)), kinds[-1])
    own = _names(kind)
    made = kind(**{name: values[name] for name in options if name in own})
    for name in given:
        if name not in own:
            by = next(option for option in asking if option in own)
            reason = getattr(kind, "reasons", {}).get(name)
            more = f"; {reason}" if reason else ""
            raise InputError(flag(options[name]), f"does not go with {flag(options[by])}{more}")
    return made


def flag(option: Parameter) -> str:
    """How an option is spelled: `--trace-time`."""
    info = next(note for note in option.annotation.__metadata__ if isinstance(note, OptionInfo))
    # In an annotation, Typer keeps the first spelling where a default is elsewhere.
    spelled = [str(info.default), *(info.param_decls or ())]
    long = (text.partition("/")[0] for text in spelled if text.startswith("--"))
    return next(long, f"--{option.name.replace('_', '-')}")


def _kinds(hint: Any) -> Kinds:
    found: Kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return found if all(isinstance(kind, type) and is_dataclass(kind) for kind in found) else ()


def _names(kind: type) -> set[str]:
    return {field.name for field in fields(kind)}
