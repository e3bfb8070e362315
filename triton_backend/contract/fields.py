"""Plain data from outside, read field by field: whether it is there, of which type, within bounds.

Here: complaints that name a field by its path in the file, what may be a name, and forms:
dataclasses whose fields are described once (`About`), from which reading, writing, checks and
reference pages follow. Not here: whether fields make sense together (the types check that when they
are built), and text (JSON, YAML).
"""

import dataclasses
import ipaddress
import re
from collections.abc import Callable, Mapping
from functools import cache
from math import inf, isfinite
from types import NoneType, UnionType
from typing import Annotated, Any, NamedTuple, Self, Union, get_args, get_origin, get_type_hints

from triton_backend.contract.errors import InputError

# More of anything (µs, bytes, requests/s) is a mistake, and its products would leave 64 bits.
LARGEST = 10**12
LONGEST_NAME = 128
NO_ADDRESS = "is no IPv4 address to listen on, like 127.0.0.1 or 0.0.0.0"
_NAME = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9._@+-]{{0,{LONGEST_NAME - 1}}}")


def check_name(where: str, name: str) -> None:
    """Refuse a text that cannot be a name: of a model, node, class, pool, plan, client and so on.

    Names become folders, words of scripts and lines of manifests. Names of tensors, layers and
    files are not meant.

    Args:
        where: the field; of checked names, as it stands in the complaint.
        name: what should be a name.

    Raises:
        InputError: it has another character, begins with one of `.@+-`, has two dots in a row, or
            is too long.
    """
    if not name:
        raise InputError(where, "is empty")
    if not _NAME.fullmatch(name) or ".." in name:
        reason = f"at most {LONGEST_NAME} of A-Z a-z 0-9 _ . @ + -, first a letter, a digit or _"
        raise InputError(where, f"{_shown(name)} is no name: {reason}, no two dots in a row")


def is_ipv4(text: str) -> bool:
    """True if a text is an IPv4 address."""
    try:
        ipaddress.IPv4Address(text)
    except ValueError:
        return False
    return True


def check_finite(where: str, value: object) -> None:
    """Refuse NaN and infinity, of every file, option and form in the same words.

    Raises:
        InputError: it is one of them.
    """
    if isinstance(value, float) and not isfinite(value):
        raise InputError(where, f"{value} is no finite number")


