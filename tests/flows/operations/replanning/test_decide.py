import pytest

from flows.operations.replanning.decide import PlanWorth, Thresholds, decide, share_shift


def outcome(plan_id: str, attainment: float, served_rps: float, gpus: int) -> PlanWorth:
    return PlanWorth(
        plan_id=plan_id, attainment={"m": attainment}, served_rps=served_rps, gpus=gpus
    )


OLD = outcome("old", 0.995, 100.0, 50)


@pytest.mark.parametrize(
    ("new", "roll_out", "words"),
    [
        (outcome("new", 0.995, 110.0, 50), True, "more in time"),
        (outcome("new", 0.995, 100.0, 40), True, "fewer GPUs"),
        (outcome("new", 0.995, 100.5, 49), False, "under the thresholds"),
        (outcome("new", 0.95, 150.0, 50), False, "under the target"),
        (outcome("new", 0.995, 90.0, 40), False, "under the thresholds"),
        (outcome("old", 0.995, 100.0, 50), False, "the plan in force"),
    ],
)
def test_a_plan_is_rolled_out_only_for_a_gain_that_is_named(
    new: PlanWorth, roll_out: bool, words: str
) -> None:
    recommendation = decide(OLD, new, Thresholds())
    assert (recommendation.roll_out, words in recommendation.reason) == (roll_out, True)


@pytest.mark.parametrize(("served_rps", "roll_out"), [(0.0, False), (1.0, True)])
def test_a_plan_that_serves_nothing_gains_nothing_over_one_that_does_not(
    served_rps: float, *, roll_out: bool
) -> None:
    old, new = outcome("old", 1.0, 0.0, 2), outcome("new", 1.0, served_rps, 3)
    assert decide(old, new, Thresholds()).roll_out == roll_out


def test_without_a_plan_in_force_any_plan_is_rolled_out() -> None:
    assert decide(None, OLD, Thresholds()).roll_out


def test_share_shift_is_the_part_of_requests_that_changed_model() -> None:
    assert share_shift([50, 50], [75, 25]) == pytest.approx(0.25)
    assert share_shift([1, 1], [10, 10]) == 0.0
    assert share_shift([1, 1], [0, 0]) == 0.0
