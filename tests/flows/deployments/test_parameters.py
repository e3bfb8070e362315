"""Parameters of deployments become the options of the steps they are for."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from flows.deployments.parameters import PlanParameters, PrepareParameters, ReplanParameters
from flows.operations.replanning.options import ForecastOptions, Thresholds
from flows.planning import PlanOptions
from flows.preparation.splitting import SplitChoices
from flows.preparation.splitting.inputs.values import Range
from flows.release.rollout.options import RolloutOptions
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


def test_every_option_of_a_replan_reaches_what_it_is_for() -> None:
    given = {
        "history_hours": 2.0,
        "quantile": 0.5,
        "headroom": 2.0,
        "goodput_gain": 0.3,
        "gpu_gain": 0.4,
        "bake_seconds": 7.0,
    }
    nightly = ReplanParameters.model_validate(FILES | given)
    options = nightly.options(None)
    assert options.forecast == ForecastOptions(history_hours=2.0, quantile=0.5, headroom=2.0)
    assert options.thresholds == Thresholds(goodput_gain=0.3, gpu_gain=0.4)
    assert nightly.rollout("more") == RolloutOptions(bake_seconds=7.0, reason="more")


@pytest.mark.parametrize(("name", "value"), [("gap", 1.0), ("quantile", 0.0), ("solver", "abacus")])
def test_a_form_refuses_what_the_option_refuses(name: str, value: object) -> None:
    with pytest.raises(ValidationError, match=name):
        ReplanParameters.model_validate(FILES | {name: value})
