"""The exact planner against brute force over every pattern of every GPU, and as plans."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from flows.clock import Stopwatch
from flows.planning import PlanOptions, make_plan
from flows.planning.engine.level import halved
from flows.planning.gpulets import parts
from flows.planning.gpulets.master import Master
from flows.planning.gpulets.search import Worths
from flows.planning.gpulets.tables import read_tables
from flows.planning.registry import Inputs
from flows.planning.verify.numbers import verify_plan
from flows.planning.watch import Watch
from tests.flows.planning.gpulets.cases import (
    MODEL,
    Case,
    Held,
    best_throughput,
    case,
    fewest_gpus,
)
from triton_backend.contract.cluster import Cluster, GpuClass, NodeGroup
from triton_backend.contract.errors import InfeasibleError, InputError
from triton_backend.contract.plan import Plan
from triton_backend.contract.profiles import InterferenceModel, ProfileKey, loaded
from triton_backend.contract.workload import Workload
from triton_backend.simulator.offered import Deterministic
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions

MEMORY: dict[str, Any] = {"memory": 2.0, "memory_gib": 9.0, "process_memory_gib": 0.5}
BOTH = pytest.mark.parametrize("model", [None, MODEL], ids=["alone", "interference"])


def planned(
    asked: Case, model: InterferenceModel | None, objective: str = "throughput", **own: Any
) -> Plan:
    options = PlanOptions(
        planner="gpulets",
        objective=objective,
        own={"max_models_per_vgpu": asked.most_models, **own},
    )
    found = make_plan(
        asked.profiles,
        asked.cluster,
        asked.workload,
        options,
        interference={} if model is None else {"G": model},
    )
    assert verify_plan(found, asked.profiles) == []
    assert Plan.from_dict(found.to_dict()).to_dict() == found.to_dict()
    return found


def at_rates(asked: Case, share: float) -> Case:
    """The workload with rates of that share of its weights."""
    models = tuple(
        replace(m, weight=None, rate_rps=share * (m.weight or 1.0)) for m in asked.workload.models
    )
    return replace(asked, workload=Workload(models=models))


@BOTH
@pytest.mark.parametrize("seed", [*range(8), 8, 13, 15, 16])
def test_throughput_equals_brute_force(seed: int, model: InterferenceModel | None) -> None:
    asked = case(
        seed,
        2
        if seed > 7
        else 2 + seed % 2,  # the later seeds use patterns of two parts beside each other
        2 if seed > 7 else 1 + seed // 2 % 2,
        batches=3 if seed > 7 else 3 - seed % 2,
        percents=(20, 50, 80, 100) if seed % 3 or seed > 7 else (40, 60, 100),
        **(MEMORY if seed % 4 == 3 else {}),
    )
    best = best_throughput(asked, model)
    if best == 0:
        with pytest.raises(InfeasibleError, match="serve every model; there is none"):
            planned(asked, model)
        return
    found = planned(asked, model)
    assert found.objective.value == pytest.approx(best, rel=1e-6)
    assert found.objective.gap <= 1e-4
    assert found.objective.space == "gpu-patterns"
    assert {m.policy for m in found.models} == {"turns-window"}


@pytest.mark.long
@BOTH
def test_three_parts_of_a_gpu(model: InterferenceModel | None) -> None:
    asked = case(24, 3, 1, batches=2, percents=(20, 40, 60), most_vgpus=3)
    found = planned(asked, model)
    assert found.objective.value == pytest.approx(best_throughput(asked, model), rel=1e-6)


@BOTH
@pytest.mark.parametrize("share", [0.3, 0.6, 0.95, 1.05])
def test_given_rates_take_the_fewest_gpus_or_are_proven_out_of_reach(
    share: float, model: InterferenceModel | None
) -> None:
    asked = case(6, 2, 2)
    asked = at_rates(asked, share * best_throughput(asked, model))
    rates = [m.rate_rps or 0.0 for m in asked.workload.models]
    fewest = fewest_gpus(asked, rates, model)
    if fewest is None:
        with pytest.raises(InfeasibleError, match=r"carry at most 0\.9\d+ of the rates"):
            planned(asked, model, "gpus")
        return
    found = planned(asked, model, "gpus")
    assert found.objective.value == fewest == found.objective.upper_bound
    cost = planned(asked, model, "cost")
    assert cost.objective.value == pytest.approx(1.5 * fewest)


@BOTH
@pytest.mark.parametrize("seed", [2, 6, 9])
def test_plans_serve_what_they_promise_with_nothing_accepted_and_late(
    seed: int, model: InterferenceModel | None
) -> None:
    found = planned(case(seed, 2 + seed % 2, 2, batches=8), model)
    steady = simulate(found, SimOptions(arrivals=Deterministic(), duration_s=3.0))
    assert steady.attainment == 1.0  # the promise: all of the planned rates at equal gaps
    for load, least in ((0.5, 0.97), (1.0, 0.92), (2.0, 0.0)):  # Poisson has no promise
        run = simulate(found, SimOptions(load_factor=load, duration_s=3.0))
        assert run.policy == "turns-window"
        assert sum(m.late for m in run.models) == 0
        assert run.attainment >= least


def test_who_has_a_part_alone_may_fill_larger_batches_in_a_burst() -> None:
    larger = 0
    for seed, share in ((0, 0.6), (0, 0.4), (3, 0.6), (6, 0.4)):
        asked = case(seed, 2, 2, batches=8)
        found = planned(at_rates(asked, share * best_throughput(asked, None)), None, "gpus")
        seats = Counter(s.pool for m in found.models for p in m.pipelines for s in p.stages)
        for model in found.models:
            for pipeline in model.pipelines:
                (stage,) = pipeline.stages
                beyond = stage.latency_us_by_batch[pipeline.batch :]
                assert seats[stage.pool] == 1 or not beyond
                assert all(2 * latency <= 0.9 * model.slo_us for latency in beyond)
                larger += len(beyond)
    assert larger


@pytest.mark.long
def test_interference_costs_throughput_and_is_stated() -> None:
    asked = case(16, 2, 2)
    with_it, without = planned(asked, MODEL), planned(asked, MODEL, interference="off")
    assert with_it.objective.value < without.objective.value
    assert any(pool.interference is not None for pool in with_it.pools)
    unknown = planned(asked, None)
    assert unknown.objective.value == without.objective.value
    assert unknown.certificate["notes"][-1].startswith("G: no interference model")
    assert all(pool.interference is None for pool in unknown.pools)
    stated = [pool.interference for pool in without.pools if pool.interference is not None]
    assert len(stated) == len(without.pools)  # inputs of a simulation of overlap
    assert {seat.factor for each in stated for seat in each.seats} == {1.0}
    assert any(each.felt > 0 for each in stated)
    assert verify_plan(without, asked.profiles) == []
    careful = replace(MODEL, residuals=(0.0, 0.02, 0.05, 0.1, 0.2, 0.3))
    assert planned(asked, careful).objective.value < with_it.objective.value
    asked_median = planned(asked, careful, interference_quantile=0.5)
    assert asked_median.objective.value == pytest.approx(with_it.objective.value)


def test_verify_sees_interference_that_does_not_follow() -> None:
    found = planned(case(16, 2, 2), MODEL)
    number, pool = next(
        (i, p) for i, p in enumerate(found.pools) if p.interference and p.interference.felt
    )
    assert pool.interference is not None
    wrong = replace(pool, interference=replace(pool.interference, felt=0.0))
    pools = (*found.pools[:number], wrong, *found.pools[number + 1 :])
    assert any("felt" in line for line in verify_plan(replace(found, pools=pools)))


def test_headroom_plans_for_more_than_is_promised() -> None:
    asked = at_rates(case(6, 2, 2), 0.4 * best_throughput(case(6, 2, 2), None))
    plain, more = planned(asked, None, "gpus"), planned(asked, None, "gpus", headroom="1.5")
    promised = [m.throughput_rps for m in plain.models]
    assert [m.throughput_rps for m in more.models] == pytest.approx(promised)
    assert plain.objective.value <= more.objective.value
    assert more.options["headroom_factor"] == 1.5
    for given, reason in (
        ("0.5", "is not within 1"),
        ("much", "is none of auto"),
        ("nan", "is not within 1"),
    ):
        with pytest.raises(InputError, match=f"option headroom: .*{reason}"):
            planned(asked, None, "gpus", headroom=given)
    most = planned(case(6, 2, 2), None)
    less = planned(case(6, 2, 2), None, headroom="1.5")
    assert less.objective.value == pytest.approx(most.objective.value / 1.5)
    assert less.pools == most.pools


def test_gpus_keep_what_they_did_under_the_plan_in_force() -> None:
    asked = case(2, 2, 4, batches=4)
    first = planned(asked, None)
    options = PlanOptions(planner="gpulets", previous=first, own={"max_models_per_vgpu": 2})
    again = make_plan(asked.profiles, asked.cluster, asked.workload, options)
    assert [p.placement for p in again.pools] == [p.placement for p in first.pools]


def test_a_model_that_misses_its_slo_everywhere_is_named() -> None:
    asked = case(6, 2, 2)
    tight = replace(asked.workload.models[1], slo_us=1_000)
    with pytest.raises(InfeasibleError, match=r"'m1': waiting for its turn .* at least \d"):
        planned(replace(asked, workload=Workload(models=(asked.workload.models[0], tight))), None)


def test_inputs_that_lack_something_are_named() -> None:
    asked = case(6, 2, 2)
    bare = {
        name: replace(p, tables={k: replace(t, l2=None) for k, t in p.tables.items()})
        for name, p in asked.profiles.items()
    }
    with pytest.raises(InputError, match="'m0' on 20 % of G: has no utilisation"):
        planned(replace(asked, profiles=bare), MODEL)
    nowhere = {name: replace(p, tables={}) for name, p in asked.profiles.items()}
    with pytest.raises(InputError, match="'m0': not measured on any part"):
        planned(replace(asked, profiles=nowhere), None)
    rated = at_rates(asked, 1.0)
    with pytest.raises(
        InputError, match=r"gpu_classes\.G\.power_w: needed for the objective .power."
    ):
        planned(rated, None, "power")
    with pytest.raises(InputError, match="option minimum_rps"):
        make_plan(
            asked.profiles,
            asked.cluster,
            asked.workload,
            PlanOptions(planner="gpulets", minimum_rps={"m0": 1.0}),
        )


def two_classes() -> tuple[Case, Cluster]:
    """A case whose cluster also has GPUs of a class H, half as fast and cut in equal parts."""
    asked = case(15, 2, 2)
    profiles = {
        name: replace(
            p,
            tables={
                **p.tables,
                **loaded(
                    {("H", v): 2 * v * p.tables[ProfileKey("G", 300)].latency_us for v in (1, 2)}
                ),
            },
        )
        for name, p in asked.profiles.items()
    }
    slow = GpuClass(name="H", vgpu_divisors=(1, 2), hourly_cost=0.5)
    both = Cluster(
        name="both",
        gpu_classes=(*asked.cluster.gpu_classes, slow),
        nodes=(
            *asked.cluster.nodes,
            NodeGroup(count=3, gpu_class="H", gpus=1, nic_gbps=10),
        ),
    )
    return replace(asked, profiles=profiles), both


def test_classes_of_percents_and_of_divisors_serve_together() -> None:
    asked, both = two_classes()
    alone = planned(asked, None).objective.value
    together = planned(replace(asked, cluster=both), None)
    assert together.objective.value > alone
    assert together.gpus_used["H"] > 0
    assert together.objective.gap <= 1e-4
    only_slow = replace(both, nodes=both.nodes[1:])
    slow = planned(replace(asked, cluster=only_slow), None).objective.value
    assert together.objective.value >= alone + slow - 1e-6


def test_the_cheaper_class_is_taken_where_it_does() -> None:
    asked, both = two_classes()
    small = replace(
        asked,
        cluster=both,
        workload=Workload(
            models=tuple(replace(m, weight=None, rate_rps=20.0) for m in asked.workload.models)
        ),
    )
    found = planned(small, None, "cost")
    assert found.gpus_used["G"] == 0
    assert found.objective.value == 0.5 * found.gpus_used["H"]
    barred = PlanOptions(
        planner="gpulets",
        objective="cost",
        excluded_classes={"*": ("H",)},
        own={"max_models_per_vgpu": 2},
    )
    dearer = make_plan(small.profiles, both, small.workload, barred)
    assert dearer.gpus_used["H"] == 0
    assert dearer.objective.value == 1.5 * dearer.gpus_used["G"]


def test_too_many_choices_of_batches_are_thinned_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = case(15, 2, 2, batches=8)
    full = planned(asked, MODEL)
    monkeypatch.setattr("flows.planning.gpulets.parts.MOST_OPTIONS", 1)
    thinned = planned(asked, MODEL)
    assert any("the bound is over these" in note for note in thinned.certificate["notes"])
    assert thinned.objective.value <= full.objective.value * (1 + 1e-4)
    assert not any("ladder" in note for note in full.certificate["notes"])


def seats_by_call(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Models of each set whose options are enumerated from now on."""
    sets, name = list[tuple[int, ...]](), "_seats"
    enumerated = getattr(parts, name)

    def noted(*given: Any) -> Any:
        sets.append(given[3])
        return enumerated(*given)

    monkeypatch.setattr(parts, name, noted)
    return sets


