"""Valid entries of a model."""

from typing import Any

import pytest

from triton_backend.contract.entries import Entry, covering
from triton_backend.contract.errors import InputError
from triton_backend.contract.fields import Fields

GOOD: dict[str, Any] = {"name": "whole", "block": 0, "budget_us": 1, "rate_rps": 0.0}


def test_the_least_that_an_entry_may_say() -> None:
    entry = Entry(**GOOD)
    assert entry.budget_us == 1
    assert Entry.read(Fields(entry.to_dict())) == entry


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("name", "", "is empty"),
        ("block", -1, "-1 is negative"),
        ("budget_us", 0, "0 is not positive"),
        ("rate_rps", -1.0, "-1.0 is not a rate"),
        ("rate_rps", float("inf"), "inf is not a rate"),
        ("rate_rps", float("nan"), "nan is not a rate"),
    ],
)
def test_what_cannot_be_is_named(name: str, value: Any, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        Entry(**{**GOOD, name: value})


def test_a_request_goes_to_the_largest_budget_that_its_time_covers() -> None:
    budgets = {3: 50, 5: 20, 8: 80}
    assert [covering(budgets, timeout) for timeout in (100, 80, 79, 20, 19, 0)] == [
        8,
        8,
        3,
        5,
        5,
        5,
    ]
