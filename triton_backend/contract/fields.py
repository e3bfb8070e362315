"""Plain data from outside, read field by field: whether it is there, of which type, within bounds.

Here: complaints that name a field by its path in the file, and what may be a name. Not here: whether
fields make sense together (the types check that when they are built), and text (JSON, YAML).
"""

import re
from collections.abc import Mapping
from math import isfinite
from typing import Any

from triton_backend.contract.errors import InputError

# More of anything (µs, bytes, requests/s) is a mistake, and its products would leave 64 bits.
LARGEST = 10**12
LONGEST_NAME = 128
_NAME = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9._@+-]{{0,{LONGEST_NAME - 1}}}")


def check_name(where: str, name: str) -> None:
    """Refuse what cannot be a name of a model, application, module, entry, node, class, pool, plan or client.

    Names become folders, words of scripts and lines of manifests. Names of tensors, layers and files are not meant.

    Args:
        where: the field; of checked names, as it stands in the complaint.
        name: what should be a name.

    Raises:
        InputError: it has another character, begins with one of `.@+-`, has two dots in a row, or is too long.
    """
    if not name:
        raise InputError(where, "is empty")
    if not _NAME.fullmatch(name) or ".." in name:
        reason = f"at most {LONGEST_NAME} of A-Z a-z 0-9 _ . @ + -, first a letter, a digit or _"
        raise InputError(where, f"{_shown(name)} is no name: {reason}, no two dots in a row")


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
        """Whether a field is there and not null."""
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
        if isinstance(value, float) and not isfinite(value):
            raise self.wrong(name, f"{_shown(value)} is not a number")
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
        """Whether a field is an object."""
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
