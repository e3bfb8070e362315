"""Clusters: counts, names, checks."""

from typing import Any

import pytest

from triton_backend.contract.cluster import NIC_GBPS, Cluster, GpuClass, NodeGroup
from triton_backend.contract.errors import InputError
from triton_backend.contract.shares import WHOLE_GPU, Mig

CLUSTER = Cluster(
    name="c",
    gpu_classes=(
        GpuClass(name="A", vgpu_divisors=(1, 2), memory_gib=24, taken_gib=2.5, hourly_cost=0.7),
        GpuClass(name="B"),
    ),
    nodes=(
        NodeGroup(count=2, gpu_class="A", gpus=4, nic_gbps=10),
        NodeGroup(count=1, gpu_class="A", gpus=1, nic_gbps=6),
        NodeGroup(count=3, gpu_class="B", gpus=2, nic_gbps=5, name="low"),
    ),
)


def test_gpus_and_links_are_counted_per_class() -> None:
    assert (CLUSTER.gpus("A"), CLUSTER.gpus("B"), CLUSTER.gpus("C")) == (9, 6, 0)
    assert (CLUSTER.max_gpus_per_node("A"), CLUSTER.nic_gbps("A")) == (4, 6)
    assert (CLUSTER.max_gpus_per_node("C"), CLUSTER.nic_gbps("C")) == (0, 0.0)
    assert CLUSTER.node_count == 6


def test_every_node_has_a_name_of_its_own() -> None:
    names = [CLUSTER.node_name(node) for node in range(CLUSTER.node_count)]
    assert names == ["A-0", "A-1", "A.1", "low-0", "low-1", "low-2"]
    assert [CLUSTER.node_index(name) for name in names] == list(range(6))
    assert CLUSTER.node_group_of(5).gpu_class == "B"


@pytest.mark.parametrize("name", ["A-2", "A", "low", "low-3", "nonsense"])
def test_a_node_that_does_not_exist_is_named(name: str) -> None:
    with pytest.raises(InputError, match=f"no node named '{name}'"):
        CLUSTER.node_index(name)


@pytest.mark.parametrize("node", [6, 100])
def test_a_node_number_too_high_is_named(node: int) -> None:
    with pytest.raises(InputError, match=f"no node {node}"):
        CLUSTER.node_name(node)
    with pytest.raises(InputError, match=f"no node {node}"):
        CLUSTER.node_group_of(node)


def test_the_plain_form_goes_there_and_back() -> None:
    assert Cluster.from_dict(CLUSTER.to_dict()) == CLUSTER


def test_classes_must_be_known_and_distinct() -> None:
    with pytest.raises(InputError, match="'C' is not one of the gpu_classes"):
        Cluster(
            name="c",
            gpu_classes=(GpuClass(name="A"),),
            nodes=(NodeGroup(count=1, gpu_class="C", gpus=1, nic_gbps=1),),
        )
    with pytest.raises(InputError, match="listed twice"):
        Cluster(name="c", gpu_classes=(GpuClass(name="A"), GpuClass(name="A")), nodes=())
    with pytest.raises(InputError, match="no GPU class 'Z'"):
        CLUSTER.gpu_class("Z")


def test_gpus_of_a_node_may_be_named_as_cuda_calls_them() -> None:
    group = NodeGroup(count=1, gpu_class="A", gpus=2, nic_gbps=1, devices=("MIG-a", "MIG-b"))
    named = Cluster(name="c", gpu_classes=(GpuClass(name="A"),), nodes=(group,))
    assert Cluster.from_dict(named.to_dict()) == named
    assert [group.device(gpu) for gpu in (0, 1)] == ["MIG-a", "MIG-b"]
    assert CLUSTER.nodes[0].device(3) == "3"
    assert "devices" not in CLUSTER.to_dict()["nodes"][0]


@pytest.mark.parametrize(("count", "devices"), [(2, ("a", "b")), (1, ("a",)), (1, ("a", "a"))])
def test_gpu_names_must_be_one_per_gpu_of_one_node(count: int, devices: tuple[str, ...]) -> None:
    with pytest.raises(InputError, match="devices"):
        NodeGroup(count=count, gpu_class="A", gpus=2, nic_gbps=1, devices=devices)


