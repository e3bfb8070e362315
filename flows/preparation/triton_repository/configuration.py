"""A model's `config.pbtxt` as a message of Triton's own schema.

Fields that the installed schema does not know are named, not refused: newer servers add some.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from triton_backend.contract.errors import InputError

MOST_UNKNOWN = 100  # fields of one file; a file with more is no configuration
_UNKNOWN = re.compile(r'has no field named "([^"]+)"')
_BEGINS, _ENDS = "{[<", "}]>"


@dataclass(frozen=True, slots=True)
class Configuration:
    """A configuration.

    Attributes:
        message: an `inference.ModelConfig`.
        unknown: name and line of every field that the schema does not know.
    """

    message: Any
    unknown: tuple[tuple[str, int], ...] = ()


def read_configuration(text: str, where: str) -> Configuration:
    """Parse the text of a `config.pbtxt`.

    Raises:
        InputError: the text is no model configuration, with the line.
    """
    unknown: list[tuple[str, int]] = []
    for _ in range(MOST_UNKNOWN):
        try:
            return Configuration(_parsed(text), tuple(unknown))
        except text_format.ParseError as error:
            line, column = error.GetLine(), error.GetColumn()
            name = _UNKNOWN.search(str(error))
            if name is None or line is None or column is None:
                place = where if line is None else f"{where}, line {line}"
                raise InputError(place, _reason(error)) from error
            unknown.append((name[1], line))
            text = _without(text, line, name[1])
    raise InputError(where, f"has more than {MOST_UNKNOWN} unknown fields")


def _parsed(text: str) -> Any:
    messages: Any = model_config_pb2  # its classes are made when it is imported
    return text_format.Parse(text, messages.ModelConfig())


def _reason(error: text_format.ParseError) -> str:
    """The complaint alone, in one line: protobuf begins with line and column."""
    text = " ".join(str(error).split())
    return text.removeprefix(f"{error.GetLine()}:{error.GetColumn()} : ")


def _without(text: str, line: int, name: str) -> str:
    """The text with blanks in place of a field that is named on a line, counted from 1.

    Line breaks stay, so that later lines keep their numbers.
    """
    start = sum(len(each) + 1 for each in text.split("\n")[: line - 1])
    found = re.compile(rf"\b{re.escape(name)}\b").search(text, start)
    begin = start if found is None else found.start()
    end = max(_end_of_field(text, begin + len(name)), begin + 1)
    return text[:begin] + re.sub(r"[^\n]", " ", text[begin:end]) + text[end:]


def _end_of_field(text: str, at: int) -> int:
    """The end of the value that begins at or after a place: of its text, number or brackets."""
    depth = 0
    for place, mark in _marks(text, at):
        if mark in _BEGINS:
            depth += 1
        elif mark in _ENDS:
            depth -= 1
            if depth <= 0:
                return place + 1 if depth == 0 else place
        elif depth == 0 and mark == "v":
            return place
    return len(text)


def _marks(text: str, at: int) -> Iterator[tuple[int, str]]:
    """Brackets with their places, and `v` at the end of every value outside of them."""
    token = re.compile(
        r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|#[^\n]*|[{}\[\]<>]|[^\s:{}\[\]<>#]+'
    )
    for found in token.finditer(text, at):
        word = found.group()
        if word in _BEGINS + _ENDS:
            yield found.start(), word
        elif not word.startswith("#") and word not in {",", ";"}:
            yield found.end(), "v"
