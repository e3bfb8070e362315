"""Planned applications: what is read, what is refused, what tails sum up to."""

from typing import Any

import pytest

from tests.triton_backend.contract.applications.test_application import (
    AT,
    TRAFFIC,
    changed,
    read,
    spec,
)
from triton_backend.contract.applications import ApplicationPlan
from triton_backend.contract.errors import InputError
from triton_backend.contract.fields import Fields

BUDGETS = {"detect": 100_000, "cars": 250_000, "people": 300_000}


def test_a_planned_application_goes_there_and_back() -> None:
    plan = ApplicationPlan(
        application=read(changed((("rate_rps",), 40))),
        budgets_us=BUDGETS,
        least_latency_us=9,
        inputs=(spec("image", 3, 300, 300),),
    )
    assert plan.tails_us == {"detect": 300_000, "cars": 0, "people": 0}
    assert plan.to_dict()["modules"][1]["bindings"] == {"crops": "detect.car_crops"}
    assert ApplicationPlan.read(Fields(plan.to_dict())) == plan


def test_a_planned_application_that_states_no_least_latency_has_none() -> None:
    data = ApplicationPlan(application=read(TRAFFIC), budgets_us=BUDGETS).to_dict()
    data.pop("least_latency_us", None)
    assert ApplicationPlan.read(Fields(data)).least_latency_us == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"budget_us": 0}, f"{AT}, module 'cars'.budget_us: 0 is not within 1"),
        ({"budget_us": None}, f"{AT}, module 'cars'.budget_us: None is not a whole number"),
        ({"tail_us": 7}, f"{AT}, module 'cars'.tail_us: 7, the budgets below sum up to 0"),
        ({"bindings": {"crops": "x"}}, f"{AT}, module 'cars'.inputs.crops: 'x' is not module"),
    ],
)
def test_planned_applications_that_cannot_be_are_named(
    change: dict[str, Any], message: str
) -> None:
    data = ApplicationPlan(application=read(TRAFFIC), budgets_us=BUDGETS).to_dict()
    data["modules"][1] |= change
    with pytest.raises(InputError) as raised:
        ApplicationPlan.read(Fields(data))
    assert str(raised.value).startswith(message)


def test_a_planned_application_states_its_rate() -> None:
    with pytest.raises(InputError, match="rate_rps: is missing"):
        ApplicationPlan(application=read(changed((("rate_rps",), ...))), budgets_us=BUDGETS)
