"""A clock that stands still until a thread waits: the second adapter of `engines.clock.Clock`."""


class VirtualClock:
    """Instants move only by `sleep_until_us` and by tests that set `cpu_us` or `at_us`."""

    def __init__(self, at_us: int = 0) -> None:
        self.at_us = at_us
        self.cpu_us = 0
        self.waits: list[int] = []

    def now_us(self) -> int:
        """The instant reached so far."""
        return self.at_us

    def wall_us(self) -> int:
        """The same: here the world began with the clock."""
        return self.at_us

    def thread_cpu_us(self) -> int:
        """Whatever `cpu_us` was set to."""
        return self.cpu_us

    def sleep_until_us(self, instant_us: int) -> None:
        """Jump to `instant_us`, never back."""
        self.waits.append(instant_us)
        self.at_us = max(self.at_us, instant_us)
