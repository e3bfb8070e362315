"""Reasons to look at the plan before the night."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml

from flows.operations.replanning import conditions as module
from flows.operations.replanning.conditions import (
    ATTAINMENT_LOW,
    NODES_ADDED,
    NODES_REMOVED,
    Limits,
    conditions,
    other_nodes,
)
from tests.fakes.minutes import model_minute
from tests.flows.operations.fake_gateway import the_plan, workspace_of
from triton_backend.contract.cluster import Cluster
from warehouse.observations import ModelMinute, StatisticsFile, add_statistics

NOW = datetime(2026, 1, 1, 12, 0, 30, tzinfo=UTC)


def minute(minutes_ago: int, *, offered: int, served: int) -> ModelMinute:
    at = NOW.replace(second=0) - timedelta(minutes=minutes_ago)
    return model_minute(at, offered, served=served, failed=offered - served, model="a")


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


def test_nothing_holds_in_a_project_without_a_warehouse(tmp_path: Path) -> None:
    work = workspace_of(tmp_path, the_plan())
    assert conditions(work, NOW, Limits()) == []


def with_gpus(cluster: Cluster, count: int) -> Cluster:
    """One node of so many GPUs."""
    return replace(cluster, nodes=(replace(cluster.nodes[0], count=1, gpus=count, name=None),))


def test_gpus_that_came_or_went_since_the_plan_was_made_are_said() -> None:
    plan = the_plan()
    (name,) = (c.name for c in plan.cluster.gpu_classes)
    planned = plan.cluster.gpus(name)
    assert other_nodes(plan, plan.cluster) == []
    (added,) = other_nodes(plan, with_gpus(plan.cluster, planned + 2))
    assert (added.event, added.reason) == (NODES_ADDED, f"GPUs not planned for: 2 {name}")
    (removed,) = other_nodes(plan, with_gpus(plan.cluster, planned - 1))
    assert (removed.event, removed.reason) == (
        NODES_REMOVED,
        f"GPUs planned for but gone: 1 {name}",
    )


def test_every_event_starts_a_replan_once_the_automation_is_switched_on() -> None:
    text = (Path(__file__).parents[4] / "prefect.yaml").read_text()
    (replan,) = (d for d in yaml.safe_load(text)["deployments"] if d["name"] == "replan")
    emitted = {
        value
        for name, value in vars(module).items()
        if name.isupper() and "poolpipe." in str(value)
    }
    assert set(replan["triggers"][0]["expect"]) == emitted
