"""Profiles, cluster and workload as arrays, against numbers worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest

from flows.planning import PlanOptions
from flows.planning.inputs import (
    ALIKE,
    EVERY,
    Problem,
    build_problem,
    gpu_gib,
    gpu_price,
    gpu_prices,
    latencies_us,
    limits_us,
    link_rps,
    model_bytes,
    moves_us,
    part_gib,
    profile_of,
    require_rates,
    room_gib,
    stage_memory,
    unlike_weights,
)
from flows.planning.registry import Inputs
from tests.flows.planning.small import cluster, profile, workload
from triton_backend.contract.cluster import Cluster, GpuClass, NodeGroup
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import BYTES_PER_GIB, StageMemory
from triton_backend.contract.profiles import ModelProfile, ProfileKey, ProfileTable
from triton_backend.contract.shares import SOLO, WHOLE_GPU, Mig, MigCell, mig_share
from triton_backend.contract.workload import ModelDemand, Workload

PRICED = GpuClass(name="G", hourly_cost=2.5, power_w=300.0)
HALF, THIRD, FIFTH = 150, 100, 60
HEAVY = replace(
    profile(),
    block_memory_bytes=(BYTES_PER_GIB, 2 * BYTES_PER_GIB, 0),
    block_workspace_bytes=(0, BYTES_PER_GIB, BYTES_PER_GIB // 2),
)


@pytest.mark.parametrize(
    ("objective", "price"),
    [("cost", 2.5), ("power", 300.0), ("share", 100.0), ("gpus", 1.0), ("throughput", 1.0)],
)
def test_a_gpu_counts_its_price_its_watts_its_percents_or_one(objective: str, price: float) -> None:
    assert gpu_price(PRICED, objective) == price


@pytest.mark.parametrize(("objective", "field"), [("cost", "hourly_cost"), ("power", "power_w")])
def test_a_price_that_is_missing_is_named(objective: str, field: str) -> None:
    with pytest.raises(InputError, match=f"^gpu_classes.slow.{field}: .*objective '{objective}'"):
        gpu_prices(cluster(fast_hourly_cost=2.0, fast_power_w=300.0), objective)


def test_prices_are_in_the_order_of_the_classes() -> None:
    priced = cluster(slow_hourly_cost=0.5, fast_hourly_cost=2.0)
    assert gpu_prices(priced, "cost").tolist() == [2.0, 0.5]


def test_equal_parts_have_their_part_of_the_memory_and_percents_share_it() -> None:
    parted = GpuClass(name="G", vgpu_divisors=(1, 3), memory_gib=12.0, process_memory_gib=0.5)
    shared = replace(parted, vgpu_divisors=(), vgpu_percents=(20, 100))
    assert (part_gib(parted, THIRD), room_gib(parted, THIRD)) == (4.0, 3.5)
    assert (part_gib(shared, FIFTH), room_gib(shared, FIFTH)) == (np.inf, 11.5)
    held = [replace(each, memory_gib=14.0, taken_gib=2.0) for each in (parted, shared)]
    assert (room_gib(held[0], THIRD), room_gib(held[1], FIFTH)) == (3.5, 11.5)
    bare = replace(shared, memory_gib=None)
    assert gpu_gib(bare) == room_gib(bare, FIFTH) == np.inf


def test_a_part_of_a_slice_has_its_part_of_the_memory_of_the_slice() -> None:
    sliced = GpuClass(name="G", vgpu_divisors=(), mig=Mig(card="A100-40GB", processes=2))
    assert part_gib(sliced, mig_share(MigCell(2, 1))) == 9.75
    assert room_gib(replace(sliced, process_memory_gib=0.25), mig_share(MigCell(2, 2))) == 4.625


def test_latencies_are_sums_over_blocks_rounded_up_where_a_batch_was_measured() -> None:
    table = ProfileTable(
        latency_us=np.array([[1.5, 2.0, 2.0], [1.2, 3.0, 3.25], [4.0, 5.0, 6.0]]), measured=(1, 3)
    )
    found = latencies_us(table)
    assert found.shape == (4, 4, 3)
    assert found[0, 2].tolist() == [3, np.inf, 6]
    assert found[0, 3].tolist() == [7, np.inf, 12]
    assert found[1, 2].tolist() == [2, np.inf, 4]
    assert np.isinf(found[np.tril_indices(4)]).all()


def test_vgpus_of_a_node_divide_its_nic() -> None:
    sent = replace(profile(), boundary_bytes=(1000, 0))
    nodes = (NodeGroup(count=1, gpu_class="fast", gpus=4, nic_gbps=8),)
    rates = link_rps(sent, replace(cluster(), nodes=nodes), "fast", HALF)
    assert rates.tolist() == [np.inf, 8e9 / 8 / 8000, np.inf, np.inf]


def test_moves_take_whole_microseconds() -> None:
    assert moves_us(1001, [1, 2, 4], 8.0).tolist() == [2, 3, 5]


def test_a_stage_takes_all_its_weights_and_the_largest_workspace() -> None:
    assert stage_memory(HEAVY, (1, 3)) == StageMemory(
        static=2 * BYTES_PER_GIB, dynamic=BYTES_PER_GIB
    )
    assert stage_memory(profile(), (0, 3)) is None


def test_models_of_which_nothing_is_known_count_nothing() -> None:
    static, dynamic = model_bytes([HEAVY, profile()])
    assert (static / BYTES_PER_GIB).tolist() == [3.0, 0.0]
    assert (dynamic / BYTES_PER_GIB).tolist() == [1.0, 0.0]


def test_limits_are_slos_less_the_margin_of_each_model() -> None:
    demands = [ModelDemand(name=name, slo_us=10_000, weight=1.0) for name in ("a", "b")]
    options = PlanOptions(slo_margin=0.5, slo_margins={"b": 0.25})
    assert limits_us(demands, options).tolist() == [5_000, 7_500]


def test_a_model_without_a_profile_is_named_with_those_that_have_one() -> None:
    with pytest.raises(InputError, match=r"^workload model 'other': no profile; known: net$"):
        profile_of({"net": profile()}, "other")
    with pytest.raises(InputError, match=r"known: none$"):
        profile_of({}, "net")


def test_all_objectives_but_throughput_need_rates() -> None:
    require_rates(workload(), "throughput")
    with pytest.raises(InputError, match="'net', rate_rps: needed for the objective 'cost'"):
        require_rates(workload(), "cost")
    require_rates(workload(ModelDemand(name="net", slo_us=1, weight=1.0, rate_rps=1.0)), "cost")


def test_models_without_a_rate_beside_rates_are_named() -> None:
    rare = ModelDemand(name="rare", slo_us=1)
    asked = replace(rare, name="asked", rate_rps=300.0)
    (warning,) = unlike_weights(workload(asked, rare), "throughput")
    assert warning.startswith("rare: without weight and rate_rps, counts as 1 beside 300 of asked")
    weighed = replace(asked, weight=2.0)
    assert not unlike_weights(workload(weighed, rare), "throughput")  # weights are shares
    assert not unlike_weights(workload(asked), "throughput")
    assert not unlike_weights(workload(asked, rare), "cost")  # which asks for every rate


def test_entries_state_the_rates_of_their_model_and_applications_their_own() -> None:
    entry = {"name": "in", "block": 0, "budget_ms": 10, "rate_rps": 5}
    module = {"name": "m", "model": "net", "rows_per_request": 1, "max_rows": 1}
    listed = {"name": "net", "slo_ms": 10, "entries": [entry]}
    asked = {"name": "app", "slo_ms": 10, "weight": 1, "modules": [module]}
    require_rates(Workload.from_dict({"models": [listed]}), "share")
    with pytest.raises(InputError, match=r"application 'app'.rate_rps: needed for .* 'cost'"):
        require_rates(Workload.from_dict({"applications": [asked]}), "cost")


def problem(
    given: ModelProfile, on: Cluster, options: PlanOptions, percents: int = ALIKE
) -> Problem:
    inputs = Inputs(profiles={"net": given}, cluster=on, workload=workload(), options=options)
    return build_problem(inputs, percents=percents)


def test_a_problem_holds_every_model_on_every_type_that_it_was_measured_on() -> None:
    made = problem(profile(), cluster(), PlanOptions(slo_margin=0.4))
    net = made.models[0]
    assert made.types == ((0, 1), (0, 2), (1, 1))
    assert made.shares == (WHOLE_GPU, HALF, WHOLE_GPU)
    assert (made.gpus.tolist(), net.types.tolist()) == ([2, 4], [0, 1, 2])
    assert net.latency_us[0, 0, 3].tolist() == [3000, 4500, 6000, 7500]
    assert net.latency_us[1, 1, 2].tolist() == [1800, 2700, np.inf, np.inf]
    assert net.limit_us == pytest.approx(9_000, abs=1)
    assert not net.unlinked.any()


def test_types_that_a_model_may_not_use_are_left_out() -> None:
    options = PlanOptions(excluded_classes={"*": ("fast",)})
    assert problem(profile(), cluster(), options).models[0].types.tolist() == [2]
    with pytest.raises(InputError, match="model 'net' may use no GPU class of the cluster"):
        problem(profile(), cluster(), replace(options, allowed_classes={"net": ("fast",)}))


def test_a_stage_that_does_not_fit_the_memory_of_its_part_is_left_out() -> None:
    classes = (
        GpuClass(name="fast", vgpu_divisors=(1, 2), memory_gib=6.0),
        GpuClass(name="slow", vgpu_divisors=(1,), memory_gib=3.5),
    )
    net = problem(HEAVY, replace(cluster(), gpu_classes=classes), PlanOptions()).models[0]
    fits = np.isfinite(net.latency_us[:, :, :, 0])
    stages = {row: set(map(tuple, np.argwhere(fits[row]).tolist())) for row in range(3)}
    every = {(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)}
    assert stages == {0: every, 1: every - {(0, 2), (0, 3)}, 2: every - {(0, 2), (0, 3)}}


def test_boundaries_move_at_the_slower_nic() -> None:
    nodes = (
        NodeGroup(count=1, gpu_class="fast", gpus=1, nic_gbps=10),
        NodeGroup(count=1, gpu_class="slow", gpus=1, nic_gbps=1),
    )
    net = problem(profile(), replace(cluster(), nodes=nodes), PlanOptions()).models[0]
    assert net.transfer_us[:, :, 1, 1].tolist() == [[2, 16], [16, 16]]
    assert not net.transfer_us[:, :, [0, 3]].any()


def test_percents_are_all_there_or_the_largest_of_as_many_on_a_gpu() -> None:
    parts = GpuClass(name="G", vgpu_divisors=(), vgpu_percents=(40, 50, 100))
    nodes = (NodeGroup(count=1, gpu_class="G", gpus=1, nic_gbps=10),)
    on = Cluster(name="parts", gpu_classes=(parts,), nodes=nodes)
    measured = ProfileTable(latency_us=np.full((1, 2), 1000.0))
    keys = [ProfileKey("G", 3 * percent, SOLO) for percent in parts.vgpu_percents]
    given = ModelProfile(name="net", boundary_bytes=(), tables=dict.fromkeys(keys, measured))
    alike, every = (problem(given, on, PlanOptions(), percents) for percents in (ALIKE, EVERY))
    assert (alike.types, alike.shares) == (((0, 1), (0, 2)), (300, 150))
    assert (every.types, every.shares) == (((0, 1), (0, 2), (0, 2)), (300, 150, 120))
    assert every.models[0].unlinked.tolist() == [False, False, True]
