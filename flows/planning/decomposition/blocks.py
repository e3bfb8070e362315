"""The interface of blocks, and the problem that they share.

A block b turns resources into a rate: a *column* uses a vector a of whole resources and delivers a
rate. Blocks share K resources with capacities N. How a block does it is its own affair: the
decomposition knows columns only by their vectors and rates.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Demands:
    """The problem of B blocks on K resources.

    Attributes:
        capacity: [K] how much of every resource there is.
        weight: [B] rate of each block per unit of the level z.
        minimum: [B] rate to keep at least; 0 where none is asked for.
        price: [K] what one unit of every resource costs; 0 where the level is maximised.
        fixed: whether z is 1 and the price is minimised, instead of z being maximised.
    """

    capacity: NDArray[np.int64]
    weight: NDArray[np.float64]
    minimum: NDArray[np.float64]
    price: NDArray[np.float64]
    fixed: bool

    def at(self, level: float) -> NDArray[np.float64]:
        """[B] rates that a level asks for."""
        return np.maximum(self.weight * level, self.minimum)


class Proposal(Protocol):
    """A column for every block that delivers what was asked for, cheap but not proven cheapest.

    Attributes:
        cost: [B] what it costs at the prices asked for; infinite where a block has none.
        vector: [B, K] resources it uses.
        rate: [B] what it delivers.
    """

    @property
    def cost(self) -> NDArray[np.float64]: ...  # noqa: D102 - see above

    @property
    def vector(self) -> NDArray[np.int64]: ...  # noqa: D102

    @property
    def rate(self) -> NDArray[np.float64]: ...  # noqa: D102

    def column(self, block: int) -> Any:
        """The key by which the block's owner knows it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Least:
    """The proven least cost of a block, and a cheaper column than the known one, if found."""

    cost: float
    effort: int
    column: Any = None
    vector: NDArray[np.int64] | None = None
    rate: float = 0.0


class Blocks(Protocol):
    """The blocks of a problem.

    Attributes:
        steps: how many programs `least` has, each closer than the one before, the last one exact.
    """

    steps: int

    def focus(self, price: NDArray[np.float64], most: NDArray[np.float64]) -> None:
        """Get ready for prices [K] near these and rates [B] up to these."""
        ...

    def propose(self, price: NDArray[np.float64], rate: NDArray[np.float64]) -> Proposal:
        """A cheap column for every block to deliver rates [B] at prices [K]."""
        ...

    def floor(self, price: NDArray[np.float64], rate: NDArray[np.float64]) -> NDArray[np.float64]:
        """[B] what every block costs at least, at once: weak but proven."""
        ...

    def least(
        self, block: int, price: NDArray[np.float64], rate: float, cutoff: float, step: int
    ) -> Least:
        """The least cost of a block, or `cutoff` if no column is cheaper."""
        ...


class Offer(Protocol):
    """Takes a column per block as a plan; tells the score of the best plan known."""

    def __call__(self, columns: list[Any], /) -> float:
        """Offer a plan."""
        ...