def test_node_names_must_be_distinct() -> None:
    group = NodeGroup(count=1, gpu_class="A", gpus=1, nic_gbps=1, name="same")
    with pytest.raises(InputError, match="node name used twice"):
        Cluster(name="c", gpu_classes=(GpuClass(name="A"),), nodes=(group, group))


@pytest.mark.parametrize("divisors", [(), (0,), (5,), (1, 1)])
def test_divisors_are_one_to_four(divisors: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="vgpu_divisors"):
        GpuClass(name="A", vgpu_divisors=divisors)


def test_numbers_must_be_positive() -> None:
    with pytest.raises(InputError, match="hourly_cost"):
        GpuClass(name="A", hourly_cost=0)
    with pytest.raises(InputError, match="nic_gbps"):
        NodeGroup(count=1, gpu_class="A", gpus=1, nic_gbps=0)


def test_memory_that_others_hold_is_no_plans() -> None:
    held = GpuClass(name="A", memory_gib=24, taken_gib=8)
    assert (held.usable_gib, GpuClass(name="A", memory_gib=24).usable_gib) == (16, 24)
    assert GpuClass(name="A").usable_gib is None
    sliced = Mig(card="A100-40GB")
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"taken_gib": 8}, "gpu_classes.A.taken_gib: needs memory_gib, of which it is a part"),
        ({"taken_gib": 24, "memory_gib": 24}, "24 of 24 GiB leaves nothing to plan with"),
        ({"taken_gib": 0, "memory_gib": 24}, "gpu_classes.A.taken_gib: 0 is not positive"),
        ({"taken_gib": 5, "mig": sliced, "vgpu_divisors": ()}, "slices have memory of their own"),
    ]
    for given, reason in wrong:
        with pytest.raises(InputError, match=reason):
            GpuClass(name="A", **given)


@pytest.mark.parametrize("nic_gbps", NIC_GBPS)
def test_the_slowest_and_the_fastest_link_are_links(nic_gbps: float) -> None:
    assert NodeGroup(count=1, gpu_class="A", gpus=1, nic_gbps=nic_gbps).nic_gbps == nic_gbps
    beyond = nic_gbps / 2 if nic_gbps < 1 else nic_gbps * 2
    with pytest.raises(InputError, match="is not within"):
        NodeGroup(count=1, gpu_class="A", gpus=1, nic_gbps=beyond)


@pytest.mark.parametrize("bases", [(), ("solo",), ("solo", "loaded")])
def test_a_whole_gpu_is_measured_once_and_parts_on_every_basis_asked_for(
    bases: tuple[str, ...],
) -> None:
    parts = GpuClass(name="A", vgpu_divisors=(1, 2)).parts(bases)
    halves = [(WHOLE_GPU // 2, basis) for basis in bases or ("loaded",)]
    assert sorted(parts) == sorted([(WHOLE_GPU, "loaded"), *halves])


def test_a_gpu_has_as_many_vgpus_as_its_smallest_part_or_its_class_allows() -> None:
    assert GpuClass(name="A", vgpu_divisors=(1, 2, 4)).most_vgpus == 4
    assert GpuClass(name="A", vgpu_divisors=(1, 4), max_vgpus_per_gpu=3).most_vgpus == 3


def test_a_slice_of_one_process_is_written_without_their_number() -> None:
    def written(processes: int) -> dict[str, Any]:
        mig = Mig(card="A100-40GB", processes=processes)
        cluster = Cluster(
            name="c",
            gpu_classes=(GpuClass(name="A", vgpu_divisors=(), mig=mig),),
            nodes=(NodeGroup(count=1, gpu_class="A", gpus=1, nic_gbps=10),),
        )
        return cluster.to_dict()["gpu_classes"]["A"]["mig"]

    assert written(1) == {"card": "A100-40GB"}
    assert written(2) == {"card": "A100-40GB", "processes": 2}
