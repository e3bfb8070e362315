"""How events and decisions are made: a request costs several, so making one must cost little."""

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

Kind = TypeVar("Kind")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def message(kind: type[Kind]) -> type[Kind]:
    """A dataclass by keywords that nobody changes.

    The type checker sees to that. Checking at run time (`frozen=True`) makes the construction of a
    decision take three times as long.
    """
    return dataclass(slots=True, kw_only=True, unsafe_hash=True)(kind)
