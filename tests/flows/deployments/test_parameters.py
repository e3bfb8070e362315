"""Parameters of deployments become the options of the steps they are for."""

from math import inf, nan
from pathlib import Path

import pytest
from pydantic import ValidationError

from flows.deployments.parameters import (
    AutoscaleParameters,
    FitParameters,
    PlanParameters,
    PrepareParameters,
    ProfileClassParameters,
    ReplanParameters,
    SteerParameters,
)
from flows.operations.replanning.options import (
    AutoscaleOptions,
    ForecastOptions,
    SteerOptions,
    Thresholds,
)
from flows.planning import PlanOptions
from flows.preparation.interference.options import FitOptions
from flows.preparation.profiling.class_profile import ClassRequest
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


def test_a_class_is_measured_in_the_precision_that_was_asked_for() -> None:
    request = ClassRequest(split=Path("/s"), gpu_class="L4", parts=(), precision="fp16")
    asked = ProfileClassParameters.of(request)
    assert ProfileClassParameters.model_validate(asked.model_dump(mode="json")).request() == request
    prepared = PrepareParameters.model_validate(
        MODEL | {"precision": "fp16", "layer_times": "t.json"}
    )
    assert (prepared.precision, prepared.layer_times) == ("fp16", Path("t.json"))


def test_a_fit_takes_the_options_of_its_command() -> None:
    given = {"gpu_class": "G", "from_runs": True, "robust": True, "seed": 4}
    assert FitParameters.model_validate(given).options() == FitOptions(
        gpu_class="G", from_runs=True, robust=True, seed=4
    )


def test_loops_take_the_options_of_their_commands() -> None:
    given = {"hours": 2.0, "advisory": True, "period": 5.0, "max_gpus": 3, "periods": 7}
    rates = AutoscaleParameters.model_validate({**given, "cluster": "cluster.yaml"})
    assert rates.options() == AutoscaleOptions(
        hours=2.0, advisory=True, period=5.0, max_gpus=3, periods=7
    )
    assert rates.cluster == Path("cluster.yaml")
    assert AutoscaleParameters().options() == AutoscaleOptions()
    cuts = SteerParameters.model_validate({"looks": 9, "hours": 1})
    assert cuts.options() == SteerOptions(looks=9, hours=1.0)
    for name, value in (("period", 1.0), ("hours", 0), ("max_gpus", 0), ("looks", 3)):
        with pytest.raises(ValidationError, match=name):
            AutoscaleParameters.model_validate({name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [("gap", 1.0), ("quantile", 0.0), ("solver", "abacus"), ("bake_seconds", 43_201.0)],
)
def test_a_form_refuses_what_the_option_refuses(name: str, value: object) -> None:
    with pytest.raises(ValidationError, match=name):
        ReplanParameters.model_validate(FILES | {name: value})


@pytest.mark.parametrize("given", [nan, inf, -inf])
def test_a_number_that_is_not_finite_is_refused(given: float) -> None:
    with pytest.raises(ValidationError, match="finite number"):
        PlanParameters.model_validate(
            {"cluster": "c.yaml", "workload": "w.yaml", "slo_margin": given}
        )
