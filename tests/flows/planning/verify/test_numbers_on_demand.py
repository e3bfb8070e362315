"""Checks of plans whose stages are loaded on demand."""

from collections.abc import Callable
from typing import Any

import pytest

from flows.planning import PlanOptions, make_plan
from flows.planning.verify.numbers import verify_plan
from flows.planning.verify.profiled import profiled_ratios
from tests.flows.planning.subclusters.test_on_demand import cluster, profile, workload, zipf
from triton_backend.contract.plan import Plan

RATES = zipf(12, 20)
PROFILES = {f"m{at}": profile(f"m{at}") for at in range(12)}


def planned() -> Plan:
    options = PlanOptions(planner="subclusters", objective="gpus", own={"on_demand": True})
    return make_plan(PROFILES, cluster(2, 360), workload(RATES), options)


def loaded(data: dict[str, Any]) -> dict[str, Any]:
    """The file form of the coldest model's stage."""
    return data["models"][11]["pipelines"][0]["stages"][0]


def shorter_load(data: dict[str, Any]) -> None:
    loaded(data)["load_us"] -= 1_000


def slower_class(data: dict[str, Any]) -> None:
    data["cluster"]["gpu_classes"]["gpu"]["load_gib_per_s"] = 1.9


def no_rate(data: dict[str, Any]) -> None:
    del data["cluster"]["gpu_classes"]["gpu"]["load_gib_per_s"]
    del data["cluster"]["gpu_classes"]["gpu"]["load_ms"]


def pinned(data: dict[str, Any]) -> None:
    del loaded(data)["load_us"]


def tight_slo(data: dict[str, Any]) -> None:
    data["models"][11]["slo_us"] = 100_000
    data["workload"]["models"][11]["slo_ms"] = 100.0


def test_a_plan_on_demand_holds() -> None:
    plan = planned()
    assert verify_plan(plan, PROFILES) == []
    assert {*profiled_ratios(plan, PROFILES).values()} == {1.0}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (shorter_load, "m11 on pool gpu-1: load_us is 52829, derived 53829"),
        (slower_class, "m11 on pool gpu-1: load_us is 53829, derived 56399"),
        (no_rate, "m11 on pool gpu-1: is loaded on demand, class gpu has no load_gib_per_s"),
        (pinned, "m11, pipeline 0: stage 0: latency at batch 1 is 63829"),
        (tight_slo, "m11 on pool gpu-1: loaded and run behind the longest other batch it takes"),
    ],
)
def test_a_changed_plan_does_not_hold(
    change: Callable[[dict[str, Any]], None], complaint: str
) -> None:
    data = planned().to_dict()
    change(data)
    assert any(complaint in text for text in verify_plan(Plan.from_dict(data), PROFILES))
