"""This machine's GPUs, and the `cluster.yaml` they suggest.

Here: the inventory's records, the adapter that asks NVIDIA's management library, the proposal.
Not here: measuring them (`measure.py`).
"""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import psutil

from triton_backend.contract.errors import InputError
from triton_backend.contract.shares import MAX_DIVISOR
from triton_backend.runtimes.mps import DEFAULT_PIPES, PIPES, MpsDaemon, mps_installed

MIB = 1 << 20
MIB_PER_GIB = 1024
MW_PER_W = 1000
MBIT_PER_GBIT = 1000
# Taken where the machine does not say how fast its links are; users correct the file.
UNKNOWN_NIC_GBPS = 10.0
BRANDS = ("NVIDIA", "Tesla", "GeForce", "Quadro")


@dataclass(frozen=True, slots=True, kw_only=True)
class MigSlice:
    """One MIG instance: a class of its own, as its profile (`1g.5gb`) says."""

    uuid: str
    profile: str
    memory_mib: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One GPU. `mig` is None where the card cannot be divided, else whether it is.

    Attributes:
        name: as the driver says, for instance `NVIDIA L4`.
        compute_capability: for instance `8.9`.
        mps: `running`, `stopped` or `not installed`, of the daemon that this shell would reach.
        power_w: its power limit; None where the card does not say.
    """

    index: int
    name: str
    uuid: str
    compute_capability: str
    memory_mib: int
    driver: str
    mps: str
    mig: bool | None = None
    slices: tuple[MigSlice, ...] = ()
    power_w: float | None = None

    @property
    def gpu_class(self) -> str:
        """Name as a GPU class: without the brand, words joined (`A100-SXM4-40GB`)."""
        words = [word for word in self.name.split() if word not in BRANDS]
        return "-".join(words) or self.name

    def to_dict(self) -> dict[str, Any]:
        """Plain form, for `--json`."""
        return asdict(self)


class DeviceSource(Protocol):
    """A source of this machine's GPUs."""

    def devices(self) -> Sequence[Device]:
        """All of them, by index."""
        ...


def list_devices(source: DeviceSource | None = None) -> tuple[Device, ...]:
    """GPUs of this machine, by index.

    Raises:
        InputError: there is none, or the management library or the driver is missing.
    """
    found = tuple((source or NvmlSource()).devices())
    if not found:
        raise InputError("devices", "the NVIDIA driver is here, but no GPU")
    return found


def usable_gpus(devices: Sequence[Device]) -> tuple[Device, ...]:
    """Devices for a process: GPUs, and the slices of divided ones."""
    found: list[Device] = []
    for device in devices:
        if not (device.mig and device.slices):
            found.append(device)
            continue
        found += [
            replace(
                device,
                name=f"{device.name} {part.profile}",
                uuid=part.uuid,
                memory_mib=part.memory_mib,
                slices=(),
            )
            for part in device.slices
        ]
    return tuple(found)


def propose_cluster(
    devices: Sequence[Device], *, name: str = "cluster", nic_gbps: float | None = None
) -> dict[str, Any]:
    """A `cluster.yaml` for one node with these GPUs; a slice of a divided GPU counts as a GPU.

    GPUs of several classes become as many nodes, each with the whole link to itself. They are
    named by uuid, because a number says nothing about slices, nor about GPUs of several classes.

    Args:
        devices: from `list_devices`.
        name: of the cluster.
        nic_gbps: rate of the node's link; None takes the fastest that the machine reports.
    """
    gbps = nic_gbps if nic_gbps is not None else link_gbps() or UNKNOWN_NIC_GBPS
    classes: dict[str, dict[str, Any]] = {}
    uuids: dict[str, list[str]] = {}
    for gpu in usable_gpus(devices):
        classes.setdefault(gpu.gpu_class, _class_of(gpu))
        uuids.setdefault(gpu.gpu_class, []).append(gpu.uuid)
    return {
        "name": name,
        "gpu_classes": classes,
        "nodes": [
            {
                "count": 1,
                "gpu_class": gpu_class,
                "gpus": len(mine),
                "nic_gbps": gbps,
                "devices": mine,
            }
            for gpu_class, mine in uuids.items()
        ],
    }


