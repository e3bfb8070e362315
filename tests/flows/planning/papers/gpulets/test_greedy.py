"""Greedy rules: never above the exact planner, their plans verify and keep what they promise."""

from dataclasses import replace

import numpy as np
import pytest

from flows.planning import PlanOptions, make_plan
from flows.planning.gpulets.master import Master
from flows.planning.gpulets.tables import read_tables
from flows.planning.papers.gpulets import greedy as rules
from flows.planning.papers.gpulets.greedy import RULES, Gpu, Greedy, Part
from flows.planning.registry import Inputs
from flows.planning.verify.numbers import verify_plan
from tests.flows.planning.gpulets.cases import MODEL, Case, best_throughput, case
from triton_backend.contract.errors import InfeasibleError, InputError
from triton_backend.contract.plan import Plan
from triton_backend.contract.profiles import InterferenceModel, ProfileKey, ProfileTable
from triton_backend.contract.shares import SOLO, WHOLE_GPU
from triton_backend.contract.workload import ModelDemand, Workload
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


def halves(models: int, gpus: int) -> Case:
    """Models that run 10 ms on a half GPU alone and 12.5 ms beside each other."""
    table = ProfileTable(
        latency_us=np.array([[10_000.0]]), l2=np.array([[0.5]]), dram=np.array([[0.0]])
    )
    asked = case(0, models, gpus, percents=(50,))
    profiles = {
        name: replace(profile, tables={ProfileKey("G", 150, SOLO): table})
        for name, profile in asked.profiles.items()
    }
    demands = tuple(ModelDemand(name=name, slo_us=50_000, weight=1) for name in profiles)
    return replace(asked, profiles=profiles, workload=Workload(models=demands))


@pytest.mark.parametrize("name", ["gpulets-greedy", "ideal-static"])
def test_a_neighbour_gives_up_what_a_newcomer_slows_it_by(name: str) -> None:
    # a half promises 100/s alone and carries 80 beside another: all four carry 320
    found = planned(name, halves(2, 2), MODEL)
    assert sum(pool.vgpus for pool in found.pools) == 4
    assert found.objective.value == pytest.approx(160)


def test_what_a_neighbour_gives_up_is_placed_again() -> None:
    asked = halves(2, 2)
    own = {"max_models_per_vgpu": 1, "interference": "planned", "interference_quantile": 0.95}
    inputs = Inputs(
        profiles=asked.profiles,
        cluster=asked.cluster,
        workload=asked.workload,
        options=PlanOptions(planner="gpulets-greedy", own=own),
        interference={"G": MODEL},
    )
    tables = read_tables(inputs)
    greedy = Greedy(Master(tables).patterns[0], RULES["gpulets-greedy"])
    gpus = [Gpu([Part(WHOLE_GPU)]) for _ in range(2)]
    assert greedy.place(np.array([110.0, 160.0]), gpus)
    promised = [[part.promised for part in gpu.parts] for gpu in gpus]
    # the first model took 100 and 10, then gave up 20 beside the second, which its other half takes
    assert promised == [
        [{0: pytest.approx(80)}, {1: pytest.approx(80)}],
        [{0: pytest.approx(30)}, {1: pytest.approx(80)}],
    ]
    assert not greedy.place(np.array([110.0, 211.0]), [Gpu([Part(WHOLE_GPU)]) for _ in range(2)])


def test_parts_below_the_ideal_size_are_taken_last() -> None:
    def table(latency_us: float) -> ProfileTable:
        return ProfileTable(latency_us=np.array([[latency_us]]))

    asked = case(0, 1, 3, percents=(20, 80))
    tables = {
        ProfileKey("G", 60, SOLO): table(40_000.0),
        ProfileKey("G", 240, SOLO): table(10_000.0),
    }
    asked = replace(
        asked,
        profiles={name: replace(own, tables=tables) for name, own in asked.profiles.items()},
        workload=Workload(models=(ModelDemand(name="m0", slo_us=100_000, weight=1),)),
    )
    # three parts of 80 % carry 100 each, three of 20 % are too small for the 75 that are left
    assert planned("gpulets-greedy", asked).objective.value == pytest.approx(375)


def test_a_multiple_above_one_that_fails_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def placed(_: Greedy, rates: np.ndarray, __: int) -> list[Gpu] | None:
        return [] if rates[0] <= 10 or 11 <= rates[0] <= 11.3 else None

    monkeypatch.setattr(rules, "placed", placed)
    asked = halves(1, 1)
    own = {"max_models_per_vgpu": 1, "interference": "off", "interference_quantile": 0.95}
    inputs = Inputs(
        profiles=asked.profiles,
        cluster=asked.cluster,
        workload=asked.workload,
        options=PlanOptions(planner="gpulets-greedy", own=own),
    )
    tables = read_tables(inputs)
    greedy = Greedy(Master(tables).patterns[0], RULES["gpulets-greedy"])
    level, _ = rules.highest(greedy, np.array([1.0]), 1)
    assert 11 <= level <= 11.3
