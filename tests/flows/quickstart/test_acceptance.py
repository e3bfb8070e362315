"""When a quickstart has failed, and when its machine has."""

from typing import Any

import pytest

from flows.quickstart.acceptance import overloaded, shortcomings


def found(**changes: Any) -> dict[str, Any]:
    row = {
        "offered": 100,
        "attainment": 0.96,
        "slo_ms": 200.0,
        "checked": {"responses": 97, "wrong": 0},
    }
    return {
        "models": {"net": row | changes},
        "http": {"net": {"checked": {"responses": 10, "wrong": 0}}},
        "send_lag_ms": {"p50": 0.1, "p99": 5.0, "max": 9.0},
    }


def test_all_is_well() -> None:
    assert shortcomings(found(), 0.95) == []
    assert overloaded(found()) is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"attainment": 0.9}, ["net attains 90.00% of 100 requests, under the target of 95.00%"]),
        ({"checked": {"responses": 97, "wrong": 2}}, ["net gave 2 wrong answers of 97"]),
        ({"offered": 0, "attainment": None}, []),
    ],
)
def test_what_is_not_good_enough_is_said_in_a_line(
    changes: dict[str, Any], words: list[str]
) -> None:
    assert shortcomings(found(**changes), 0.95) == words


def test_wrong_answers_over_http_count_too() -> None:
    document = found()
    document["http"]["net"]["checked"]["wrong"] = 1
    assert shortcomings(document, 0.0) == ["net gave 1 wrong answers of 10 over HTTP"]


def test_a_load_that_could_not_be_sent_in_time_is_the_machines_fault() -> None:
    document = found()
    document["send_lag_ms"]["p99"] = 30.0
    assert "sent up to 30 ms late" in str(overloaded(document))
