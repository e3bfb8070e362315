"""How soon a loop asks again for a plan that was refused."""

from dataclasses import replace

from flows.operations.replanning.refusals import Refusals
from tests.flows.operations.steering.steered import steered
from triton_backend.contract.plan import Plan


def plans(count: int) -> list[Plan]:
    one = steered().in_force
    return [replace(one, plan_id=f"plan-{number}") for number in range(count)]


def test_waits_double_up_to_a_minute_and_begin_at_the_look_after_the_refusal() -> None:
    (plan,), refusals = plans(1), Refusals()
    assert not refusals.holds(plan, 5.0)
    waits = [refusals.refused(plan, "no room") for _ in range(9)]
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert [refusals.holds(plan, at_s) for at_s in (100.0, 159.9, 160.0)] == [True, True, False]


def test_another_plan_is_asked_for_at_once_unless_two_were_refused_for_one_reason() -> None:
    (one, other, third), refusals = plans(3), Refusals()
    for reason in ("plan plan-0 lacks a stage", "no room"):  # a new reason begins at the first wait
        assert refusals.refused(one, reason) == 1.0
        assert [refusals.holds(plan, 0.0) for plan in (one, other)] == [True, False]
    refusals.refused(one, "plan plan-0 lacks a stage")
    assert refusals.refused(other, "plan plan-1 lacks a stage") == 2.0
    assert [refusals.holds(plan, 0.0) for plan in (one, other, third)] == [True] * 3
    assert [refusals.holds(plan, 2.0) for plan in (one, other, third)] == [False] * 3
