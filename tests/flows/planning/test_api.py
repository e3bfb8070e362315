import json
from dataclasses import replace

import numpy as np
import pytest

from flows.planning import PlanOptions, make_plan
from flows.planning.verify.numbers import verify_plan
from flows.planning.watch import Watch
from scripts.golden.problems import named
from tests.flows.planning.small import cluster, profile, workload
from triton_backend.contract.cluster import Cluster
from triton_backend.contract.errors import InfeasibleError, InputError
from triton_backend.contract.plan import Plan
from triton_backend.contract.profiles import ModelProfile, profile_from_cells
from triton_backend.contract.shares import WHOLE_GPU
from triton_backend.contract.workload import ModelDemand

PROFILES = {"net": profile(), "other": profile("other", (500, 2000, 500))}


@pytest.mark.parametrize("planner", ["pool", "no-partitioning", "dart-r"])
def test_every_planner_yields_a_plan_that_verifies_and_survives_a_file(planner: str) -> None:
    plan = make_plan(PROFILES, cluster(), workload(), PlanOptions(planner=planner))
    assert verify_plan(plan, PROFILES) == []
    again = Plan.from_dict(json.loads(json.dumps(plan.to_dict())))
    assert verify_plan(again, PROFILES) == []
    assert again.to_dict() == plan.to_dict()


@pytest.mark.parametrize(
    ("problem", "stated"),
    [
        ("one-model-00", ("gathering", None)),
        ("sub-clusters-00", ("turn", None)),
        ("mig-01", ("margin", None)),
        ("entries-mixed-01", ("margin", None)),
        ("applications-padded-00", ("gathering", "tc-padded")),
    ],
)
def test_a_plan_states_its_accounting_as_its_options_tell_it_of_earlier_plans(
    problem: str, stated: tuple[str, str | None]
) -> None:
    made = named(problem).make()
    plan = make_plan(made.profiles, made.cluster, made.workload, made.options)
    assert (plan.waits, plan.gathering_rule) == stated
    earlier = replace(plan, waits=None, gathering_rule=None)
    assert earlier.accounting == plan.accounting
    assert verify_plan(earlier, made.profiles) == verify_plan(plan, made.profiles) == []


def test_the_same_inputs_give_the_same_plan_apart_from_times() -> None:
    def planned() -> dict[str, object]:
        data = make_plan(PROFILES, cluster(), workload()).to_dict()
        del data["solve_seconds"], data["certificate"]["seconds"]
        return data

    assert planned() == planned()


def test_a_plan_that_nothing_cut_short_says_so() -> None:
    plan = make_plan(PROFILES, cluster(), workload())
    assert (plan.certificate["status"], plan.certificate["notes"]) == ("optimal", [])


def test_what_is_proven_is_optimal_though_its_time_is_over() -> None:
    watch = Watch()
    watch.stop()
    plan = make_plan(PROFILES, cluster(), workload(), PlanOptions(gap=0.0), watch)
    assert plan.objective.gap == 0
    assert (plan.certificate["status"], plan.certificate["notes"]) == ("optimal", [])


def test_a_plan_that_is_good_enough_states_what_a_better_one_may_reach() -> None:
    two = {"net": profile(), "other": profile("other", fast_us=(700, 900, 1300))}
    demand = ModelDemand(name="net", slo_us=12_000, weight=1.0, batch_building_rate_rps=1e9)
    asked = workload(demand, replace(demand, name="other"))
    rough, best = (
        make_plan(two, cluster(4, 5), asked, PlanOptions(gap=gap)).objective for gap in (0.5, 0.0)
    )
    assert rough.value < best.value <= rough.upper_bound


def test_a_slow_class_joins_through_partitioning() -> None:
    demand = ModelDemand(name="net", slo_us=12_000, weight=1.0, batch_building_rate_rps=1e9)
    pool = make_plan(PROFILES, cluster(), workload(demand))
    whole = make_plan(PROFILES, cluster(), workload(demand), PlanOptions(planner="no-partitioning"))
    assert whole.gpus_used["slow"] == 0
    assert pool.gpus_used["slow"] > 0
    assert pool.objective.value > whole.objective.value


def test_a_model_that_cannot_meet_its_slo_is_named_with_its_best_latency() -> None:
    hopeless = ModelDemand(name="other", slo_us=2_000, weight=1.0, batch_building_rate_rps=1e9)
    with pytest.raises(InfeasibleError, match=r"'other'.*the best takes 3\.000 ms.*allow 1\.200"):
        make_plan(PROFILES, cluster(), workload(*workload().models, hopeless))


def test_more_models_than_the_gpus_hold_are_refused_with_their_names() -> None:
    made = named("two-stages-00").make()
    data = made.cluster.to_dict()
    data["nodes"] = [nodes | {"count": 1, "gpus": 1} for nodes in data["nodes"]]
    two = Cluster.from_dict(data)
    assert sum(two.gpus(each.name) for each in two.gpu_classes) == 2 < len(made.workload.models)
    # The search for a plan alone would end with its time limit, and say so.
    with pytest.raises(InfeasibleError, match="too few for 4 models: at most 2 can be placed"):
        make_plan(made.profiles, two, made.workload, PlanOptions(time_limit_s=5))