class Fields:
    """An object of a file.

    Args:
        data: what should be an object.
        path: where it stands in the file; empty at the top.

    Raises:
        InputError: it is no object. Every reader raises one for a field that is missing, of
            another type or out of bounds.
    """

    __slots__ = ("_data", "_path")

    def __init__(self, data: object, path: str = "") -> None:
        if not isinstance(data, Mapping):
            raise InputError(path or "the file", f"{_shown(data)} is not an object")
        self._data: Mapping[str, Any] = data
        self._path = path

    def has(self, name: str) -> bool:
        """True if a field is there and not null."""
        return self._data.get(name) is not None

    def text(self, name: str) -> str:
        """A text."""
        value = self._value(name)
        if not isinstance(value, str):
            raise self.wrong(name, f"{_shown(value)} is not a text")
        return value

    def number(self, name: str, *, least: float = -LARGEST, most: float = LARGEST) -> float:
        """A number within bounds, of the type it has in the file."""
        value = self._value(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(name, f"{_shown(value)} is not a number")
        check_finite(self._at(name), value)
        if not least <= value <= most:
            # Whole numbers of JSON may be larger than any float.
            shown = _shown(value) if isinstance(value, int) else f"{value:g}"
            raise self.wrong(name, f"{shown} is not within {least:g} and {most:g}")
        return value

    def integer(self, name: str, *, least: int = 0, most: int = LARGEST) -> int:
        """A whole number within bounds."""
        return self._integer(name, self._value(name), least, most)

    def integers(self, name: str, *, least: int = 0, most: int = LARGEST) -> tuple[int, ...]:
        """A list of whole numbers, each within bounds."""
        return tuple(
            self._integer(f"{name}[{i}]", value, least, most)
            for i, value in enumerate(self._list(name))
        )

    def lists_of_integers(self, name: str) -> tuple[tuple[int, ...], ...]:
        """A list of lists of whole numbers."""
        rows = self._list(name)
        lists = Fields({str(i): row for i, row in enumerate(rows)}, self._at(name))
        return tuple(lists.integers(str(i)) for i in range(len(rows)))

    def lists_of_texts(self, name: str) -> tuple[tuple[str, ...], ...]:
        """A list of lists of texts."""
        rows = self._list(name)
        lists = Fields({str(i): row for i, row in enumerate(rows)}, self._at(name))
        return tuple(lists.texts(str(i)) for i in range(len(rows)))

    def is_object(self, name: str) -> bool:
        """True if a field is an object."""
        return isinstance(self._value(name), Mapping)

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of texts."""
        for i, value in enumerate(self._list(name)):
            if not isinstance(value, str):
                raise self.wrong(f"{name}[{i}]", f"{_shown(value)} is not a text")
        return tuple(self._list(name))

    def table(self, name: str) -> dict[str, Any]:
        """An object as it is."""
        value = self._value(name)
        if not isinstance(value, Mapping):
            raise self.wrong(name, f"{_shown(value)} is not an object")
        return dict(value)

    def counts(self, name: str) -> dict[str, int]:
        """An object of whole numbers that are not negative."""
        inner = self.inner(name)
        return {key: inner.integer(key) for key in self.table(name)}

    def flag(self, name: str) -> bool:
        """True or false."""
        value = self._value(name)
        if not isinstance(value, bool):
            raise self.wrong(name, f"{_shown(value)} is neither true nor false")
        return value

    def plain(self) -> dict[str, Any]:
        """The object as it is."""
        return dict(self._data)

    def inner(self, name: str) -> "Fields":
        """An object, to be read field by field."""
        return Fields(self._value(name), self._at(name))

    def items(self, name: str) -> "tuple[Fields, ...]":
        """A list of objects, to be read field by field."""
        at = self._at(name)
        return tuple(Fields(value, f"{at}[{i}]") for i, value in enumerate(self._list(name)))

    def named(self, name: str) -> "dict[str, Fields]":
        """An object of objects, each to be read field by field; null is an empty one."""
        at = self._at(name)
        return {key: Fields(value or {}, f"{at}.{key}") for key, value in self.table(name).items()}

    def wrong(self, name: str, reason: str) -> InputError:
        """A complaint about a field."""
        return InputError(self._at(name), reason)

    def _at(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name

    def _value(self, name: str) -> Any:
        if name not in self._data:
            raise self.wrong(name, "is missing")
        return self._data[name]

    def _list(self, name: str) -> list[Any]:
        value = self._value(name)
        if not isinstance(value, list | tuple):
            raise self.wrong(name, f"{_shown(value)} is not a list")
        return list(value)

    def _integer(self, name: str, value: object, least: int, most: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong(name, f"{_shown(value)} is not a whole number")
        if not least <= value <= most:
            raise self.wrong(name, f"{_shown(value)} is not within {least} and {most}")
        return value


def _shown(value: object) -> str:
    """A value as a message shows it: short, whatever it is."""
    text = repr(value)
    most = 40
    return text if len(text) <= most else f"{text[:most]}..."


# Forms: objects of a file whose fields are described once

_NOTHING = object()
_SIMPLE = {str: "text", bool: "flag", int: "integer", float: "number"}


class FieldForm(NamedTuple):
    """One field of an object of a file.

    Attributes:
        key: its name in the file.
        kind: `text`, `integer`, `number`, `flag`, `texts`, `integers`, `table` (any object), the
            name of an object, or that name with `[]`.
        about: one sentence.
        example: one value.
        required: every file states it.
    """

    key: str
    kind: str
    about: str
    example: Any
    required: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class About:
    """The form of a dataclass field in a file.

    `vgpus: Annotated[int, About("Number of vGPUs.", 4)]`.

    Attributes:
        text: one sentence, for the reference.
        example: one value, for the reference.
        key: its name in the file, where that is not the attribute's.
        kind: as in `FieldForm`, where it does not follow from the type.
        least, most: bounds of a number, both included; whole numbers are not negative by default.
        missing: its value where the file leaves it out; the default of the dataclass if that has
            one.
        written: whether a value that is empty is written too. None and False never are.
        read: reads it from the object, where the type does not say how.
        write: its entries in the object, where the type does not say how.
        parts: its fields in the file, where it has several.
    """

    text: str
    example: Any
    key: str | None = None
    kind: str | None = None
    _: dataclasses.KW_ONLY
    least: float | None = None
    most: float | None = None
    missing: Any = _NOTHING
    written: bool = True
    read: Callable[[Fields], Any] | None = None
    write: Callable[[Any], Mapping[str, Any]] | None = None
    parts: tuple[FieldForm, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Field:
    """A field of a form, ready to be read and written."""

    name: str
    key: str
    kind: str
    given: About
    required: bool
    read: Callable[[Fields], Any]
    plain: Callable[[Any], Any]


class Form:
    """A dataclass whose fields have an `About`: an object of a file of the same fields."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain form, as in the file."""
        return form_to_dict(self)

    @classmethod
    def read(cls, fields: Fields) -> Self:
        """Inverse of `to_dict`.

        Raises:
            InputError: a field is missing, of the wrong type or out of bounds.
        """
        return cls(**read_form(cls, fields))


def form_to_dict(form: Any, **known: Any) -> dict[str, Any]:
    """Plain form of an object; `known` are plain values of some of its attributes."""
    out: dict[str, Any] = {}
    for field in _fields_of(type(form)):
        if field.name in known:
            out[field.key] = known[field.name]
            continue
        value = getattr(form, field.name)
        written = field.given.written and field.kind != "flag"
        if value is None or not (written or value):
            continue
        out |= {field.key: field.plain(value)} if (w := field.given.write) is None else w(value)
    return out


def read_form(form: type, fields: Fields, **known: Any) -> dict[str, Any]:
    """Values of a form's attributes, those that are `known` as they are.

    What may be missing is left out.
    """
    found = dict(known)
    for field in _fields_of(form):
        if field.name in known:
            continue
        if field.required or fields.has(field.key):
            found[field.name] = field.read(fields)
        elif field.given.missing is not _NOTHING:
            found[field.name] = field.given.missing
    return found


def check_form(where: str, form: Any) -> None:
    """Check that the numbers of an object are within the bounds that its fields state.

    Raises:
        InputError: one is not.
    """
    for field in _fields_of(type(form)):
        value, least, most = getattr(form, field.name), field.given.least, field.given.most
        if value is None or least is None or least <= value <= (inf if most is None else most):
            continue
        known = {0.0: "is negative", 1.0: "is not positive"}
        reason = known.get(least, f"is less than {least:g}")
        raise InputError(
            f"{where}, {field.key}", f"{value} {reason if value < least else 'is too large'}"
        )


def form_fields(form: type) -> tuple[FieldForm, ...]:
    """The fields of an object of a file, for the reference."""
    return tuple(
        part
        for f in _fields_of(form)
        for part in f.given.parts
        or (FieldForm(f.key, f.kind, f.given.text, f.given.example, f.required),)
    )


@cache
def _fields_of(form: type) -> tuple[_Field, ...]:
    hints = get_type_hints(form, include_extras=True)
    return tuple(
        _made(field, *get_args(hints[field.name]))
        for field in dataclasses.fields(form)
        if get_origin(hints[field.name]) is Annotated
    )


def _made(field: "dataclasses.Field[Any]", hint: Any, given: About) -> _Field:
    key = given.key or field.name
    has_default = (field.default, field.default_factory) != (dataclasses.MISSING,) * 2
    kind, read, plain = _codec(key, _without_none(hint), given)
    return _Field(
        name=field.name,
        key=key,
        kind=given.kind or kind,
        given=given,
        required=not has_default and given.missing is _NOTHING,
        read=given.read or read,
        plain=plain,
    )


def _without_none(hint: Any) -> Any:
    if get_origin(hint) not in (Union, UnionType):
        return hint
    (left,) = (option for option in get_args(hint) if option is not NoneType)
    return left


def _same(value: Any) -> Any:
    return value


_Codec = tuple[str, Callable[[Fields], Any], Callable[[Any], Any]]


def _codec(key: str, hint: Any, given: About) -> _Codec:
    """Kind of a type, how it is read from an object, and its plain form."""
    origin, inside = get_origin(hint), get_args(hint)
    bounds = {n: bound for n in ("least", "most") if (bound := getattr(given, n)) is not None}
    if hint in _SIMPLE:
        kind = _SIMPLE[hint]
        plain = bool if hint is bool else _same  # flags may be numpy's
        return kind, lambda fields: getattr(fields, kind)(key, **bounds), plain
    if origin is tuple and inside[0] is int:
        return "integers", lambda fields: fields.integers(key, **bounds), list
    if origin is tuple:
        item: Any = inside[0]
        return (
            f"{item.__name__.lower()}[]",
            lambda fields: tuple([item.read(inner) for inner in fields.items(key)]),
            lambda values: [value.to_dict() for value in values],
        )
    if origin is not None:  # a mapping
        whole = inside[1] is int
        return "table", lambda fields: fields.counts(key) if whole else fields.table(key), dict
    return (
        hint.__name__.lower(),
        lambda fields: hint.read(fields.inner(key)),
        lambda value: value.to_dict(),
    )
