"""Valid entries of a model."""

from typing import Any

import pytest

from triton_backend.contract.entries import (
    Entry,
    Lease,
    ShareTurns,
    check_entries,
    covering,
    latest,
)
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
        ("share", 0.0, "0 is not from 0.0001 to below 1"),
        ("share", 1.0, "1 is not from 0.0001 to below 1"),
        ("share", float("nan"), "nan is not from 0.0001 to below 1"),
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


def test_turns_come_as_often_as_shares_say_and_evenly() -> None:
    turns = ShareTurns({0: 0.9, 1: 0.1})
    taken = [turns.choose((0, 1)) for _ in range(1_000)]
    assert taken.count(1) == 100
    assert all(taken[at : at + 10].count(1) == 1 for at in range(0, 1_000, 10))
    assert taken[0] == 0


@pytest.mark.parametrize("share", [1e-4, 0.01, 0.25, 1 / 3, 0.5, 0.99])
def test_an_entry_is_never_a_whole_request_from_its_share(share: float) -> None:
    turns, taken = ShareTurns({0: 1 - share, 1: share}), 0
    for number in range(1, 3_000):
        taken += turns.choose((0, 1))
        assert abs(taken - share * number) <= 1


def test_an_entry_that_is_not_able_has_no_turn() -> None:
    turns = ShareTurns({0: 0.5, 1: 0.5})
    assert [turns.choose((1,)) for _ in range(3)] == [1, 1, 1]
    assert {turns.choose((0, 1)) for _ in range(2)} == {0, 1}


def entries(*given: tuple[int, float | None]) -> list[Entry]:
    return [
        Entry(name=f"e{n}", block=block, budget_us=1, rate_rps=0.0, share=share)
        for n, (block, share) in enumerate(given)
    ]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (((0, 0.5), (0, None)), "then all do, and come in at one block"),
        (((0, 0.5), (1, 0.5)), "then all do, and come in at one block"),
        (((0, 0.5), (0, 0.4)), "shares add up to 1, not 0.5 \\+ 0.4"),
    ],
)
def test_shares_are_those_of_all_requests(given: Any, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        check_entries("m", entries(*given))


def test_shares_of_one_block_are_whole() -> None:
    check_entries("m", entries((0, 0.9), (0, 0.1)), blocks=3)


def test_of_two_leases_of_a_client_the_later_counts() -> None:
    def lease(client: str, block: int, until_us: int) -> Lease:
        return Lease(client, "net", block, 1.0, 40_000, until_us)

    first, other, moved = lease("a", 1, 7), lease("b", 1, 8), lease("a", 2, 9)
    assert {*latest([moved, first, other])} == {moved, other}
    assert {*latest([first, other, moved])} == {moved, other}
