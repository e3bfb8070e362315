"""Plans of entries.

The least by brute force, no planner below it, limits kept, complaints with names.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest

from flows.planning import PlanOptions, make_plan
from flows.planning.entries.tables import ModelTable
from flows.planning.promises.headroom import at_part
from flows.planning.registry import Inputs, planner_named
from flows.planning.verify.numbers import verify_plan
from flows.planning.watch import Watch
from tests.flows.planning import small
from tests.flows.planning.entries.entry_cases import (
    Case,
    Held,
    brute_force,
    case,
    cluster,
    entry,
    made,
    one,
    planned,
    profile,
)
from triton_backend.contract.cluster import Cluster, GpuClass, NodeGroup
from triton_backend.contract.errors import InfeasibleError, InputError
from triton_backend.contract.workload import ModelDemand, Workload
from triton_backend.simulator.offered import Deterministic
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions

GIB = 1 << 30


@pytest.mark.long
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("classes", [("G",), ("G", "H")])
def test_few_entries_cost_what_brute_force_finds(seed: int, classes: tuple[str, ...]) -> None:
    problem = case(seed, 5, classes=classes)
    least = brute_force(problem, whole=True)
    plan = planned(problem)
    assert plan.objective.upper_bound == pytest.approx(least)
    assert plan.objective.value == pytest.approx(least)
    assert plan.objective.space == "pools"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_six_entries_on_four_blocks_cost_what_brute_force_finds(seed: int) -> None:
    problem = case(100 + seed, 6, blocks=4, loose=8)
    assert planned(problem).objective.value == pytest.approx(brute_force(problem, whole=True))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("count", [9, 25])
def test_graft_is_not_below_the_exact_one(seed: int, count: int) -> None:
    problem = case(seed, count, blocks=4, rates=(5, 30))
    exact = planned(problem)
    assert exact.objective.upper_bound <= exact.objective.value
    assert planned(problem, "graft").objective.value >= exact.objective.value - 1e-9


@pytest.mark.parametrize("objective", ["cost", "gpus", "throughput"])
@pytest.mark.parametrize("planner", ["pool", "graft"])
def test_other_objectives_are_verified_too(planner: str, objective: str) -> None:
    plan = planned(case(1, 8), planner, objective)
    assert plan.objective.value > 0
    assert plan.options["billing"] == "share"


def test_throughput_is_the_largest_multiple_of_all_rates() -> None:
    problem = made(profile(7), [entry("a", 0, 30, 30), entry("b", 1, 30, 10)], gpus=1)
    plan = planned(problem, objective="throughput")
    rates = {e.name: e.rate_rps for e in plan.models[0].entries}
    assert rates["a"] == pytest.approx(30 * plan.objective.value)
    assert rates["b"] == pytest.approx(10 * plan.objective.value)
    assert plan.objective.value <= plan.objective.upper_bound


@pytest.mark.parametrize("planner", ["pool", "graft"])
def test_uniform_entries_that_one_vgpu_does_not_carry_together_are_not_one(planner: str) -> None:
    problem = one(*(entry(f"c{n}", 1, 40, 300) for n in range(4)))
    plan = planned(problem, planner, own={"max_instances": 1})
    assert {pool.vgpus for pool in plan.pools} == {1}


def test_throughput_of_few_vgpus_is_a_part_of_rates_that_need_more() -> None:
    problem = made(profile(7), [entry("a", 0, 30, 9_000)], gpus=1)
    plan = planned(problem, objective="throughput", own={"max_instances": 1})
    assert 0 < plan.objective.value <= plan.objective.upper_bound
    assert plan.objective.value < 1


@pytest.mark.long
def test_no_plan_for_clients_of_any_phase_is_above_the_bound_of_throughput() -> None:
    problem = case(1, 3, rates=(10,))
    plan = planned(problem, objective="throughput", own={"phases": "any"})
    beyond = at_part(problem.workload, 1.02 * plan.objective.upper_bound)
    with pytest.raises(InfeasibleError):
        planned(replace(problem, workload=beyond), own={"phases": "any"})


@pytest.mark.parametrize("billing", ["gpu", "paid"])
def test_billing_by_gpus_pays_whole_ones(billing: str) -> None:
    problem = case(2, 6)
    plan = planned(problem, objective="cost", own={"billing": billing})
    assert plan.objective.value == plan.price_paid == 2.0 * plan.gpus_used["G"]


def test_an_entry_that_aligns_boards_a_batch_of_the_entry_at_the_junction() -> None:
    problem = made(profile(2), [entry("whole", 0, 60, 5), entry("tail", 2, 60, 400)])
    plan = planned(problem)
    stages = {p.entry: p.stages for p in plan.models[0].pipelines}
    assert [s.blocks for s in stages["whole"]] == [(0, 2), (2, 3)]
    assert stages["whole"][-1].pool == stages["tail"][-1].pool
    assert stages["whole"][-1].boards
    assert stages["whole"][-1].batch == 2  # of the batch that both fill; its own brings one sample
    assert stages["tail"][-1].boards
    assert not stages["whole"][0].boards
    assert {e.name: e.block for e in plan.models[0].entries} == {"whole": 0, "tail": 2}


@pytest.mark.parametrize("planner", ["pool", "graft"])
def test_headroom_sizes_pools_for_more_than_is_promised(planner: str) -> None:
    problem = case(1, 8, rates=(30,))
    plain = planned(problem, planner)
    roomy = planned(problem, planner, own={"headroom": 20.0})
    busier = planned(case(1, 8, rates=(600,)), planner)
    assert roomy.objective.value == busier.objective.value > plain.objective.value
    assert {e.rate_rps for e in roomy.models[0].entries} == {30}
    with pytest.raises(InputError, match="headroom"):
        planned(problem, planner, own={"headroom": 0.5})


def test_one_client() -> None:
    plan = planned(one(entry("only", 1, 40, 30)))
    assert [p.entry for p in plan.models[0].pipelines] == ["only"]


def test_all_equal_entries_share_one_pool() -> None:
    plan = planned(one(*(entry(f"c{n}", 1, 40, 30) for n in range(7))))
    assert len(plan.pools) == 1
    assert plan.pools[0].vgpus >= 1


def test_an_entry_at_the_last_block() -> None:
    plan = planned(one(entry("last", 2, 40, 30)))
    assert plan.models[0].pipelines[0].stages[0].blocks == (2, 3)


def test_a_rate_of_a_tenth() -> None:
    assert planned(one(entry("slow", 0, 40, 0.1))).objective.value >= 5


def test_a_model_without_entries_is_planned_beside_others_as_one_entry() -> None:
    first = one(entry("a", 1, 40, 30))
    whole = replace(profile(8), name="whole")
    demands = (*first.workload.models, ModelDemand(name="whole", slo_us=60_000, rate_rps=40.0))
    plan = make_plan(
        {**first.profiles, "whole": whole},
        first.cluster,
        Workload(models=demands),
        PlanOptions(objective="share"),
    )
    assert verify_plan(plan, {**first.profiles, "whole": whole}) == []
    assert plan.model("whole").entries == ()
    assert plan.model("whole").throughput_rps == 40


@pytest.mark.parametrize("planner", ["pool", "graft"])
def test_sizes_of_a_model_are_planned_beside_the_entries_of_another(planner: str) -> None:
    """Each size as one entry at block 0; no shared stage and no batch holds two sizes."""
    first = one(entry("a", 1, 40, 30))
    sizes = [{"input_shapes": {"x": shape}} for shape in ("4", "8")]
    reader = {"name": "reader", "slo_ms": 60, "rate_rps": 40, "sizes": sizes}
    listed = Workload.from_dict({"models": [reader]}).models
    profiles = {
        **first.profiles,
        **{m.name: replace(profile(n), name=m.name) for n, m in enumerate(listed)},
    }
    workload = Workload(models=(*first.workload.models, *listed))
    asked = PlanOptions(planner=planner, objective="share")
    plan = make_plan(profiles, first.cluster, workload, asked)
    assert verify_plan(plan, profiles) == []
    assert [m.size_of for m in plan.workload.models] == [None, "reader", "reader"]
    assert [(plan.model(m.name).throughput_rps, plan.model(m.name).entries) for m in listed] == [
        (20.0, ()),
        (20.0, ()),
    ]
    found = simulate(plan, SimOptions(arrivals=Deterministic(), duration_s=5.0)).models
    assert {row.name: row.outcome.attainment for row in found} == dict.fromkeys(profiles, 1.0)


@pytest.mark.parametrize("planner", ["pool", "graft"])
def test_a_budget_below_the_least_latency_names_entry_and_numbers(planner: str) -> None:
    problem = one(entry("fine", 1, 40, 30), entry("hasty", 0, 1.5, 30))
    least = min(math.ceil(t.latency_us[:, 0].sum() - 1e-6) for t in problem.profile.tables.values())
    said = rf"entry hasty: .*0\.750 ms of 1\.500 ms, its least latency is {least / 1e3:.3f} ms"
    with pytest.raises(InfeasibleError, match=said):
        planned(problem, planner)


def test_a_shared_stage_that_fits_no_memory_is_not_planned() -> None:
    weights = (0, 0, 3 * GIB)
    net = profile(7, block_memory_bytes=weights)
    entries = [entry("a", 0, 60, 5), entry("b", 1, 60, 5)]
    roomy = made(net, entries, memory_gib=4)
    assert planned(roomy).pools
    tight = made(net, entries, memory_gib=2)
    with pytest.raises(InfeasibleError, match="entry a: blocks from 0 on fit no vGPU's memory"):
        planned(tight)


@pytest.mark.parametrize("planner", ["pool", "graft"])
def test_no_stage_has_more_instances_than_allowed(planner: str) -> None:
    problem = one(*(entry(f"c{n}", n % 3, 45, 120) for n in range(6)))
    plan = planned(problem, planner, own={"max_instances": 1})
    assert max(pool.vgpus for pool in plan.pools) == 1
    with pytest.raises(InfeasibleError, match="need more than 1 vGPUs"):
        planned(one(entry("much", 0, 60, 1e5)), planner, own={"max_instances": 1})


def test_a_boundary_of_0_bytes_costs_no_time() -> None:
    net = replace(profile(7), boundary_bytes=(0, 0))
    plan = planned(made(net, [entry("whole", 0, 60, 5), entry("tail", 2, 60, 400)]))
    assert all(s.transfer_us == 0 for p in plan.models[0].pipelines for s in p.stages)


def test_one_stage_a_pipeline_where_that_is_asked() -> None:
    plan = planned(one(entry("whole", 0, 60, 5), entry("tail", 2, 60, 400)), max_partitions=1)
    assert {len(p.stages) for p in plan.models[0].pipelines} == {1}


def test_gpus_that_are_too_few_are_named() -> None:
    problem = made(profile(7), [entry("much", 0, 20, 3_000)], gpus=1)
    with pytest.raises(InfeasibleError, match=r"gpu_classes\.G: needs .* the cluster has 4"):
        planned(problem)


def test_entries_that_fit_at_no_rate_are_refused_after_few_tries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    profiles = {name: small.profile(name) for name in "abcd"}
    asked = Workload(models=tuple(ModelDemand(name=name, slo_us=40_000) for name in profiles))
    tried: list[float] = []
    planning = import_module("flows.planning.entries.plan")  # not the function of that name
    read = planning.read_tables

    def counted(inputs: Inputs, level: float, *more: Any) -> Sequence[ModelTable]:
        tried.append(level)
        return read(inputs, level, *more)

    monkeypatch.setattr(planning, "read_tables", counted)
    with pytest.raises(InfeasibleError, match="its GPUs serve not all entries at once, at any"):
        make_plan(profiles, small.cluster(1, 1), asked, PlanOptions(planner="graft"))
    assert len(set(tried)) <= 4


def test_a_search_that_is_ended_says_nothing_of_rates_that_it_did_not_try() -> None:
    problem, watch = made(profile(7), [entry("much", 0, 20, 3_000)], gpus=1), Watch()
    watch.stop()
    options = PlanOptions(planner="graft", objective="throughput")
    with pytest.raises(InfeasibleError, match=r"no plan in .* s, then it was ended"):
        make_plan(problem.profiles, problem.cluster, problem.workload, options, watch)


def test_other_weights_of_classes_are_not_tried_once_the_time_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planning = import_module("flows.planning.entries.plan")  # not the function of that name
    read, tried, clock = planning.read_tables, list[dict[str, float]](), Held()

    def slow(inputs: Inputs, level: float, weights: Any, *more: Any) -> Sequence[ModelTable]:
        tried.append(dict(weights))
        clock.now_s += 3.0
        return read(inputs, level, weights, *more)

    monkeypatch.setattr(planning, "read_tables", slow)
    problem = made(profile(7, classes=("G", "H")), [entry("much", 0, 20, 90_000)], ("G", "H"))
    watch = Watch(limit_s=5.0, _clock=clock)
    own = {"headroom": "none", "phases": "even"}
    options = PlanOptions(planner="graft", objective="share", time_limit_s=5.0, own=own)
    with pytest.raises(InfeasibleError, match="no plan under a time limit of 5 s"):
        make_plan(problem.profiles, problem.cluster, problem.workload, options, watch)
    assert [len(weights) for weights in tried] == [0, 1]


def test_a_class_that_has_too_few_gpus_leaves_the_rest_to_others() -> None:
    problem = case(3, 12, classes=("G", "H"), rates=(200,))
    many = planned(problem)
    few = replace(
        problem,
        cluster=replace(
            problem.cluster,
            nodes=(
                NodeGroup(count=1, gpu_class="G", gpus=1, nic_gbps=40),
                NodeGroup(count=40, gpu_class="H", gpus=4, nic_gbps=20),
            ),
        ),
    )
    plan = planned(few)
    assert plan.gpus_used["G"] <= 1
    assert plan.objective.value >= many.objective.value
    assert plan.objective.upper_bound == many.objective.upper_bound


@pytest.mark.parametrize("shadow", [{}, {"shadow_rps": 60.0, "shadow_ms": 20.0}])
def test_divisors_stay_apart_by_size_and_model(shadow: dict[str, float]) -> None:
    net = profile(7)
    whole = {k._replace(basis="loaded"): t for k, t in net.tables.items() if k.share == 300}
    halves = {
        k._replace(share=150): replace(t, latency_us=1.8 * t.latency_us) for k, t in whole.items()
    }
    problem = Case(
        profile=replace(net, tables={**whole, **halves}),
        cluster=Cluster(
            name="cut",
            gpu_classes=(GpuClass(name="G", vgpu_divisors=(1, 2)),),
            nodes=(NodeGroup(count=4, gpu_class="G", gpus=2, nic_gbps=10),),
        ),
        workload=Workload(
            models=(
                ModelDemand(
                    name="net",
                    slo_us=1,
                    entries=(entry("a", 0, 30, 100), entry("b", 1, 60, 30), entry("c", 2, 20, 300)),
                ),
            )
        ),
    )
    for planner in ("pool", "graft"):
        plan = planned(problem, planner, own=shadow)
        assert any(pool.starts_anywhere for pool in plan.pools) == bool(shadow)
        held: dict[tuple[int, int], set[int]] = {}
        for pool in plan.pools:
            for slot in pool.slots():
                held.setdefault((slot.node, slot.gpu), set()).add(pool.share)
        assert all(len(shares) == 1 for shares in held.values())


def test_a_planner_of_whole_models_refuses_entries() -> None:
    with pytest.raises(
        InputError, match="gpulets plans whole models; entries are planned by auto, graft"
    ):
        planned(one(entry("a", 0, 40, 1)), "gpulets", "gpus")


def test_shares_are_counted_where_models_list_entries_alone() -> None:
    problem = one(entry("a", 0, 40, 1))
    bare = Workload(models=(ModelDemand(name="net", slo_us=40_000, rate_rps=1.0),))
    with pytest.raises(InputError, match="pool is defined for share where models list entries"):
        make_plan(problem.profiles, cluster(), bare, PlanOptions(objective="share"))
    with pytest.raises(InputError, match="entry a, block: 5, but the model has blocks 0 to 2"):
        planned(one(entry("a", 5, 40, 1)))


def test_half_of_every_budget_pays_for_waiting_unless_a_margin_is_given() -> None:
    problem = one(entry("a", 0, 40, 1))
    assert planned(problem).options["slo_margin"] == 0.5
    assert planned(problem, slo_margin=0.1).options["slo_margin"] == 0.1
    assert planner_named("graft").slo_margin == 0.5


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rate_rps": 1.0}, "entry a: rate_rps"),
        ({"budget_us": 1_000_000}, "entries .* are not those of the workload"),
    ],
)
def test_verify_sees_an_entry_that_is_not_what_was_asked(change: dict[str, Any], said: str) -> None:
    plan = planned(one(entry("a", 0, 40, 30)))
    model = plan.models[0]
    wrong = replace(model, entries=(replace(model.entries[0], **change),))
    found = " ".join(verify_plan(replace(plan, models=(wrong,))))
    assert re.search(said, found)


def test_verify_sees_shares_that_are_not_those_paid() -> None:
    plan = planned(one(entry("a", 0, 40, 30)))
    wrong = replace(plan, objective=replace(plan.objective, value=1.0, upper_bound=1.0))
    assert any("objective value" in text for text in verify_plan(wrong))


@pytest.mark.long
@pytest.mark.parametrize("planner", ["graft", "pool"])
def test_a_stage_with_a_batch_of_its_own_gathers_it(planner: str) -> None:
    """Also where one entry alone passes it."""
    differ = 0
    for seed in (2, 3):  # whose plans have such stages
        problem = case(seed, 1, rates=(400.0,), classes=("G", "H"), loose=6)
        plan = planned(problem, planner, objective="throughput")
        chains = [p for model in plan.models for p in model.pipelines if len(p.stages) > 1]
        differ += sum(stage.batch not in {None, p.batch} for p in chains for stage in p.stages)
        how = SimOptions(arrivals=Deterministic(), duration_s=5, keep_uses=False)
        assert simulate(plan, how).attainment >= 0.995
    assert differ
