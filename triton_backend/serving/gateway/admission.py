"""Admission of requests: the rule of `scheduler.admission` for one model, and what it refused.

The rule is the scheduler's, so that the simulator can apply the same.
"""

from dataclasses import dataclass
from functools import partial

from triton_backend.contract.plan import ModelPlan, Plan
from triton_backend.scheduler import admission


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A request that the core never saw, for the event file; `model` is its number."""

    now_us: int
    model: int
    deadline_us: int
    samples: int


class Admission:
    """The work of one model that is admitted and not yet done, as an ideal server would do it.

    Attributes:
        admits: whether a request of so many samples, with this deadline (µs, the scheduler's),
            at this instant (µs, never goes back), is handed to the scheduler; it counts
            as work from then on.
    """

    def __init__(self, plan: Plan, model: ModelPlan) -> None:
        self._rows = admission.new_admission(plan, [model])
        self.admits = partial(admission.admits, self._rows, 0)
        self.admits(0, 0, 0)  # compiled before the first request; no samples change nothing

    def best_finish_us(self, now_us: int) -> int:
        """When a request that arrives now would be done at best."""
        return admission.best_finish_us(self._rows, 0, now_us)
