"""Accuracy against load: it falls between the variants' before requests are dropped."""

from dataclasses import replace

import pytest

from flows.reporting.runs import LOADS, variant_curves
from tests.fakes.variants import ACCURACY, CHEAP, NAME, plain_plan, variant_plan, with_rates


@pytest.mark.long
def test_accuracy_falls_before_the_share_in_time_does() -> None:
    plan = variant_plan()
    (curve,) = variant_curves(plan)
    assert (curve.name, curve.accuracies) == (NAME, ACCURACY)
    assert curve.rate_rps == plan.own_rate_rps(NAME)
    at = {point.load: point for point in curve.points}
    assert tuple(at) == LOADS
    assert at[0.5].accuracy == pytest.approx(ACCURACY[NAME], abs=1e-3)
    assert at[1.5].accuracy == pytest.approx(0.733, abs=5e-3)  # 1/3 of 0.8, the rest of 0.7
    assert at[3.0].accuracy == pytest.approx(ACCURACY[CHEAP], abs=5e-3)
    assert all(point.in_time == 1 for point in curve.points if point.load <= 2)
    assert at[3.0].in_time < at[2.5].in_time


@pytest.mark.long
def test_the_same_plan_has_the_same_curve() -> None:
    plan = variant_plan()
    assert variant_curves(plan) == variant_curves(plan)


def test_plans_without_variants_have_no_curve() -> None:
    assert variant_curves(plain_plan()) == ()


def test_a_name_without_a_planned_rate_or_a_plan_too_large_has_none() -> None:
    plan = variant_plan()
    assert variant_curves(with_rates(plan, 0.0, 0.0)) == ()
    assert variant_curves(variant_plan(80)) == ()


def test_a_name_that_one_model_is_left_to_answer_has_none() -> None:
    plan = variant_plan()
    assert variant_curves(replace(plan, models=plan.models[:1])) == ()