def _class_of(gpu: Device) -> dict[str, Any]:
    if gpu.mig:
        return {"vgpu_divisors": [1], "memory_gib": _gib(gpu.memory_mib)}
    divisors = [1] if gpu.mps == "not installed" else list(range(1, MAX_DIVISOR + 1))
    fields: dict[str, Any] = {"vgpu_divisors": divisors, "memory_gib": _gib(gpu.memory_mib)}
    if gpu.power_w is not None:
        fields["power_w"] = gpu.power_w
    return fields


def _gib(mebibytes: int) -> float:
    return round(mebibytes / MIB_PER_GIB, 1)


def link_gbps() -> float | None:
    """Rate of the fastest network link that is up, loopback apart; None where none says."""
    rates = [
        stats.speed / MBIT_PER_GBIT
        for name, stats in psutil.net_if_stats().items()
        if stats.isup and name != "lo" and stats.speed > 0
    ]
    return max(rates, default=None)


def mps_state() -> str:
    """State of the MPS daemon that a process started from this shell would reach."""
    if not mps_installed():
        return "not installed"
    pipes = Path(os.environ.get(PIPES, DEFAULT_PIPES))
    return "running" if MpsDaemon(pipes=pipes, logs=pipes).running() else "stopped"


class NvmlSource:
    """`DeviceSource` by NVIDIA's management library (package nvidia-ml-py, extra `gpu`)."""

    def __init__(self) -> None:
        """Load the package.

        Raises:
            InputError: it is not installed.
        """
        try:
            import pynvml  # noqa: PLC0415 -- an extra, loaded on use
        except ImportError as error:
            raise InputError(
                "devices", "nvidia-ml-py is not installed: pip install poolpipe[gpu]"
            ) from error
        self._nvml: Any = pynvml

    def devices(self) -> tuple[Device, ...]:
        """All GPUs, by index.

        Raises:
            InputError: no NVIDIA driver on this machine, or it does not answer.
        """
        nvml = self._nvml
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            raise InputError("devices", f"no GPU can be listed on this machine: {error}") from error
        try:
            driver = str(nvml.nvmlSystemGetDriverVersion())
            state = mps_state()
            return tuple(
                self._device(index, driver, state) for index in range(nvml.nvmlDeviceGetCount())
            )
        except nvml.NVMLError as error:
            raise InputError("devices", f"the driver does not answer: {error}") from error
        finally:
            nvml.nvmlShutdown()

    def _device(self, index: int, driver: str, mps: str) -> Device:
        nvml = self._nvml
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
        mig = self._mig(handle)
        return Device(
            index=index,
            name=str(nvml.nvmlDeviceGetName(handle)),
            uuid=str(nvml.nvmlDeviceGetUUID(handle)),
            compute_capability=f"{major}.{minor}",
            memory_mib=int(nvml.nvmlDeviceGetMemoryInfo(handle).total) // MIB,
            driver=driver,
            mps=mps,
            mig=mig,
            slices=self._slices(handle) if mig else (),
            power_w=self._power(handle),
        )

    def _mig(self, handle: Any) -> bool | None:
        try:
            current, _ = self._nvml.nvmlDeviceGetMigMode(handle)
        except self._nvml.NVMLError:  # cards that cannot be divided refuse the question
            return None
        return bool(current)

    def _power(self, handle: Any) -> float | None:
        try:
            return float(self._nvml.nvmlDeviceGetPowerManagementLimit(handle)) / MW_PER_W
        except self._nvml.NVMLError:  # small cards do not say
            return None

    def _slices(self, handle: Any) -> tuple[MigSlice, ...]:
        nvml = self._nvml
        found: list[MigSlice] = []
        for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
            try:
                part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
            except nvml.NVMLError:  # a place that holds no slice
                continue
            memory_mib = int(nvml.nvmlDeviceGetMemoryInfo(part).total) // MIB
            profile = str(nvml.nvmlDeviceGetName(part)).rpartition("MIG ")[2]
            found.append(
                MigSlice(
                    uuid=str(nvml.nvmlDeviceGetUUID(part)), profile=profile, memory_mib=memory_mib
                )
            )
        return tuple(found)
