"""How long a loop pauses after a failure, so that a permanent fault fills neither core nor disk."""

FIRST_SECONDS = 0.01
LONGEST_SECONDS = 1.0


class Backoff:
    """Pauses that double with every failure in a row.

    Attributes:
        failures: in a row.
        total: since the start.
    """

    def __init__(
        self, first_seconds: float = FIRST_SECONDS, longest_seconds: float = LONGEST_SECONDS
    ) -> None:
        self._first_seconds = first_seconds
        self._longest_seconds = longest_seconds
        self._next_seconds = first_seconds
        self.failures = 0
        self.total = 0

    def failed(self) -> float:
        """Count a failure; seconds to pause before the next attempt."""
        pause_seconds = min(self._next_seconds, self._longest_seconds)
        self._next_seconds = 2 * pause_seconds
        self.failures += 1
        self.total += 1
        return pause_seconds

    def succeeded(self) -> None:
        """The next failure is the first of a row."""
        self._next_seconds = self._first_seconds
        self.failures = 0
