"""The least factors of headroom with which a plan keeps what it promises, sought by simulation.

Every group of models and applications has a factor, in steps of 1 / `GRID`. Those of groups that
fall short grow by doubled steps. Once none does, or no plan is found, those that have grown are
halved towards the last with which they fell short. Each try is a plan and its simulation.

Groups share GPUs, so one attains more or less as others' factors change: a plan counts only if
every group attains in it, and of those the one of the best objective is taken. Where none attains,
a common factor may divide what the one that attains most promises; that needs no other plan.

Here: which factors are tried. Not here: how a plan carries them (`headroom`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from flows.planning.engine.level import last
from flows.planning.promises.attainment import surely_attained
from flows.planning.watch import Watch
from triton_backend.contract.errors import InfeasibleError
from triton_backend.contract.plan import Plan
from triton_backend.simulator.goodput import ATTAINMENT

GRID, MOST = 20, 400  # factors are 1 to 20 in steps of 1 / 20
Steps = tuple[int, ...]
"""The factor of each group and that common to all, in steps of 1 / `GRID`."""
Groups = Mapping[str, int]
"""The number of its group, from 0, by name of a model or application."""


@dataclass(slots=True, kw_only=True)
class Factors:
    """The factors that were tried.

    Attributes:
        groups: those of other names belong to every group.
        carrying: makes the plan whose pools carry so many times what it promises; one of the same
            groups' factors and the common factor 1 is in `plans` where that is greater.
        watch: nothing more is tried once its time is over.
        plans: by factors.
        attained: by factors, the least of each group.
        refused: why some have no plan.
    """

    groups: Groups
    carrying: Callable[[Steps], Plan]
    watch: Watch
    plans: dict[Steps, Plan] = field(default_factory=dict[Steps, Plan])
    attained: dict[Steps, tuple[float, ...]] = field(default_factory=dict[Steps, tuple[float, ...]])
    refused: dict[Steps, str] = field(default_factory=dict[Steps, str])

    @property
    def ones(self) -> Steps:
        """No headroom."""
        return (GRID,) * (2 + max(self.groups.values()))

    def begin(self) -> bool:
        """Try the plan without headroom; False if it is too large to be simulated.

        Raises:
            InfeasibleError: there is none.
        """
        plan = self.plans[self.ones] = self.carrying(self.ones)
        attained = self._by_group(plan)
        if attained is not None:
            self.attained[self.ones] = attained
        return attained is not None

    def factors(self, steps: Steps) -> dict[str, float]:
        """The factor of each name."""
        *own, common = steps
        return {name: own[group] * common / GRID**2 for name, group in self.groups.items()}

    def seek(self) -> None:
        """Try factors of groups until each is the least."""
        low, high, growth = list(self.ones), list(self.ones), [1] * len(self.ones)
        while (short := self._short(high)) and max(high) <= MOST:
            for group in short:
                growth[group] *= 2
                low[group], high[group] = high[group], high[group] + growth[group]
        while unknown := [g for g, step in enumerate(high) if step - low[g] > 1]:
            middle = [step - (step - low[g]) // 2 for g, step in enumerate(high)]
            short = self._short(middle)
            for group in unknown:
                (low if group in short else high)[group] = middle[group]
        while max(high) <= MOST and (short := self._short(high)) and self._beats(high):
            for group in short:
                high[group] += 1

    def divide(self, steps: Steps) -> None:
        """Try common factors with these of groups until all attain; time is not looked at."""
        *own, _ = steps

        def short(common: int) -> bool:
            return bool(self._short([*own, common], timed=False))

        low, high, growth = GRID, GRID, 1
        while short(high) and high <= MOST:
            growth *= 2
            low, high = high, high + growth
        last(short, low, high)

    def best(self) -> Steps:
        """Of those that attain, the ones of the best plan; where none does, the most attained."""
        able = [steps for steps in self.attained if self.attains(steps)]
        if able:
            return min(able, key=lambda steps: (self._price(steps), sum(steps)))
        return max(self.attained, key=lambda steps: (min(self.attained[steps]), -sum(steps)))

    def attains(self, steps: Steps) -> bool:
        """True if every group does."""
        return min(self.attained[steps]) >= ATTAINMENT

    def _short(self, tried: list[int], *, timed: bool = True) -> frozenset[int]:
        """Groups that fall short of factors; none where these have no plan, or time is over."""
        steps = tuple(tried)
        if steps not in self.attained and not (timed and self.watch.over()):
            self._try(steps)
        attained = self.attained.get(steps, ())
        return frozenset(group for group, part in enumerate(attained) if part < ATTAINMENT)

    def _try(self, steps: Steps) -> None:
        if steps in self.refused:
            return
        try:
            self.plans[steps] = self.carrying(steps)
        except InfeasibleError as error:
            self.refused[steps] = str(error)
            return
        self.attained[steps] = self._by_group(self.plans[steps]) or (0.0,) * (len(steps) - 1)

    def _by_group(self, plan: Plan) -> tuple[float, ...] | None:
        found = surely_attained(plan)
        if found is None:
            return None
        least = [1.0] * (len(self.ones) - 1)
        for name, part in found.items():
            here = self.groups.get(name)
            for group in range(len(least)) if here is None else (here,):
                least[group] = min(least[group], part)
        return tuple(least)

    def _beats(self, tried: list[int]) -> bool:
        """True if its plan is better than the best one that attains."""
        best = self.best()
        return not self.attains(best) or self._price(tuple(tried)) < self._price(best)

    def _price(self, steps: Steps) -> float:
        objective = self.plans[steps].objective
        return -objective.value if objective.name == "throughput" else objective.value
