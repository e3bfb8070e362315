"""Pydantic's complaints about a value, in the words of this project's own.

Here: one reason of one complaint. Not here: the field, which files (`files`) and the command line
(`cli.registry`) name in their own ways.
"""

from collections.abc import Mapping
from typing import Any

# Nouns of kinds of values, by the beginning of a complaint's type.
_NOUNS = {
    "bool": "truth value",
    "dict": "table",
    "float": "number",
    "int": "whole number",
    "list": "list",
    "number": "number",
    "path": "text",
    "string": "text",
}
_ENDS = ("", "_type", "_parsing", "_from_float", "_parsing_size")
_FORMATS = {
    "too_short": "is empty; at least {min_length} must be listed",
    "finite_number": "{value} is no finite number",
    "greater_than": "{value} is not above {gt:g}",
    "greater_than_equal": "{value} is not at least {ge:g}",
    "less_than_equal": "{value} is not at most {le:g}",
    "literal_error": "{value} is not {expected}",
    "invalid_key": "{key} is no name of a field",
}


def reason_of(error: Mapping[str, Any]) -> str:
    """The reason of a complaint, one of `ValidationError.errors()`, without its field."""
    value = shown(error["input"])
    if (noun := noun_of(error)) is not None:
        return f"{value} is no {noun}"
    if error["type"] in _FORMATS:
        key = (*error["loc"], None)[-2]
        return _FORMATS[error["type"]].format(value=value, key=key, **error.get("ctx", {}))
    reason = " ".join(str(error["msg"]).split())
    return reason.removeprefix("Value error, ").removesuffix(".")


def noun_of(error: Mapping[str, Any]) -> str | None:
    """The noun for what the value should be; None for complaints of other kinds."""
    kind = str(error["type"])
    return next((n for name, n in _NOUNS.items() if kind in {name + end for end in _ENDS}), None)


def shown(value: object) -> str:
    """A value as the complaint shows it, in the spelling of YAML; the kind of one with parts."""
    if isinstance(value, dict | list):
        return "a table" if isinstance(value, dict) else "a list"
    if value is None or isinstance(value, bool):
        return {None: "nothing", True: "true", False: "false"}[value]
    return repr(value)
