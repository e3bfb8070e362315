"""Admission of requests: the rule of `scheduler.admission` for a plan, and what it refused.

The rule is the scheduler's, so that the simulator can apply the same.
"""

from dataclasses import dataclass
from functools import partial

from triton_backend.contract.plan import Plan
from triton_backend.scheduler import admission


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A request that the core never saw, for the event file; `model` and `entry` are numbers."""

    now_us: int
    model: int
    deadline_us: int
    samples: int
    entry: int = 0


class Admission:
    """The work of every queue that is admitted and not yet done, as an ideal server would do it.

    `policy` is that of all models; None: what the plan says of each.

    Attributes:
        admits: whether a request for a queue, of so many samples, with this deadline (µs, the
            scheduler's), at this instant (µs, never goes back), is handed to the scheduler; it
            counts as work from then on.
    """

    def __init__(self, plan: Plan, policy: str | None) -> None:
        self._rows = admission.new_admission(plan, policy)
        self.admits = partial(admission.admits, self._rows)
        self.admits(0, 0, 0, 0)  # compiled before the first request; no samples change nothing

    def best_finish_us(self, queue: int, now_us: int) -> int:
        """When a request that arrives now would be done at best."""
        return admission.best_finish_us(self._rows, queue, now_us)
