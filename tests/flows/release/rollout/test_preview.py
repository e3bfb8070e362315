"""Previews of rollouts."""

from dataclasses import replace

import pytest

from flows.release.rollout.preview import preview
from tests.triton_backend.contract.transition.full_gpus import GIB, full_gpus
from triton_backend.contract.errors import InputError
from triton_backend.runtimes.stage_tensors import complete_tensors


def test_steps_say_what_starts_stays_ends_and_what_is_loaded() -> None:
    before = full_gpus({"x": [0], "y": [1, 2]}, {"x": 6, "y": 5}, plan_id="before")
    after = full_gpus({"x": [1], "y": [2, 0]}, {"x": 6, "y": 5}, plan_id="after")
    shown = [
        (step["stay"], len(step["start"]), len(step["end"]), step["bytes_loaded"])
        for step in preview(before, after)
    ]
    assert shown == [(2, 0, 1, {}), (1, 1, 1, {"n": 6 * GIB}), (2, 1, 0, {"n": 5 * GIB})]
    fullest = [step["fullest"] for step in preview(before, after)]
    assert max(gpu["during_gib"] for gpu in fullest) <= 8


def test_the_same_plan_is_one_step_in_which_nothing_happens() -> None:
    plan = full_gpus({"x": [0]}, {"x": 6}, plan_id="same")
    # The plan in force names its tensors, whether or not its file did.
    (step,) = preview(complete_tensors(plan), replace(plan, plan_id="again"))
    assert (step["stay"], step["start"], step["end"]) == (1, [], [])


def test_a_change_at_once_has_no_plans_between() -> None:
    before = full_gpus({"x": [0], "y": [1, 2]}, {"x": 6, "y": 5}, plan_id="before")
    after = full_gpus({"x": [1], "y": [2, 0]}, {"x": 6, "y": 5}, plan_id="after")
    with pytest.raises(
        InputError, match=r"need 11\.000 GiB together, it has 8, and it is to be made"
    ):
        preview(before, after, at_once=True)


def test_what_cannot_be_is_refused_with_the_numbers() -> None:
    before = full_gpus({"x": [0], "y": [1]}, {"x": 6, "y": 5}, plan_id="before")
    after = full_gpus({"x": [1], "y": [0]}, {"x": 6, "y": 5}, plan_id="after")
    with pytest.raises(InputError, match=r"GPU 0: old and new need 11\.000 GiB together, it has 8"):
        preview(before, after)
