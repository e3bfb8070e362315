"""Admission of requests: the rule of `scheduler.admission` for a plan, and what it refused.

The rule is the scheduler's, so that the simulator can apply the same. It does so for models of late
binding, too, of which the gateway refuses no request.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

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


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedJob:
    """A request of an application that the core never saw.

    `application` is its number in the plan.
    """

    now_us: int
    application: int
    deadline_us: int
    samples: int


class Admission:
    """The work of every queue that is admitted and not yet done, as an ideal server would do it.

    `policy` is that of all models; None: what the plan says of each. `guard_us` is what of an SLO
    is kept back from the deadlines that fronts announce.

    Attributes:
        admits: whether a request for a queue, of so many samples, with this deadline (µs, the
            scheduler's), at this instant (µs, never goes back), is handed to the scheduler; it
            counts as work from then on.
    """

    def __init__(
        self, plan: Plan, policy: str | None, guard_us: Callable[[int], int] = lambda _: 0
    ) -> None:
        self._rows = admission.new_admission(plan, policy, guard_us=guard_us)
        self.admits = partial(admission.admits, self._rows)
        self.admits(0, 0, 0, 0)  # compiled before the first request; no samples change nothing
        self._work = admission.job_work(plan)
        self._first = np.searchsorted(self._work["application"], range(len(plan.applications)))
        if plan.applications:
            self.admits_job(0, 0, 0, 0)

    def admits_job(self, application: int, samples: int, deadline_us: int, now_us: int) -> bool:
        """True if a job of an application is handed to the scheduler; see `admits`."""
        first = int(self._first[application])
        return admission.admits_job(self._rows, self._work, first, samples, deadline_us, now_us)

    def best_finish_us(self, queue: int, now_us: int) -> int:
        """When a request that arrives now would be done at best."""
        return admission.best_finish_us(self._rows, queue, now_us)
