"""Plan differences in words."""

from typing import Any

from flows.reporting.plan_diff import gpus_moved, plan_diff
from tests.flows.reporting.example import LONG_NAME, example_plan, stage
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
    assert gpus_moved(example_plan(), example_plan()) == 0


def test_moves_between_stages_and_rates_are_told() -> None:
    def edit(data: dict[str, Any]) -> None:
        model = data["models"][0]
        model["throughput_rps"] = 150.0
        model["pipelines"][0]["stages"] = [
            stage((0, 4), "1 1/2 fast fast", 20), stage((4, 10), "2 1/1 slow slow", 10)
        ]  # fmt: skip
        data["gpus_used"]["fast"] = 2

    new = changed(edit)
    assert plain(plan_diff(example_plan(), new)) == [
        "<b>resnet</b>: 2 × ½ fast leave stage 1 (blocks 0–3); planned rate 100 → 150 rps",
        "GPUs used: fast 3 → 2",
    ]
    assert gpus_moved(example_plan(), new) == 1


def test_models_that_come_and_go_are_told() -> None:
    def edit(data: dict[str, Any]) -> None:
        data["models"][1]["name"] = "new"

    lines = plain(plan_diff(example_plan(), changed(edit)))
    assert lines == [
        "new is new: 2 × slow, 1 × fast, planned for 40 rps",
        f"{LONG_NAME} is no longer served: 2 × slow, 1 × fast are free",
    ]


def test_a_first_plan_is_all_new() -> None:
    lines = plain(plan_diff(None, example_plan()))
    assert lines[0] == "<b>resnet</b> is new: 3 × ½ fast, 2 × slow, planned for 100 rps"
    assert lines[-1] == "GPUs used: fast 0 → 3, slow 0 → 4"


def test_slo_and_batch_changes_are_told() -> None:
    def edit(data: dict[str, Any]) -> None:
        data["models"][0]["slo_ms"] = 80.0
        data["models"][0]["pipelines"][0]["batch"] = 1

    assert plain(plan_diff(example_plan(), changed(edit))) == [
        "<b>resnet</b>: SLO 100 → 80 ms; batches 2 → 1"
    ]
