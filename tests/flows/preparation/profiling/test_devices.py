"""The device inventory and the cluster it suggests."""

from dataclasses import replace
from pathlib import Path

import pytest

from flows.preparation.profiling.class_profile import own_gpu
from flows.preparation.profiling.devices import (
    Device,
    MigSlice,
    list_devices,
    mps_state,
    propose_cluster,
)
from tests.fakes import mps_control
from tests.fakes.devices import ListedDevices
from triton_backend.contract.cluster import Cluster
from triton_backend.contract.errors import InputError

L4 = Device(
    index=0,
    name="NVIDIA L4",
    uuid="GPU-a",
    compute_capability="8.9",
    memory_mib=23034,
    driver="580.1",
    mps="stopped",
    power_w=72.0,
)
A100 = Device(
    index=2,
    name="NVIDIA A100-SXM4-40GB",
    uuid="GPU-c",
    compute_capability="8.0",
    memory_mib=40960,
    driver="580.1",
    mps="not installed",
    mig=False,
)


def test_devices_of_a_source_come_as_they_are() -> None:
    devices = (L4, replace(L4, index=1, uuid="GPU-b"), A100)
    assert list_devices(ListedDevices(devices)) == devices
    assert L4.to_dict()["compute_capability"] == "8.9"


def test_machine_without_gpus_says_so() -> None:
    with pytest.raises(InputError, match="no GPU"):
        list_devices(ListedDevices(()))


def outcome() -> str:
    try:
        return " ".join(device.uuid for device in list_devices())
    except InputError as error:
        return str(error)


def test_machine_with_or_without_driver_is_described_in_one_line() -> None:
    assert outcome().startswith(("devices: no GPU can be listed on this machine: ", "GPU-"))
    assert "\n" not in outcome()


def test_proposal_is_a_cluster_with_a_node_per_class() -> None:
    proposal = propose_cluster((L4, replace(L4, index=1, uuid="GPU-b"), A100), nic_gbps=25.0)
    assert proposal == {
        "name": "cluster",
        "gpu_classes": {
            "L4": {"vgpu_divisors": [1, 2, 3, 4], "memory_gib": 22.5, "power_w": 72.0},
            "A100-SXM4-40GB": {"vgpu_divisors": [1], "memory_gib": 40.0},
        },
        "nodes": [
            {
                "count": 1,
                "gpu_class": "L4",
                "gpus": 2,
                "nic_gbps": 25.0,
                "devices": ["GPU-a", "GPU-b"],
            },
            {
                "count": 1,
                "gpu_class": "A100-SXM4-40GB",
                "gpus": 1,
                "nic_gbps": 25.0,
                "devices": ["GPU-c"],
            },
        ],
    }
    cluster = Cluster.from_dict(proposal)
    assert cluster.gpus("L4") == 2


def test_slices_of_a_divided_gpu_are_classes_of_their_own() -> None:
    slices = tuple(
        MigSlice(uuid=f"MIG-{i}", profile=profile, memory_mib=memory)
        for i, (profile, memory) in enumerate(
            [("1g.5gb", 4864), ("1g.5gb", 4864), ("3g.20gb", 19968)]
        )
    )
    divided = replace(A100, mig=True, slices=slices)
    cluster = Cluster.from_dict(propose_cluster([divided], nic_gbps=10.0))
    assert cluster.gpus("A100-SXM4-40GB-1g.5gb") == 2
    assert cluster.gpus("A100-SXM4-40GB-3g.20gb") == 1
    assert cluster.gpu_class("A100-SXM4-40GB-1g.5gb").vgpu_divisors == (1,)
    assert [cluster.nodes[0].device(gpu) for gpu in (0, 1)] == ["MIG-0", "MIG-1"]
    measured_on = own_gpu([divided], "A100-SXM4-40GB-3g.20gb")
    assert measured_on is not None
    assert measured_on.uuid == "MIG-2"


def test_a_gpu_is_of_a_class_by_whole_words_of_its_name() -> None:
    other = replace(L4, index=1, name="NVIDIA L40S", uuid="GPU-b")
    large = replace(L4, index=2, name="NVIDIA A100-SXM4-40GB", uuid="GPU-c")
    here = [other, L4, large]
    found = {name: own_gpu(here, name) for name in ("L4", "l40s", "A100", "A100-40GB", "T4")}
    uuids = {name: None if gpu is None else gpu.uuid for name, gpu in found.items()}
    assert uuids == {
        "L4": "GPU-a",
        "l40s": "GPU-b",
        "A100": "GPU-c",
        "A100-40GB": "GPU-c",
        "T4": None,
    }
    assert own_gpu([other], "T4") == other


def test_link_rate_is_never_missing() -> None:
    (node,) = propose_cluster([L4])["nodes"]
    assert node["nic_gbps"] > 0


@pytest.mark.slow
def test_mps_state_names_the_daemon_of_this_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert mps_state() == "not installed"
    mps_control.install(tmp_path)
    pipes = tmp_path / "pipes"
    pipes.mkdir()
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(pipes))
    assert mps_state() == "stopped"
    (pipes / "nvidia-cuda-mps-control.pid").write_text("0")
    assert mps_state() == "running"
