"""An option is declared once: a dataclass field with its range, choices and help.

The command line, the forms of Prefect's page, the checks and the plain form are derived from the
field, so that a default or a range stands in one place. A planner declares options of its own the
same way, as `Option`s without a dataclass. Not here: what Typer (`flows.cli.option_fields`) and
pydantic make of them.
"""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cache
from math import inf, isnan
from types import UnionType
from typing import Any, get_args, get_origin

from triton_backend.contract.errors import InputError
from triton_backend.contract.fields import check_finite

_DIGITS = ".12g"  # of a range: 10000000 and not 1e+07


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option.

    Attributes:
        name: as in code and in files.
        kind: `bool` (a flag), `int`, `float`, `str`, `tuple[str, ...]`, or a `Mapping` from names
            to one of these; None is allowed beside it where it is the default. Not given, it is
            the default's.
        default: what it is where it is not given; NaN: what its user decides.
        help: one or two sentences.
        choices: what it may be; empty for anything.
        least, most: range of a number, or of every number of a mapping, both included.
        metavar: what stands for its value in help; derived from the kind where it is not given.
        panel: heading under which help lists it.
        spelled: on the command line, as `--name`; derived from the name where it is None, and no
            option of the command line where it is empty.
        stated: a plan states it at its default too, because `verify` needs it.
    """

    name: str
    default: Any
    help: str
    kind: Any = None
    choices: tuple[Any, ...] = ()
    least: float = -inf
    most: float = inf
    metavar: str | None = None
    panel: str | None = None
    spelled: str | None = None
    stated: bool = False

    def __post_init__(self) -> None:
        if self.kind is None:
            object.__setattr__(self, "kind", type(self.default))

    @property
    def flag(self) -> str:
        """Its long name on the command line; empty where it has none there."""
        return f"--{self.name.replace('_', '-')}" if self.spelled is None else self.spelled

    @property
    def value(self) -> Any:
        """Kind of the value, or of every value where there are several by name."""
        return get_args(self.kind)[1] if get_origin(self.kind) is Mapping else self.kind

    @property
    def unset(self) -> bool:
        """True if its default says that nothing was asked: None, NaN, or nothing in a table."""
        return self.default in (None, {}, ()) or _is_nan(self.default)

    def checked(self, value: Any) -> Any:
        """The value in the option's kind: lists become tuples.

        Raises:
            InputError: it has another kind, is no choice, or is out of range.
        """
        where = f"option {self.name}"
        if value is None and self.default is None:
            return None
        if _is_nan(value) and _is_nan(self.default):
            return value
        if self.value is not self.kind:
            if not isinstance(value, Mapping):
                raise InputError(where, f"{value!r} is no table")
            return {str(k): self._checked(f"{where}.{k}", each) for k, each in value.items()}
        return self._checked(where, value)

    def _checked(self, where: str, value: Any) -> Any:
        if get_origin(self.value) is tuple:
            if not isinstance(value, (list, tuple)):
                raise InputError(where, f"{value!r} is no list")
            return tuple(map(str, value))
        kinds = (int, float) if self.value is float else self.value
        if isinstance(value, bool) != (self.value is bool) or not isinstance(value, kinds):
            raise InputError(where, f"{value!r} is not of type {self.value.__name__}")
        if self.choices and value not in self.choices:
            known = ", ".join(map(str, self.choices))
            raise InputError(where, f"{value!r} is none of {known}")
        check_finite(where, value)
        if self.value in (int, float) and not self.least <= value <= self.most:
            raise InputError(where, f"{value} is not {self.range}")
        return value

    @property
    def range(self) -> str:
        """The range in words."""
        return range_in_words(self.least, self.most)


def range_in_words(least: float, most: float) -> str:
    """A range whose ends are included; an end may be infinite."""
    if most == inf:
        return f"at least {least:{_DIGITS}}"
    if least == -inf:
        return f"at most {most:{_DIGITS}}"
    return f"within {least:{_DIGITS}} and {most:{_DIGITS}}"


def option(default: Any = MISSING, *, help: str, **about: Any) -> Any:  # noqa: A002  # as `Option`
    """A dataclass field that declares an option; `about` are attributes of `Option`.

    A default that is a dict is made for every instance.
    """
    if isinstance(default, dict):
        return field(default_factory=dict, metadata={"help": help, **about})
    return field(default=default, metadata={"help": help, **about})


@cache
def options_of(declaring: type[Any]) -> Mapping[str, Option]:
    """The options that a dataclass declares, by name, in order; its other fields are left out."""
    return {
        each.name: Option(
            name=each.name,
            kind=_kind(each.type),
            default={} if each.default is MISSING else each.default,
            **each.metadata,
        )
        for each in fields(declaring)
        if "help" in each.metadata
    }


def asked(declaring: type[Any], *names: str, instead: str | None = None) -> tuple[Option, ...]:
    """The options that a command or a form takes of a class: those named, or all.

    With `instead`, what holds where one is not given, none has a default: it only changes what is
    in force.
    """
    known = options_of(declaring)
    found = tuple(known[name] for name in names or known)
    if instead is None:
        return found
    usual = f"; by default {instead}."
    helps = (each.help.split("; by default")[0].rstrip(".") + usual for each in found)
    return tuple(replace(o, default=None, help=text) for o, text in zip(found, helps, strict=True))


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and isnan(value)


def _kind(declared: Any) -> Any:
    """A type without the None beside it."""
    if isinstance(declared, UnionType):
        (declared,) = (one for one in get_args(declared) if one is not type(None))
    return declared


def check_options(given: Any) -> None:
    """Check every declared option of an instance, and put it into its kind.

    Raises:
        InputError: as `Option.checked`.
    """
    for name, declared in options_of(type(given)).items():
        object.__setattr__(given, name, declared.checked(getattr(given, name)))


def options_given(declaring: type[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the values that are options of the class, without what is None or not there."""
    found = {name: given.get(name) for name in options_of(declaring)}
    return {name: value for name, value in found.items() if value is not None}


def plain_options(given: Any) -> dict[str, Any]:
    """The declared options of an instance as JSON holds them.

    Tables that are empty are left out.
    """
    found = {name: getattr(given, name) for name in options_of(type(given))}
    return {name: _plain(value) for name, value in found.items() if value not in ({}, ())}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in sorted(value.items())}
    return list(value) if isinstance(value, tuple) else value
