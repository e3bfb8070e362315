"""Addresses of the processes that the scheduler sends frames to."""

from collections.abc import Callable
from typing import NamedTuple


class FrontAddress(NamedTuple):
    """The front of a model in one of the gateways."""

    model: str
    gateway: int = 0


class WorkerAddress(NamedTuple):
    """The worker of a vGPU of a generation."""

    generation: int
    vgpu: int


class StandbyAddress(NamedTuple):
    """A scheduler that would take over."""

    name: str


Address = FrontAddress | WorkerAddress | StandbyAddress

Send = Callable[[Address, bytes], None]
"""Sends a frame to an address; lost where no peer is connected."""
