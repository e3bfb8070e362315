from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from flows.planning import PlanOptions, make_plan
from flows.planning.verify.numbers import verify_plan
from flows.planning.verify.profiled import profiled_ratios
from tests.fakes.applications import hand_application, hand_module, with_applications
from tests.fakes.plans import hand_model, hand_pipeline, hand_plan, hand_stage
from tests.fakes.unequal_shares import example
from tests.flows.planning.small import cluster, profile, workload
from triton_backend.contract.cluster import GpuClass, NodeGroup
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import (
    PlacementRun,
    Plan,
    PoolInterference,
    SeatInterference,
    StageMemory,
)
from triton_backend.contract.profiles import loaded
from triton_backend.contract.shares import WHOLE_GPU
from triton_backend.contract.workload import ModelDemand, Workload

PROFILES = {"net": profile()}
DEMAND = ModelDemand(name="net", slo_us=12_000, weight=1.0, batch_building_rate_rps=1e9)


def planned() -> Plan:
    """A plan with a pipeline of two stages."""
    plan = make_plan(PROFILES, cluster(), workload(DEMAND), PlanOptions())
    assert max(len(p.stages) for p in plan.models[0].pipelines) == 2
    return plan


def edited(change: Callable[[dict[str, Any]], None]) -> Plan:
    """The plan with its file form changed by hand."""
    data = planned().to_dict()
    change(data)
    return Plan.from_dict(data)


def two_stages(data: dict[str, Any]) -> dict[str, Any]:
    """The file form of its pipeline of two stages."""
    return next(p for p in data["models"][0]["pipelines"] if len(p["stages"]) == 2)


def faster(data: dict[str, Any]) -> None:
    two_stages(data)["throughput_rps"] *= 1.01


def shorter(data: dict[str, Any]) -> None:
    two_stages(data)["stages"][0]["latency_us"] -= 100


def free_transfer(data: dict[str, Any]) -> None:
    two_stages(data)["stages"][0]["transfer_us"] = 0


def better(data: dict[str, Any]) -> None:
    data["objective"]["value"] *= 1.01


def bound_below(data: dict[str, Any]) -> None:
    data["objective"]["upper_bound"] *= 0.9


def fewer_gpus(data: dict[str, Any]) -> None:
    data["gpus_used"]["fast"] -= 1


def wrong_class(data: dict[str, Any]) -> None:
    pool = next(pool for pool in data["pools"] if pool["gpu_class"] == "slow")
    pool["placement"][0] = {"node": "fast-0", "gpu": 0, "slot": 0}


def slot_twice(data: dict[str, Any]) -> None:
    first, second = [pool for pool in data["pools"] if pool["gpu_class"] == "fast"]
    second["placement"][0] = first["placement"][0]


def tight_slo(data: dict[str, Any]) -> None:
    data["models"][0]["slo_us"] = 6_000
    data["workload"]["models"][0]["slo_ms"] = 6.0


def other_slo(data: dict[str, Any]) -> None:
    data["models"][0]["slo_us"] = 99_000


def no_margin(data: dict[str, Any]) -> None:
    data["options"]["slo_margin"] = "none"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("slo_margin", -4.0),
        ("slo_margin", None),
        ("slo_margins", {"net": -4.0}),
        ("slo_margins", {"net": "much"}),
        ("slo_margins", 0.4),
        ("pipeline_margin", -1),
        ("utilisation", 2.0),
        ("utilisation", "all"),
        ("minimum_rps", [10]),
        ("minimum_rps", {"net": "many"}),
        ("max_partitions", "two"),
    ],
)
def test_an_option_that_no_planner_takes_is_found_and_excuses_nothing(
    name: str, value: object
) -> None:
    def changed(data: dict[str, Any]) -> None:
        data["options"][name] = value
        tight_slo(data)

    (said,) = verify_plan(edited(changed), PROFILES)
    assert said.startswith(f"options: {name}")


def test_the_price_paid_is_that_of_the_gpus_that_are_on() -> None:
    priced = cluster(fast_hourly_cost=2.5, slow_hourly_cost=1.0)
    plan = make_plan(PROFILES, priced, workload(DEMAND), PlanOptions())
    on = plan.gpus_used
    assert plan.price_paid == pytest.approx(2.5 * on["fast"] + on["slow"])
    assert verify_plan(plan, PROFILES) == []
    data = plan.to_dict()
    assert data["price_paid"] == plan.price_paid
    cheaper = Plan.from_dict({**data, "price_paid": data["price_paid"] - 1})
    assert any("price_paid" in said for said in verify_plan(cheaper, PROFILES))
    # A plan stored before prices were stated is still read and verified.
    without = Plan.from_dict({k: v for k, v in data.items() if k != "price_paid"})
    assert without.price_paid is None
    assert verify_plan(without, PROFILES) == []


