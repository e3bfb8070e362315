"""The interface of a family: prices in; columns and a bound on reduced costs out.

At prices π ≥ 0 of demands, μ ≥ 0 of resources and η ≥ 0 of halves (`master`; none in most covers) a
column has the reduced cost

    r_j = cost_j - π · a_j + μ · u_j - η · h_j

Columns come in groups; a plan has between fewest_g and most_g of each (a GPU of a class has one
pattern, a model has exactly one way, a shared stage is built once; infinite where any number may be
taken). A pricer answers with columns of low reduced cost and, by group, a number that no column of
it is below. From these any prices prove a bound (`cover.bound_at`).
"""

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from flows.planning.engine.columns import Columns
from flows.planning.solver.arrays import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Duals:
    """Prices of rows: demand [D], resource [R] and half [D or 0], none negative."""

    demand: Floats
    resource: Floats
    half: Floats = field(default_factory=lambda: np.zeros(0))

    @classmethod
    def zero(cls, demands: int, resources: int, halves: int = 0) -> "Duals":
        """Nothing is worth anything."""
        return cls(demand=np.zeros(demands), resource=np.zeros(resources), half=np.zeros(halves))

    @property
    def rows(self) -> Floats:
        """[rows] what an entry takes off the reduced cost."""
        return np.concatenate([self.demand, -self.resource, self.half])

    def scaled(self, factor: float) -> "Duals":
        """All of them times a factor."""
        return Duals(
            demand=self.demand * factor, resource=self.resource * factor, half=self.half * factor
        )

    def between(self, other: "Duals", share: float) -> "Duals":
        """On the way to others, by a share of it."""
        return Duals(
            demand=self.demand + (other.demand - self.demand) * share,
            resource=self.resource + (other.resource - self.resource) * share,
            half=self.half + (other.half - self.half) * share,
        )

    def reduced(self, columns: Columns) -> Floats:
        """[n] reduced costs of columns as a cover counts them."""
        return columns.cost - columns.priced(self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """The answer to prices.

    Attributes:
        columns: of low reduced cost.
        least: [G] no column of a group has a lower reduced cost, or, of `within`, none beside these
            and those that one of these dominates (`columns.undominated`).
        feasible: prices near those asked, at which no column has a negative reduced cost, where the
            pricer knows some.
    """

    columns: Columns
    least: Floats
    feasible: Duals | None = None


class Pricer(Protocol):
    """A source of columns.

    Attributes:
        fewest, most: [G] columns of each group in a plan, copies counted.
        cheapest: [G] no column of a group costs less; 0 where nothing is known. Where it is 0 and
            `most` is infinite, only `Priced.feasible` proves a bound.
        quick: whether an answer takes so little that more prices may be asked for than needed.
    """

    @property
    def fewest(self) -> Floats: ...  # noqa: D102 - above

    @property
    def most(self) -> Floats: ...  # noqa: D102

    @property
    def cheapest(self) -> Floats: ...  # noqa: D102

    @property
    def quick(self) -> bool: ...  # noqa: D102

    def price(self, duals: Duals, cap: Floats) -> Priced:
        """Columns of low reduced cost.

        Args:
            duals: the prices.
            cap: [D] what a column counts for at most in a demand; infinite where all counts.
        """
        ...


class ScreeningPricer(Pricer, Protocol):
    """A pricer that can also list all columns near the lowest reduced cost."""

    def within(self, duals: Duals, cap: Floats, slack: Floats, most: int) -> Priced:
        """Columns of a reduced cost of at most slack [G]; nearly `most` if there are more."""
        ...
