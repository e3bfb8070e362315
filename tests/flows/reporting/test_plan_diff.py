"""Plan differences in words."""

from dataclasses import replace
from typing import Any

from flows.reporting.plan_diff import plan_diff
from tests.flows.reporting.example import LONG_NAME, example_plan, pool, shared_plan
from triton_backend.contract.plan import Plan


def changed(edit: Any) -> Plan:
    """The example with its plain form edited."""
    data = example_plan().to_dict()
    edit(data)
    return Plan.from_dict(data)


def plain(lines: list[str]) -> list[str]:
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]


def test_equal_plans_have_nothing_to_say() -> None:
    assert plan_diff(example_plan(), example_plan()) == []


def test_moves_between_stages_and_rates_are_told() -> None:
    def edit(data: dict[str, Any]) -> None:
        model = data["models"][0]
        model["throughput_rps"] = 150.0
        data["pools"][0] = pool("fast-0", "1 1/2 fast fast")
        data["gpus_used"]["fast"] = 2

    new = changed(edit)
    assert plain(plan_diff(example_plan(), new)) == [
        "resnet: 2 × 1/2 fast leave stage 1 (blocks 0–3); planned rate 100 → 150 rps",
        "GPUs used: fast 3 → 2",
    ]


def test_models_that_come_and_go_are_told() -> None:
    def edit(data: dict[str, Any]) -> None:
        data["models"][1]["name"] = "new"

    lines = plain(plan_diff(example_plan(), changed(edit)))
    assert lines == [
        "new is new: 2 × slow, 1 × fast, planned for 40 rps",
        f"{LONG_NAME} is no longer served: 2 × slow, 1 × fast are free",
    ]


def test_models_that_share_pools_are_named() -> None:
    both = shared_plan()
    alone = replace(both, models=both.models[:1], pools=both.pools[:1], gpus_used={"big": 2})
    assert plain(plan_diff(None, both))[:2] == [
        "a is new: 2 × 80 % big shared with b, planned for 60 rps",
        "b is new: 2 × 20 % big, 2 × 80 % big shared with a, planned for 20 rps",
    ]
    shared, no_longer = "2 × 80 % big shared", "2 × 80 % big no longer shared"
    assert plain(plan_diff(both, alone)) == [
        f"a: {shared} with b leave stage 1 (blocks 0–3); 2 × 80 % big join stage 1 (blocks 0–3)",
        f"b is no longer served: 2 × 20 % big are free; {no_longer} with a",
    ]


def test_a_first_plan_is_all_new() -> None:
    lines = plain(plan_diff(None, example_plan()))
    assert lines[0] == "resnet is new: 3 × 1/2 fast, 2 × slow, planned for 100 rps"
    assert lines[-1] == "GPUs used: fast 0 → 3, slow 0 → 4"


def test_slo_and_batch_changes_are_told() -> None:
    def edit(data: dict[str, Any]) -> None:
        data["models"][0]["slo_us"] = 80_000
        data["models"][0]["pipelines"][0]["batch"] = 1

    assert plain(plan_diff(example_plan(), changed(edit))) == [
        "resnet: SLO 100 → 80 ms; batches 2 → 1"
    ]
