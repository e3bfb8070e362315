"""Requests of TensorRT builds, and the report by which a planner leaves stages out.

Here: requests, settings, results, failures, and what cards are known by name.
Not here: building (`tensorrt.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from triton_backend.contract.errors import InputError

DEFAULT_BATCHES = (1, 2, 4, 8, 16)
DEFAULT_WORKSPACE_MIB = 1024
# https://developer.nvidia.com/cuda-gpus; a class of another name states its own.
COMPUTE_CAPABILITIES: Mapping[str, str] = {
    "P4": "6.1",
    "P100": "6.0",
    "V100": "7.0",
    "T4": "7.5",
    "A100": "8.0",
    "A30": "8.0",
    "A2": "8.6",
    "A10": "8.6",
    "A10G": "8.6",
    "A16": "8.6",
    "A40": "8.6",
    "L4": "8.9",
    "L40": "8.9",
    "L40S": "8.9",
    "H100": "9.0",
    "H200": "9.0",
    "GH200": "9.0",
    "B200": "10.0",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRequest:
    """One stage to be built for one GPU class.

    Attributes:
        stage: how people call it, for instance `squeezenet blocks 0-4`.
        onnx: its file; weights may lie in files beside it.
        batches: planned batch sizes; a batch in between runs padded to the next one.
        dimensions: sizes for symbolic dimensions other than the batch, by symbol.
        notes: kept in the artifact's options, for instance what a conversion to fp16 lost.
    """

    stage: str
    onnx: Path
    gpu_class: str
    batches: tuple[int, ...] = DEFAULT_BATCHES
    dimensions: Mapping[str, int] = field(default_factory=dict[str, int])
    notes: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        if not self.batches or min(self.batches) < 1 or len(set(self.batches)) < len(self.batches):
            raise InputError(
                f"engine of {self.stage!r}",
                f"batches {list(self.batches)} must be distinct and positive",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Options of all engines of one call.

    Attributes:
        library: `tensorrt` or `tensorrt-rtx`; None takes the first that is installed.
        compute_capabilities: of classes whose name does not say it, or that differ.
        devices: uuid of the GPU on which a class is built, where it is built on one; two builds
            that name the same GPU wait for each other, in whichever process.
        time_limit_s: for one process, which builds all engines of one class.
    """

    library: str | None = None
    compute_capabilities: Mapping[str, str] = field(default_factory=dict[str, str])
    devices: Mapping[str, str] = field(default_factory=dict[str, str])
    workspace_mib: int = DEFAULT_WORKSPACE_MIB
    tf32: bool = False
    time_limit_s: float = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineResult:
    """An engine that is there: `seconds` is None where it was there before."""

    request: EngineRequest
    key: str
    folder: Path
    seconds: float | None

    @property
    def reused(self) -> bool:
        """True if nothing had to be built."""
        return self.seconds is None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFailure:
    """An engine that could not be built: the ONNX node where known, and why."""

    request: EngineRequest
    node: str | None
    reason: str

    def __str__(self) -> str:
        node = "" if self.node is None else f", node {self.node!r}"
        return f"{self.request.stage} for {self.request.gpu_class}{node}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildReport:
    """The outcome of every request, in the order asked."""

    library: str
    library_version: str
    results: tuple[EngineResult, ...]
    failures: tuple[EngineFailure, ...]

    @property
    def built(self) -> int:
        """Engines built by this call."""
        return sum(not result.reused for result in self.results)

    @property
    def reused(self) -> int:
        """Engines that were there already."""
        return sum(result.reused for result in self.results)

    def left_out(self) -> frozenset[tuple[str, str]]:
        """(stage, GPU class) that a plan must not use."""
        return frozenset((f.request.stage, f.request.gpu_class) for f in self.failures)

    def to_dict(self) -> dict[str, Any]:
        """Plain form, for `--json`."""
        return {
            "library": self.library,
            "library_version": self.library_version,
            "built": self.built,
            "reused": self.reused,
            "engines": [
                {
                    "stage": r.request.stage,
                    "gpu_class": r.request.gpu_class,
                    "artifact": r.key,
                    "seconds": r.seconds,
                }
                for r in self.results
            ],
            "failures": [
                {
                    "stage": f.request.stage,
                    "gpu_class": f.request.gpu_class,
                    "node": f.node,
                    "reason": f.reason,
                }
                for f in self.failures
            ],
        }


def compute_capability(gpu_class: str, stated: Mapping[str, str]) -> str:
    """Compute capability of a GPU class, as stated or by its name (`L4`, `l4-24gb`, `L4/mig`).

    Raises:
        InputError: neither known nor stated.
    """
    if gpu_class in stated:
        return stated[gpu_class]
    words = gpu_class.upper().replace("-", " ").replace("_", " ").replace(".", " ").split()
    for word in words:
        if word in COMPUTE_CAPABILITIES:
            return COMPUTE_CAPABILITIES[word]
    raise InputError(
        f"GPU class {gpu_class!r}",
        "its compute capability is not known; state it, for instance 8.9",
    )
