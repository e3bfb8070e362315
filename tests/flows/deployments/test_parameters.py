"""Parameters of deployments become the options of the steps they are for."""

from pathlib import Path

import pytest

from flows.deployments.parameters import PlanParameters, PrepareParameters
from flows.planning import PlanOptions
from flows.preparation.splitting import SplitChoices
from flows.preparation.splitting.inputs.values import Range
from triton_backend.contract.errors import InputError

MODEL = {"model": "m.onnx", "name": "m", "cluster": "cluster.yaml"}


def test_sizes_ranges_and_samples_of_a_preparation_are_those_of_its_split() -> None:
    more = {"input_shapes": {"x": "3x8x8"}, "input_ranges": {"y": "0..256"}, "samples": "s.npz"}
    assert PrepareParameters.model_validate(MODEL | more).choices() == SplitChoices(
        input_shapes={"x": (3, 8, 8)},
        input_ranges={"y": Range(0, 256)},
        samples=Path("s.npz"),
    )
    assert PrepareParameters.model_validate(MODEL).choices() == SplitChoices()


def test_a_size_of_another_form_is_refused_with_its_field() -> None:
    parameters = PrepareParameters.model_validate(MODEL | {"input_shapes": {"x": "3x"}})
    with pytest.raises(InputError, match="input_shapes: 'x=3x' is not NAME=SIZExSIZE"):
        parameters.choices()


FILES = {"cluster": "cluster.yaml", "workload": "workload.yaml"}


def test_a_margin_that_a_form_states_is_the_callers() -> None:
    stated = PlanParameters.model_validate(FILES | {"slo_margin": 0.2}).planning(PlanOptions())
    assert (stated.slo_margin, stated.margin_given) == (0.2, True)
    assert not PlanParameters.model_validate(FILES).planning(PlanOptions()).margin_given


def test_another_planner_keeps_what_was_given_and_has_its_own_margin() -> None:
    asked = PlanParameters.model_validate(FILES | {"planner": "gpulets", "gap": 0.1})
    changed = asked.planning(PlanOptions(time_limit_s=5.0, own={"overflow": True}))
    assert changed == PlanOptions(planner="gpulets", gap=0.1, time_limit_s=5.0)
    assert changed.slo_margin == 0.1
    assert asked.planning(PlanOptions(slo_margin=0.3)).slo_margin == 0.3
