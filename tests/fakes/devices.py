"""GPUs from a list: the second adapter of `flows.preparation.profiling.devices.DeviceSource`."""

from dataclasses import dataclass

from flows.preparation.profiling.devices import Device


@dataclass(frozen=True, slots=True)
class ListedDevices:
    """A machine with these GPUs."""

    listed: tuple[Device, ...]

    def devices(self) -> tuple[Device, ...]:
        return self.listed