def test_no_more_choices_are_enumerated_once_there_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = case(15, 2, 2, batches=8)
    sets = seats_by_call(monkeypatch)
    planned(asked, MODEL)
    every = len(sets)
    monkeypatch.setattr(parts, "MOST_OPTIONS", 1)
    planned(asked, MODEL)
    assert every < len(sets) - every < 2 * every


def test_choices_are_enumerated_until_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, over = case(15, 2, 2, batches=8), Watch()
    over.stop()
    sets = seats_by_call(monkeypatch)
    with pytest.raises(InfeasibleError, match=r"planning: no plan in .* it was ended"):
        make_plan(
            asked.profiles,
            asked.cluster,
            asked.workload,
            PlanOptions(planner="gpulets", own={"max_models_per_vgpu": asked.most_models}),
            watch=over,
            interference={"G": MODEL},
        )
    assert sets == []


@pytest.mark.parametrize("seed", [1, 2, 5])
def test_a_plan_of_few_gpus_comes_before_a_closer_bound_where_time_is_short(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time limit passes when the bound begins to be narrowed: a good plan is known by then."""
    asked = case(seed, 5, 4)
    options = PlanOptions(planner="gpulets", own={"max_models_per_vgpu": asked.most_models})

    def value(limit_s: float | None, clock: Stopwatch) -> float:
        return make_plan(
            asked.profiles,
            asked.cluster,
            asked.workload,
            replace(options, time_limit_s=limit_s),
            interference={"G": MODEL},
            watch=Watch(limit_s=limit_s, _clock=clock),
        ).objective.value

    without_limit = value(None, Stopwatch())
    clock = Held()

    def narrow(*arguments: Any) -> tuple[float, float]:
        clock.now_s = 2000.0
        return halved(*arguments)

    monkeypatch.setattr("flows.planning.gpulets.master.halved", narrow)
    assert value(1000.0, clock) >= 0.8 * without_limit
    assert clock.now_s == 2000.0


def test_patterns_are_not_enumerated_when_time_is_over() -> None:
    """None are given then, and nothing is said of those that were not looked at."""
    asked = case(3, 3, 20)
    options = PlanOptions(planner="gpulets", own={"max_models_per_vgpu": asked.most_models})
    inputs = Inputs(
        profiles=asked.profiles,
        cluster=asked.cluster,
        workload=asked.workload,
        options=options,
        interference={"G": MODEL},
    )
    (own,) = Master(read_tables(inputs)).patterns
    worth = Worths.of(np.ones(3), np.zeros(3), np.full(3, np.inf))
    every, _ = own.above(worth, 0.0, 10_000, Watch())
    assert len(every) > 1
    over = Watch()
    over.stop()
    assert own.above(worth, 0.0, 10_000, over) == ([], np.inf)
