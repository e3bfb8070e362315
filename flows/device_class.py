"""The onnxruntime device of a class: a CPU that stands for a GPU, or a GPU by CUDA.

Building and profiling share it.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from triton_backend.contract.errors import InputError
from triton_backend.runtimes.base import CPU, CUDA


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceClass:
    """Cores, threads and stretch of a class; a run takes `stretch` times its true time.

    Attributes:
        cores: numbers of the cores its stages run on, as the operating system counts them; none of
            a GPU.
        threads: threads of one stage.
        stretch: 1 or more; results stay real.
        provider: `cpu`, or `cuda` for a GPU, which has no cores, threads or stretch of its own.

    Raises:
        InputError: cores are not here, or a value is out of range.
    """

    name: str
    cores: tuple[int, ...] = ()
    threads: int = 1
    stretch: float = 1.0
    provider: str = CPU

    def __post_init__(self) -> None:
        if self.on_gpu:
            if (self.cores, self.threads, self.stretch) != ((), 1, 1.0):
                raise InputError(
                    f"device class {self.name!r}", "cores, threads and stretch are of CPUs alone"
                )
            return
        available = os.sched_getaffinity(0)
        if not self.cores or not set(self.cores) <= available:
            raise InputError(
                f"device class {self.name!r}, cores",
                f"{list(self.cores)} are not all among the cores here, {sorted(available)}",
            )
        if self.threads < 1:
            raise InputError(f"device class {self.name!r}, threads", f"{self.threads} is below 1")
        if not 1 <= self.stretch < float("inf"):
            raise InputError(f"device class {self.name!r}, stretch", f"{self.stretch} is below 1")

    @property
    def on_gpu(self) -> bool:
        """True if a GPU runs it."""
        return self.provider == CUDA

    def to_options(self) -> dict[str, Any]:
        """Options of an artifact built for the class; of a GPU the provider alone."""
        if self.on_gpu:
            return {"provider": self.provider}
        return {"cores": list(self.cores), "threads": self.threads, "stretch": self.stretch}

    @classmethod
    def from_options(cls, name: str, options: Mapping[str, Any]) -> "DeviceClass":
        """Inverse of `to_options`."""
        if options.get("provider") == CUDA:
            return cls(name=name, provider=CUDA)
        return cls(
            name=name,
            cores=tuple(options["cores"]),
            threads=options["threads"],
            stretch=options["stretch"],
        )
