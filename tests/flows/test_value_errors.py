from typing import Any

import pytest
from pydantic import BaseModel, Field, ValidationError, field_validator

from flows.value_errors import noun_of, reason_of, shown


class Small(BaseModel):
    count: int = Field(default=1, ge=1, le=9)
    names: list[str] = Field(default=["a"], min_length=1)

    @field_validator("names")
    @classmethod
    def _has_no_x(cls, given: list[str]) -> list[str]:
        if "x" in given:
            raise ValueError("holds x.")
        return given


@pytest.mark.parametrize(
    ("given", "noun", "reason"),
    [
        ({"count": "a"}, "whole number", "'a' is no whole number"),
        ({"count": 1.5}, "whole number", "1.5 is no whole number"),
        ({"count": {}}, "whole number", "a table is no whole number"),
        ({"count": 0}, None, "0 is not at least 1"),
        ({"count": 10}, None, "10 is not at most 9"),
        ({"names": "a"}, "list", "'a' is no list"),
        ({"names": []}, None, "is empty; at least 1 must be listed"),
        ({"names": ["x"]}, None, "holds x"),
    ],
)
def test_a_complaint_is_put_in_words_by_kind_value_and_bound(
    given: dict[str, Any], noun: str | None, reason: str
) -> None:
    with pytest.raises(ValidationError) as refused:
        Small.model_validate(given)
    (error,) = refused.value.errors(include_url=False)
    assert (noun_of(error), reason_of(error)) == (noun, reason)


def test_values_are_spelled_as_in_a_file() -> None:
    assert [shown(v) for v in (None, True, 3, "3", [3], {3: 3})] == [
        "nothing",
        "true",
        "3",
        "'3'",
        "a list",
        "a table",
    ]
