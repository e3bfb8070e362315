"""A CPU "GPU class": a named runtime configuration that building and profiling share."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from triton_backend.contract.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceClass:
    """Cores, threads and stretch of a class; a run takes `stretch` times its true time.

    Attributes:
        cores: numbers of the cores its stages run on, as the operating system counts them.
        threads: threads of one stage.
        stretch: 1 or more; results stay real.
    """

    name: str
    cores: tuple[int, ...]
    threads: int = 1
    stretch: float = 1.0

    def __post_init__(self) -> None:
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

    def to_options(self) -> dict[str, Any]:
        """Options of an artifact built for the class."""
        return {"cores": list(self.cores), "threads": self.threads, "stretch": self.stretch}

    @classmethod
    def from_options(cls, name: str, options: Mapping[str, Any]) -> "DeviceClass":
        """Inverse of `to_options`."""
        return cls(
            name=name,
            cores=tuple(options["cores"]),
            threads=options["threads"],
            stretch=options["stretch"],
        )
