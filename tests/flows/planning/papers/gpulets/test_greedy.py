"""Greedy rules: never above the exact planner, their plans verify and keep what they promise."""

from dataclasses import replace

import pytest

from flows.planning import PlanOptions, make_plan
from flows.planning.verify.numbers import verify_plan
from tests.flows.planning.gpulets.cases import MODEL, Case, best_throughput, case
from triton_backend.contract.errors import InfeasibleError, InputError
from triton_backend.contract.plan import Plan
from triton_backend.contract.profiles import InterferenceModel
from triton_backend.contract.workload import Workload
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions

NAMES = ("gpulets-greedy", "sbp", "best-fit", "ideal-static")
SEEDS = (0, 2, 4, 6, 8, 13, 15, 16)


def planned(
    name: str, asked: Case, model: InterferenceModel | None = None, objective: str = "throughput"
) -> Plan:
    options = PlanOptions(planner=name, objective=objective, own={"max_models_per_vgpu": 2})
    found = make_plan(
        asked.profiles,
        asked.cluster,
        asked.workload,
        options,
        interference={} if model is None else {"G": model},
    )
    assert verify_plan(found, asked.profiles) == []
    return found


@pytest.mark.long
@pytest.mark.parametrize("model", [None, MODEL], ids=["alone", "interference"])
@pytest.mark.parametrize("seed", SEEDS)
def test_none_exceeds_the_best_plan(seed: int, model: InterferenceModel | None) -> None:
    asked = case(seed, 2, 2)
    best = {False: best_throughput(asked, None), True: best_throughput(asked, model)}
    for name in NAMES:
        try:
            value = planned(name, asked, model).objective.value
        except InfeasibleError:
            continue
        assert value <= best[name != "best-fit"] * (1 + 1e-6)


def test_a_model_alone_takes_its_ideal_size() -> None:
    asked = case(2, 1, 1, percents=(20, 50, 80, 100))
    value = planned("sbp", asked).objective.value
    assert {pool.share for pool in planned("sbp", asked).pools} == {300}
    assert value <= planned("ideal-static", asked).objective.value * 2
    assert planned("gpulets-greedy", asked).objective.value > 0


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_plans_keep_what_they_promise(name: str) -> None:
    asked = case(15, 2, 3)
    found = planned(name, asked, None)
    run = simulate(found, SimOptions(load_factor=0.5, duration_s=3.0))
    assert sum(m.late for m in run.models) == 0
    assert run.attainment > 0.95


@pytest.mark.long
def test_given_rates_take_few_gpus() -> None:
    asked = case(15, 2, 4)
    rate = 0.3 * planned("gpulets-greedy", asked).objective.value
    rated = replace(
        asked,
        workload=Workload(
            models=tuple(
                replace(m, weight=None, rate_rps=rate * (m.weight or 1))
                for m in asked.workload.models
            )
        ),
    )
    greedy = planned("gpulets-greedy", rated, objective="gpus")
    exact = planned("gpulets", rated, objective="gpus")
    assert exact.objective.value <= greedy.objective.value <= 4
    assert planned("gpulets-greedy", rated, objective="cost").objective.value == pytest.approx(
        1.5 * greedy.objective.value
    )
    much = replace(
        rated,
        workload=Workload(models=tuple(replace(m, rate_rps=1e5) for m in rated.workload.models)),
    )
    with pytest.raises(InfeasibleError, match="does not place the rates on 4 GPUs; others may"):
        planned("gpulets-greedy", much, objective="gpus")


def test_they_are_defined_for_one_class_cut_in_two() -> None:
    three = case(2, 2, 2, percents=(20, 40, 60), most_vgpus=3)
    with pytest.raises(InputError, match="cuts GPUs in two; max_vgpus_per_gpu is 3"):
        planned("gpulets-greedy", three)
    uneven = case(2, 2, 2, percents=(20, 80))
    with pytest.raises(InputError, match="sbp needs whole GPUs"):
        planned("sbp", uneven)
