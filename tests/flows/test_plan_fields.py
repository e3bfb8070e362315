"""Fields that a plan's file has beside those of the table, wherever they stand."""

import json
from pathlib import Path
from typing import Any

import pytest

from flows.files import read_plan
from flows.plan_fields import unknown_fields
from flows.planning import make_plan
from tests.fakes.plans import two_tails
from tests.flows.planning.small import cluster, profile, workload

STORED: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parent / "planning" / "verify" / "stored_plans.json").read_text()
)


@pytest.mark.parametrize("name", [name for name, plan in STORED.items() if "format" in plan])
def test_plans_as_earlier_versions_stored_them_have_none(name: str) -> None:
    assert list(unknown_fields(STORED[name])) == []


def test_a_plan_of_entries_that_share_batches_has_none() -> None:
    assert list(unknown_fields(two_tails().to_dict())) == []


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"mig": {"card": "A100-40GB", "cards": 1}}, "cluster.gpu_classes.fast.mig.cards"),
        ({"vgpu_percents": {"step": 50, "lest": 50}}, "cluster.gpu_classes.fast.vgpu_percents"),
        ({"runtime": {"cores": [0], "core": 1}}, "cluster.gpu_classes.fast.runtime.core"),
    ],
)
def test_unknown_fields_of_objects_within_a_class_are_found(
    fields: dict[str, Any], field: str
) -> None:
    document = make_plan({"net": profile()}, cluster(), workload()).to_dict()
    document["cluster"]["gpu_classes"]["fast"] = fields
    assert [one.path.startswith(field) for one in unknown_fields(document)] == [True]


@pytest.mark.parametrize("several", ["entries", "sizes", "variants", "versions"])
def test_unknown_fields_of_lists_within_a_model_are_found(several: str) -> None:
    document = make_plan({"net": profile()}, cluster(), workload()).to_dict()
    document["workload"]["models"][0][several] = [{"colour": "red"}]
    place = f"workload.models[0].{several}[0].colour"
    assert [one.path for one in unknown_fields(document)] == [place]


def test_fields_of_the_files_may_stand_in_a_plan() -> None:
    """Fields that only preparing a model reads, and tables by names of the user's choice."""
    document = make_plan({"net": profile()}, cluster(), workload()).to_dict()
    document["cluster"]["gpu_classes"] |= {"other": None, "cpu": {"runtime": {"cores": [0]}}}
    model = document["workload"]["models"][0]
    model |= {"input_shapes": {"x": "3x4"}, "input_ranges": {"x": "0..1"}, "samples": "a.npz"}
    step: dict[str, Any] = {
        "name": "s",
        "python": "m:f",
        "package": "m.py",
        "inputs": {"x": "BYTES"},
    }
    document["workload"]["steps"] = [step | {"arguments": {"height": 3}}]
    assert list(unknown_fields(document)) == []


def test_a_plan_of_format_1_is_read_with_fields_of_its_own(tmp_path: Path) -> None:
    document: dict[str, Any] = STORED["format 1"] | {"solver_log": "red"}
    document["cluster"] = document["cluster"] | {"colour": "red"}
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(document))
    assert read_plan(path).models