def test_a_plan_on_gpus_without_a_price_states_none() -> None:
    assert planned().price_paid is None
    assert "price_paid" not in planned().to_dict()


@pytest.mark.parametrize(
    ("off", "said"), [((0, 0), []), ((-7, 0), ["memory_bytes are"]), ((0, 9), ["memory_bytes are"])]
)
def test_memory_that_is_not_the_profiles_is_found(off: tuple[int, int], said: list[str]) -> None:
    known = {"net": replace(PROFILES["net"], block_memory_bytes=(7,) * PROFILES["net"].blocks)}

    def stated(data: dict[str, Any]) -> None:
        stage = two_stages(data)["stages"][0]
        blocks = stage["blocks"][1] - stage["blocks"][0]
        stage["memory_bytes"] = {"static": 7 * blocks + off[0], "dynamic": off[1]}

    found = verify_plan(edited(stated), known)
    assert [text.split(": ")[-1][:16] for text in found] == said


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (faster, "throughput_rps"),
        (shorter, "latency_us"),
        (free_transfer, "transfer_us"),
        (better, "objective value"),
        (bound_below, "contradicts"),
        (fewer_gpus, "gpus_used"),
        (tight_slo, "SLO less margin allow"),
        (other_slo, "not those of the workload"),
        (no_margin, "slo_margin"),
    ],
)
def test_a_number_changed_by_hand_is_found_without_profiles(
    change: Callable[[dict[str, Any]], None], said: str
) -> None:
    assert any(said in text for text in verify_plan(edited(change)))