def test_missing_rates_come_from_no_partitioning_without_gathering_time() -> None:
    bare = ModelDemand(name="net", slo_us=15_000, weight=1.0)
    plan = make_plan(PROFILES, cluster(), workload(bare))
    # batch 4 takes 7.5 ms of the 9 ms allowed on a fast GPU, batch 1 just 9 ms on a slow one
    rate = 2 * 4 / 7.5e-3 + 4 * 1 / 9e-3
    assert plan.workload.models[0].batch_building_rate_rps == pytest.approx(rate)
    given = replace(bare, batch_building_rate_rps=rate)
    assert make_plan(PROFILES, cluster(), workload(given)).models == plan.models


def test_a_model_without_profile_is_refused_by_name() -> None:
    demand = ModelDemand(name="unknown", slo_us=15_000)
    with pytest.raises(InputError, match=r"'unknown'.*no profile"):
        make_plan(PROFILES, cluster(), workload(demand))


def test_least_cost_uses_the_cheapest_gpus_that_reach_the_rate() -> None:
    priced = cluster(fast_hourly_cost=10.0, slow_hourly_cost=1.0)
    demand = ModelDemand(name="net", slo_us=60_000, rate_rps=100.0, batch_building_rate_rps=1e9)
    plan = make_plan(PROFILES, priced, workload(demand), PlanOptions(objective="cost"))
    assert plan.objective.value == pytest.approx(1.0)
    assert plan.gpus_used == {"fast": 0, "slow": 1}
    assert verify_plan(plan, PROFILES) == []


def test_rates_that_a_plan_is_known_to_reach_are_never_called_out_of_reach() -> None:
    # Rounding the relaxation up does not fit these, so a first plan comes from the program alone.
    best = make_plan(PROFILES, cluster(), workload())
    priced = cluster(fast_hourly_cost=1.0, slow_hourly_cost=1.0)
    for share in (0.9, 0.95, 0.99):
        rate = share * best.models[0].throughput_rps
        demand = ModelDemand(
            name="net", slo_us=15_000, rate_rps=rate, weight=rate, batch_building_rate_rps=1e9
        )
        plan = make_plan(PROFILES, priced, workload(demand), PlanOptions(objective="cost"))
        assert plan.models[0].throughput_rps >= rate
        assert sum(plan.gpus_used.values()) <= sum(best.gpus_used.values())


def test_cost_without_prices_names_the_field() -> None:
    demand = ModelDemand(name="net", slo_us=60_000, rate_rps=100.0)
    with pytest.raises(InputError, match=r"gpu_classes\.fast\.hourly_cost"):
        make_plan(PROFILES, cluster(), workload(demand), PlanOptions(objective="cost"))


def test_a_stage_must_fit_the_memory_of_its_vgpu() -> None:
    heavy = replace(PROFILES["net"], block_memory_bytes=(6 * 2**30,) * 3)
    plan = make_plan({"net": heavy}, cluster(fast_memory_gib=13.0), workload())
    fast = [(s, pool) for _, _, s, pool in plan.placed_stages() if pool.gpu_class == "fast"]
    assert fast
    assert all(np.ptp(s.blocks) * 6 <= 13 * pool.share / WHOLE_GPU for s, pool in fast)


def test_rates_come_from_the_pool_plan_where_a_model_fits_no_gpu_as_a_whole() -> None:
    profiles = {
        "net": profile(),
        "parted": replace(profile("parted"), block_memory_bytes=(6 * 2**30,) * 3),
    }
    roomy = cluster(2, 4, fast_memory_gib=12, slow_memory_gib=12)
    asked = workload(
        ModelDemand(name="net", slo_us=30_000, weight=1.0),
        ModelDemand(name="parted", slo_us=30_000, weight=1.0),
    )
    plan = make_plan(profiles, roomy, asked)
    assert plan.options["batch_building_rates"] == "pool without gathering"
    assert all(m.batch_building_rate_rps for m in plan.workload.models)
    assert all(len(p.stages) > 1 for p in plan.model("parted").pipelines)
    assert verify_plan(plan, profiles) == []
    with pytest.raises(InfeasibleError, match="'parted'"):
        make_plan(profiles, roomy, asked, PlanOptions(planner="no-partitioning"))
    # Memory that others hold is as if it were not there.
    held = {"fast_taken_gib": 8, "slow_taken_gib": 28}
    beside = make_plan(
        profiles, cluster(2, 4, fast_memory_gib=20, slow_memory_gib=40, **held), asked
    )
    assert verify_plan(beside, profiles) == []
    assert beside.pools == plan.pools


def test_a_model_too_slow_in_any_form_is_named_with_its_best_latency() -> None:
    asked = workload(ModelDemand(name="net", slo_us=2_000, weight=1.0))
    with pytest.raises(InfeasibleError, match=r"'net': no pipeline of at most 2 stages.*3\.000 ms"):
        make_plan({"net": profile()}, cluster(), asked)


def test_only_measured_batches_are_planned() -> None:
    def planned_batches(known: ModelProfile) -> set[int]:
        plan = make_plan({"net": known}, cluster(), workload())
        assert verify_plan(plan, {"net": known}) == []
        return {pipeline.batch for pipeline in plan.models[0].pipelines}

    whole = profile()
    assert 1 in planned_batches(whole)
    fewer = [cell for cell in whole.cells() if cell.batch in {2, 4}]
    some, warnings = profile_from_cells("net", fewer, whole.boundary_bytes)
    assert warnings == []
    assert {table.batches[-1] for table in some.tables.values()} == {2, 4}
    assert planned_batches(some) <= {2, 4}
