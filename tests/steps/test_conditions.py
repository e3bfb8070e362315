"""Reasons to look at the plan before the night."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from flows.steps.conditions import ATTAINMENT_LOW, Limits, conditions
from tests.steps.gateway import the_plan, workspace_of
from warehouse.operations import ModelMinute, StatisticsFile, add_statistics

NOW = datetime(2026, 1, 1, 12, 0, 30, tzinfo=UTC)


def minute(minutes_ago: int, *, offered: int, served: int) -> ModelMinute:
    return ModelMinute(
        instance="i",
        model="a",
        minute=NOW.replace(second=0) - timedelta(minutes=minutes_ago),
        plan_id="one",
        offered=offered,
        served=served,
        late=0,
        dropped=0,
        failed=offered - served,
        batches=1,
        samples=offered,
        latency_sum_us=1,
    )


@pytest.mark.parametrize(
    ("minutes", "reasons"),
    [
        ([minute(1, offered=100, served=98)], ["a attains 98.00% of 100 requests"]),
        ([minute(1, offered=100, served=99)], []),
        ([minute(1, offered=49, served=0)], []),
        ([minute(0, offered=100, served=0)], []),
        ([minute(10, offered=100, served=0)], ["a attains 0.00% of 100 requests"]),
        ([minute(11, offered=100, served=0)], []),
        ([minute(2, offered=900, served=900), minute(1, offered=100, served=95)], []),
    ],
)
def test_a_model_under_its_target_in_the_minutes_that_ended_is_said(
    tmp_path: Path, minutes: list[ModelMinute], reasons: list[str]
) -> None:
    work = workspace_of(tmp_path, the_plan())
    with work.open() as warehouse:
        add_statistics(warehouse, StatisticsFile(path="f", digest="1", models=minutes), NOW)
    found = conditions(work, NOW, Limits(minutes=10))
    assert [condition.reason for condition in found] == reasons
    assert {condition.event for condition in found} <= {ATTAINMENT_LOW}