@pytest.mark.parametrize(
    ("change", "said"),
    [(wrong_class, "no such GPU of class slow"), (slot_twice, "stands in pools")],
)
def test_a_place_changed_by_hand_cannot_be_read(
    change: Callable[[dict[str, Any]], None], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        edited(change)


def test_latencies_and_bytes_are_compared_with_the_profiles() -> None:
    other = {"net": profile(fast_us=(1000, 1001, 1000), boundary_bytes=(1000, 2000))}
    found = verify_plan(planned(), other)
    assert any(text.endswith("profiled 3001 µs") for text in found)


def test_a_pool_has_the_ratio_to_its_profile_that_is_furthest_from_one() -> None:
    plan = planned()
    assert profiled_ratios(plan, PROFILES) == {pool.name: 1.0 for pool in plan.pools}
    slow = {"net": profile(slowdown=6.0)}
    assert profiled_ratios(plan, slow) == {
        pool.name: 2.0 if pool.gpu_class == "slow" else 1.0 for pool in plan.pools
    }
    tables = {key: table for key, table in profile().tables.items() if key.gpu_class == "slow"}
    unmeasured = replace(profile(), tables=tables)
    assert {pool.gpu_class for pool in plan.pools} == {"fast", "slow"}
    assert set(profiled_ratios(plan, {"net": unmeasured})) == {
        pool.name for pool in plan.pools if pool.gpu_class == "slow"
    }


def test_batches_that_a_table_has_beyond_the_profile_are_found() -> None:
    place = PlacementRun(node=0, gpu=0, slot=0)
    stage = hand_stage((0, 3), "fast", place, (3_000, 4_500), batch=1)
    model = hand_model("net", hand_pipeline(stage, batch=1), slo_us=20_000)
    plan = hand_plan(model, nodes=[NodeGroup(count=1, gpu_class="fast", gpus=1, nic_gbps=10.0)])
    short = replace(profile(), tables=loaded({("fast", 1): np.full((3, 1), 1_000.0)}))
    (text,) = [text for text in verify_plan(plan, {"net": short}) if "measured" in text]
    assert text.endswith("batch 1 was not measured on 1/1 of fast")


def alone(latency_us: tuple[int, ...], *, slo_us: int = 10_000, **stage: Any) -> Plan:
    """A model of one block that has a GPU for itself, in batches as large as its table."""
    place = PlacementRun(node=0, gpu=0, slot=0)
    pipeline = hand_pipeline(
        hand_stage((0, 1), "G", place, latency_us, **stage), batch=len(latency_us)
    )
    nodes = [NodeGroup(count=1, gpu_class="G", gpus=1, nic_gbps=10.0)]
    return hand_plan(hand_model("m", pipeline, slo_us=slo_us), nodes=nodes)


@pytest.mark.parametrize(
    ("latency_us", "found"), [((6_000,), False), ((6_000, 6_000), True)], ids=["one", "two"]
)
def test_a_batch_of_one_that_has_its_gpu_for_itself_waits_for_no_turn(
    latency_us: tuple[int, ...], *, found: bool
) -> None:
    plan = alone(latency_us, duty_cycle_us=6_000)
    said = "duty cycle and turn take 12000 µs of 10000 µs"
    assert any(said in text for text in verify_plan(plan)) == found
    assert not any("turns take" in text for text in verify_plan(plan))  # its cycle is one turn
    assert not any("its pools deliver" in text for text in verify_plan(plan))
    fuller = alone(latency_us, duty_cycle_us=5_999)
    assert any("turns take 6000 µs of a duty cycle of 5999" in text for text in verify_plan(fuller))


@pytest.mark.parametrize(("latency_us", "found"), [(9_000, False), (9_001, True)])
def test_what_runs_only_in_an_overflow_leaves_a_quarter_of_the_margin(
    latency_us: int, *, found: bool
) -> None:
    plan = alone((latency_us,))
    (model,) = plan.models
    models = (replace(model, pipelines=(replace(model.pipelines[0], throughput_rps=0.0),)),)
    options = {"slo_margin": 0.4, "overflow": True}
    said = verify_plan(replace(plan, models=models, options=options))
    assert any("SLO less margin allow" in text for text in said) == found


def test_the_price_of_what_is_occupied_is_a_part_of_the_gpus_price() -> None:
    plan = alone((1_000,))
    (model,) = plan.models
    half = replace(model.pipelines[0], occupied_vgpus=0.5)
    kind = replace(plan.cluster.gpu_classes[0], hourly_cost=3.0)
    paid = replace(plan.objective, name="cost", value=1.5, upper_bound=1.5, gap=0.0)
    priced = replace(
        plan,
        options={"billing": "occupancy"},
        objective=paid,
        cluster=replace(plan.cluster, gpu_classes=(kind,)),
        models=(replace(model, pipelines=(half,)),),
    )
    assert not any("objective value" in text for text in verify_plan(priced))
    dearer = replace(priced, objective=replace(paid, value=3.0, upper_bound=3.0))
    assert any("objective value" in text for text in verify_plan(dearer))
    beyond = replace(priced, objective=replace(paid, upper_bound=1.6))  # no plan is cheaper
    assert any("contradicts" in text for text in verify_plan(beyond))
    assert not any("contradicts" in text for text in verify_plan(priced))


@pytest.mark.parametrize("gathering", ["dt", "2d", "tc-tail"])
def test_a_batch_of_a_gpu_that_is_paid_in_part_fills_as_slowly_as_is_paid(gathering: str) -> None:
    """A tenth of it pays for 400 rows/s: 10 ms for a batch of four, of which the SLO has 8."""
    plan = alone((1_000,) * 4, slo_us=8_000)
    (model,) = plan.models
    pipeline = replace(model.pipelines[0], occupied_vgpus=0.1, throughput_rps=400.0)
    paid = replace(
        plan,
        options={**plan.options, "gathering": gathering},
        models=(replace(model, pipelines=(pipeline,), throughput_rps=400.0),),
    )
    found = verify_plan(paid)
    assert any("SLO less margin allow" in text for text in found)
    assert not any("occupies" in text for text in found)
    unpaid = replace(pipeline, occupied_vgpus=None)
    nothing = replace(paid, models=(replace(model, pipelines=(unpaid,), throughput_rps=400.0),))
    assert any("its occupied_vgpus are needed" in text for text in verify_plan(nothing))
    (stage,) = pipeline.stages
    instant = replace(pipeline, stages=(replace(stage, latency_us=0),))
    no_time = replace(paid, models=(replace(model, pipelines=(instant,), throughput_rps=400.0),))
    assert any("a stage takes no time" in text for text in verify_plan(no_time))
    more = replace(pipeline, occupied_vgpus=1.1)
    beyond = replace(paid, models=(replace(model, pipelines=(more,), throughput_rps=400.0),))
    assert any("occupies 1.1 vGPUs, its pool has 1" in text for text in verify_plan(beyond))


@pytest.mark.parametrize(("least_us", "found"), [(8_000, True), (11_000, False)])
def test_of_modules_that_share_a_model_the_least_budget_holds(
    least_us: int, *, found: bool
) -> None:
    """Batches of four fill in 10 ms and run in one."""
    plan = alone((1_000,) * 4, slo_us=least_us)
    (model,) = plan.models
    pipeline = replace(model.pipelines[0], occupied_vgpus=0.1, throughput_rps=400.0)
    users = [
        hand_application(name, [hand_module("only", "m")], budgets_us={"only": budget_us})
        for name, budget_us in (("first", least_us), ("second", 50_000))
    ]
    shared = replace(
        with_applications(plan, *users),
        options={**plan.options, "gathering": "dt"},
        models=(replace(model, pipelines=(pipeline,), throughput_rps=400.0),),
        workload=Workload(models=(), applications=tuple(user.application for user in users)),
    )
    assert any("SLO less margin allow" in text for text in verify_plan(shared)) == found
    much = replace(shared, options={**shared.options, "slo_margins": {"first": "much"}})
    (said,) = verify_plan(much)
    assert said.startswith("options: slo_margins")


def test_what_the_last_stage_would_send_takes_no_uplink() -> None:
    """At 10 MB a sample the link would carry an eighth of the rate."""
    assert verify_plan(alone((1_000,), boundary_bytes_per_sample=10_000_000)) == verify_plan(
        alone((1_000,))
    )


def test_a_pool_may_feel_exactly_what_the_others_press() -> None:
    plan = alone((1_000,))
    seat = SeatInterference(susceptibility=1.0, pressure=0.1, factor=1.0)
    nobody_else = PoolInterference(pressure=0.1, felt=0.0, inflation=1.0, seats=(seat,))
    (pool,) = plan.pools
    stated = replace(plan, pools=(replace(pool, interference=nobody_else),))
    assert not any("interference" in text for text in verify_plan(stated))


def test_the_price_in_shares_counts_every_vgpu_of_a_pool() -> None:
    plan = planned()
    held = sum(pool.share * len(list(pool.slots())) for pool in plan.pools) / WHOLE_GPU * 100
    objective = replace(plan.objective, name="share", value=held, upper_bound=held, gap=0.0)
    priced = replace(plan, objective=objective)
    assert max(pool.vgpus for pool in plan.pools) > 1
    assert not any("objective value" in text for text in verify_plan(priced))


def test_a_pool_that_starts_anywhere_may_run_a_model_of_one_block() -> None:
    """It has one stage then."""
    plan = alone((1_000,))
    (pool,) = plan.pools
    anywhere = replace(plan, pools=(replace(pool, starts_anywhere=True),))
    assert [text for text in verify_plan(anywhere) if "anywhere" in text] == []


def test_a_plan_of_unequal_shares_written_by_hand_holds() -> None:
    assert verify_plan(Plan.from_dict(example())) == []


def test_blocks_left_out_are_found() -> None:
    longer = {"net": profile(fast_us=(1000,) * 4, boundary_bytes=(1000,) * 3)}
    assert any("covers 3 blocks of 4" in text for text in verify_plan(planned(), longer))


def test_the_uplink_of_the_last_but_one_stage_limits_its_rate() -> None:
    uplink_gbps, size = 0.01, 4_000
    roomy = cluster(1, 1, fast_memory_gib=13.0, slow_memory_gib=13.0)
    narrow = replace(roomy, nodes=(replace(roomy.nodes[0], nic_gbps=uplink_gbps), roomy.nodes[1]))
    parted = replace(
        profile(fast_us=(4000, 1000, 1000), slowdown=1.5, boundary_bytes=(size, size)),
        block_memory_bytes=(6 * 2**30,) * 3,
    )
    asked = workload(replace(DEMAND, slo_us=60_000))
    plan = make_plan({"net": parted}, narrow, asked)
    (pipeline,) = plan.models[0].pipelines
    assert [plan.pool_of(s).gpu_class for s in pipeline.stages] == ["fast", "slow"]
    assert pipeline.throughput_rps == pytest.approx(uplink_gbps * 1e9 / (8 * size))
    assert verify_plan(plan, {"net": parted}) == []


def cut_plan() -> Plan:
    """Two models on a GPU cut into 20 and 80 percent."""
    models = [
        hand_model(
            f"m{slot}",
            hand_pipeline(
                hand_stage(
                    (0, 1),
                    "G",
                    PlacementRun(node=0, gpu=0, slot=slot),
                    (1_000,),
                    vgpu_divisor=2,
                    memory=StageMemory(static=2**30, dynamic=0),
                ),
                batch=1,
            ),
            slo_us=10_000,
        )
        for slot in (0, 1)
    ]
    plan = hand_plan(*models, nodes=[NodeGroup(count=1, gpu_class="G", gpus=1, nic_gbps=10.0)])
    kind = GpuClass(name="G", vgpu_divisors=(), vgpu_percents=(20, 80), partitions=((20, 80),))
    return replace(
        plan,
        cluster=replace(plan.cluster, gpu_classes=(kind,)),
        pools=tuple(
            replace(pool, share=3 * percent)
            for pool, percent in zip(plan.pools, (20, 80), strict=True)
        ),
    )


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({}, ""),
        ({"memory_gib": 2.0}, ""),  # just enough
        ({"memory_gib": 1.5}, "GPU (0, 0): 2 GiB needed, it has 1.5"),
        ({"memory_gib": 4.0, "taken_gib": 2.0}, ""),
        ({"memory_gib": 4.0, "taken_gib": 2.5}, "GPU (0, 0): 2 GiB needed, it has 1.5"),
        ({"max_vgpus_per_gpu": 1}, "GPU (0, 0): 2 vGPUs, 1 allowed"),
        (
            {"vgpu_percents": (20, 50, 80), "partitions": ((50, 50),)},
            "GPU (0, 0): cut into [20.0, 80.0], no such partition is listed",
        ),
    ],
)
def test_how_a_gpu_is_cut_is_derived_again(changed: dict[str, Any], text: str) -> None:
    plan = cut_plan()
    kind = replace(plan.cluster.gpu_classes[0], **changed)
    object.__setattr__(plan.cluster, "gpu_classes", (kind,))  # behind the back of the form's checks
    assert [found for found in verify_plan(plan) if found.startswith("GPU")] == [text] * bool(text)


