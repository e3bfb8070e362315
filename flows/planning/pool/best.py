"""The best plan known during a search: what is offered is made lean, scored and compared.

Ties go to the plan with fewer stages, then to the one with fewer GPUs.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flows.planning.pool.bound import Goal
from flows.planning.pool.columns import Columns
from flows.planning.pool.integer import delivered_rps, gpus_in_use, lowest_share, trimmed
from flows.planning.problem import Problem

_REACHED = 1e-9  # a prescribed rate counts as reached from this close
_EQUAL = 1e-12  # scores this close are ties


@dataclass(slots=True)
class Best:
    """The best plan known: vGPU counts [n, S] over all configurations, None before the first."""

    problem: Problem
    columns: Columns
    goal: Goal
    vgpus: NDArray[np.int64] | None = None
    score: float = -np.inf

    def gap_to(self, bound: float) -> float:
        """What a plan may still gain, relative to the best one; infinite before the first."""
        if self.vgpus is None:
            return np.inf
        return max(0.0, bound - self.score) / abs(self.score) if self.score else np.inf

    def offer(self, vgpus: NDArray[np.int64] | None) -> bool:
        """Take a plan [n, S] if it is better, or as good and simpler; tells whether it was better."""
        if vgpus is None:
            return False
        vgpus = self._without_idle(trimmed(self.columns, vgpus))
        rates = np.bincount(
            self.columns.model,
            weights=delivered_rps(self.columns, vgpus),
            minlength=len(self.goal.weight),
        )
        asked = np.maximum(self.goal.weight * self.goal.fixed, self.goal.minimum_rps)
        if np.any(rates < asked * (1 - _REACHED)):
            return False
        if self.goal.fixed:
            used = gpus_in_use(self.problem, self.columns, vgpus)
            score = -float(self.goal.price @ used)
        else:
            score = lowest_share(self.columns, vgpus, self.goal)
        better = score > self.score * (1 + np.copysign(_EQUAL, self.score))
        if better or (score >= self.score and self._simpler(vgpus)):
            self.vgpus, self.score = vgpus, score
        return better

    def _without_idle(self, vgpus: NDArray[np.int64]) -> NDArray[np.int64]:
        """Without pipelines that the plan's own score does not need, the slowest first."""
        rate = delivered_rps(self.columns, vgpus)
        asked = self.goal.weight * lowest_share(self.columns, vgpus, self.goal)
        spare = np.bincount(self.columns.model, weights=rate, minlength=len(asked))
        spare -= np.maximum(asked, self.goal.minimum_rps)
        vgpus = vgpus.copy()
        used = np.flatnonzero(vgpus.any(axis=1))
        for row in used[np.argsort(rate[used], kind="stable")]:
            model = self.columns.model[row]
            if rate[row] <= spare[model]:
                vgpus[row] = 0
                spare[model] -= rate[row]
        return vgpus

    def _simpler(self, vgpus: NDArray[np.int64]) -> bool:
        """Whether a plan of equal score has fewer stages, or as many and fewer GPUs."""
        if self.vgpus is None:
            return True

        def size(counts: NDArray[np.int64]) -> tuple[int, int]:
            used = gpus_in_use(self.problem, self.columns, counts)
            return int(np.count_nonzero(counts)), int(used.sum())

        return size(vgpus) < size(self.vgpus)
