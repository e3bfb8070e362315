"""Python steps as a workload names them, and models with a step before or after them."""

import pytest

from triton_backend.contract.applications.steps import Step
from triton_backend.contract.errors import InputError
from triton_backend.contract.workload import Workload

SURROUNDED = {
    "name": "shop",
    "model": "net",
    "before": "decode",
    "after": "label",
    "slo_ms": 200,
    "rate_rps": 5,
}


def test_a_workload_with_steps_reads_what_it_wrote() -> None:
    data = {
        "models": [{"name": "net", "slo_ms": 100.0}],
        "steps": [{"name": "decode", "python": "shop.pictures:decode"}],
    }
    found = Workload.from_dict(data)
    assert found.steps == (Step(name="decode", python="shop.pictures:decode"),)
    assert found.steps[0].package == "shop"
    assert found.to_dict() == data


@pytest.mark.parametrize(
    "python", ["", "os", "os:", ":f", "a..b:f", "a:b.c", "a b:f", "../x:f", "a:f\n", "é:f", "1:f"]
)
def test_what_is_no_function_is_refused(python: str) -> None:
    with pytest.raises(
        InputError, match=r"step 'decode', python: .* is not package.module:function"
    ):
        Step(name="decode", python=python)


def test_two_steps_of_one_name_are_refused() -> None:
    steps = [{"name": "a", "python": "p:f"}, {"name": "a", "python": "p:g"}]
    with pytest.raises(InputError, match=r"step 'a'\.name: is listed twice"):
        Workload.from_dict({"models": [{"name": "net", "slo_ms": 1}], "steps": steps})


def test_a_model_with_steps_around_it_is_an_application_of_three_modules() -> None:
    found = Workload.from_dict({"models": [SURROUNDED]})
    (application,) = found.applications
    assert found.models == ()
    assert (application.name, application.slo_us, application.rate_rps) == ("shop", 200_000, 5)
    assert [(m.name, m.model, m.parents) for m in application.modules] == [
        ("before", "decode", ()),
        ("model", "net", ("before",)),
        ("after", "label", ("model",)),
    ]
    assert Workload.from_dict(found.to_dict()) == found


def test_with_a_step_after_it_alone_the_model_is_the_first() -> None:
    given = {key: value for key, value in SURROUNDED.items() if key != "before"}
    (application,) = Workload.from_dict({"models": [given]}).applications
    assert [(m.name, m.parents) for m in application.modules] == [
        ("model", ()),
        ("after", ("model",)),
    ]


@pytest.mark.parametrize("model", [None, "shop"])
def test_a_model_with_steps_has_a_name_beside_the_models_own(model: str | None) -> None:
    given = {**SURROUNDED, "model": model}
    with pytest.raises(InputError, match="workload model 'shop', model: names the model between"):
        Workload.from_dict({"models": [given]})