def test_links_that_carry_too_much_are_named_by_node_and_direction() -> None:
    """Both ends of the one transfer of a plan whose links became slower after it was made."""
    plan = planned()
    slow = tuple(replace(group, nic_gbps=1e-6) for group in plan.cluster.nodes)
    found = verify_plan(replace(plan, cluster=replace(plan.cluster, nodes=slow)))
    said = {text.split(" carries")[0] for text in found if " carries" in text}
    (pipeline,) = [p for p in plan.models[0].pipelines if len(p.stages) == 2]
    ends = zip(pipeline.stages, ("uplink", "downlink"), strict=True)
    expected = {
        f"{plan.cluster.node_name(slot.node)}: {what}"
        for stage, what in ends
        for slot in plan.pool_of(stage).slots()
    }
    assert said == expected


def test_a_batch_in_turn_waits_for_one_turn_of_its_pipeline() -> None:
    """Four requests at 1,000 requests/s take 4 ms to come, and 1 ms to run: of 4.5 ms too much."""
    plan = replace(alone((1_000,) * 4, slo_us=4_500), options={})
    (model,) = plan.models
    pipeline = replace(model.pipelines[0], throughput_rps=1_000.0)
    models = (replace(model, pipelines=(pipeline,), throughput_rps=1_000.0),)
    said = "takes 1.000 ms and gathers 4.000 ms"
    for waits, found in (("turn", True), ("gathering", False), ("margin", False)):
        stated = replace(plan, models=models, waits=waits)
        assert any(said in text for text in verify_plan(stated)) == found
    utilised = replace(plan, models=models, options={"utilisation": 0.1}, waits="turn")
    assert any("0.1 of 1" in text for text in verify_plan(utilised))
    ignored = replace(utilised, waits="gathering")
    assert not any("0.1 of 1" in text for text in verify_plan(ignored))


def test_a_batch_gathers_at_the_rate_of_the_workload_unless_the_margin_pays() -> None:
    plan = alone((1_000,) * 4, slo_us=4_500)
    demand = replace(plan.workload.models[0], batch_building_rate_rps=1_000.0)
    slow = replace(plan, workload=replace(plan.workload, models=(demand,)))
    for waits, found in (("gathering", True), ("margin", False)):
        stated = replace(slow, waits=waits)
        assert any("gathers 3.900 ms" in text for text in verify_plan(stated)) == found
