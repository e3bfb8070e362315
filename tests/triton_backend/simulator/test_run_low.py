"""Low requests, simulated: they get what others leave, and these keep what they have."""

from dataclasses import replace

import pytest

from tests.fakes.applications import hand_application, hand_module, with_applications
from tests.fakes.plans import Own, make_plan
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.simulator.counted import request_columns
from triton_backend.simulator.offered import Arrivals, Deterministic, Gamma, Instant
from triton_backend.simulator.results import Outcome, SimResult
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions

SECONDS = 60.0
LOAD, MARGIN = 0.6, 0.002

PLANS = {
    "one stage": make_plan([[Own(latency_us=(30_000,), gpus=8)]]),
    "one vGPU": make_plan([[Own(latency_us=(10_000,))]]),
    "batches": make_plan([[Own(latency_us=(15_000, 20_000, 25_000, 30_000), gpus=4)]]),
    "two stages": make_plan(
        [
            [
                Own(latency_us=(20_000,), gpus=3, bytes_out=100_000),
                Own(latency_us=(25_000,), gpus=4),
            ]
        ]
    ),
    "two pipelines": make_plan(
        [
            [
                Own(latency_us=(20_000,), gpus=4, bytes_out=100_000),
                Own(latency_us=(20_000,), gpus=4),
            ],
            [Own(latency_us=(40_000,), gpus=4)],
        ]
    ),
}


def run(plan: Plan, options: SimOptions, **changes: float) -> SimResult:
    return simulate(plan, replace(options, **changes))


def carries(plan: Plan, options: SimOptions) -> float:
    """The highest load factor, in steps of 2 %, up to which 99 % are in time."""
    load = LOAD
    while load < 1 and run(plan, options, load_factor=load + 0.02).attainment >= 0.99:
        load += 0.02
    return load


@pytest.mark.long
@pytest.mark.parametrize("arrivals", [Deterministic(), Gamma()], ids=["even", "poisson"])
@pytest.mark.parametrize("name", PLANS)
def test_low_requests_get_what_is_left_and_others_lose_nothing(
    name: str, arrivals: Arrivals
) -> None:
    plan = PLANS[name]
    options = SimOptions(arrivals=arrivals, duration_s=SECONDS, load_factor=LOAD, keep_uses=False)
    left = carries(plan, options) - LOAD
    alone, both = run(plan, options), run(plan, options, low_load_factor=1.5 * left)
    assert both.attainment >= 0.995
    assert both.attainment >= alone.attainment - MARGIN
    (model,) = both.models
    low = model.low
    assert low is not None
    planned = model.offered / LOAD
    assert low.served >= 0.9 * left * planned
    assert low.late == 0
    assert low.offered == low.served + low.dropped


@pytest.mark.long
def test_late_binding_keeps_the_same_rule() -> None:
    plan = PLANS["batches"]
    options = SimOptions(
        policy="deferred", arrivals=Gamma(), duration_s=SECONDS, load_factor=LOAD, keep_uses=False
    )
    alone, both = run(plan, options), run(plan, options, low_load_factor=0.5)
    assert both.attainment >= alone.attainment - MARGIN
    (model,) = both.models
    assert model.low is not None
    assert model.low.served > 0.2 * model.offered


def test_a_run_without_low_requests_decides_as_ever() -> None:
    options = SimOptions(duration_s=3, load_factor=0.9)
    result = simulate(PLANS["batches"], options)
    assert set(request_columns(result)["priority"]) == {"high"}
    assert result.models[0].low is None
    assert "low" not in result.to_dict()["models"]["m0"]


def test_low_requests_are_told_apart_in_records_and_figures() -> None:
    plan = PLANS["one stage"]
    result = simulate(plan, SimOptions(duration_s=3, load_factor=0.5, low_load_factor=0.1))
    columns = request_columns(result)
    rows = result.requests[columns["priority"] == "low"]
    assert result.models[0].low == Outcome.of(rows)
    assert result.models[0].offered == (columns["priority"] == "high").sum()


def test_low_requests_need_arrivals_at_a_rate_and_a_policy_that_reserves() -> None:
    with pytest.raises(InputError, match="low_load_factor: is of arrivals at a rate"):
        SimOptions(low_load_factor=0.1, arrivals=Instant(by_model={}))
    with pytest.raises(InputError, match="low_load_factor: is not of the policy reactive"):
        SimOptions(low_load_factor=0.1, policy="reactive")


def test_low_requests_are_refused_where_no_model_takes_them_by_its_name() -> None:
    plan = PLANS["one stage"]
    planned = hand_application("app", (hand_module("m0", plan.models[0].name),))
    asked = replace(plan.workload, models=(), applications=(planned.application,))
    alone = with_applications(replace(plan, workload=asked), planned)
    with pytest.raises(InputError, match="low_load_factor: requests of applications are never low"):
        simulate(alone, SimOptions(low_load_factor=0.5))
