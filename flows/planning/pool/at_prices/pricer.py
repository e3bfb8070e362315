"""Models as groups of columns: prices of GPUs in, allocations that serve a rate out.

A column is all that one model runs: whole GPUs of every class, and the rate that they serve. Its
source is the allocation, by numbers of the problem's configurations. A plan has one column of every
model, since two of them together are a column, too.

Answers to prices are cheap and seldom proven (`covering`), so a column that was found once, at
whatever prices, is compared with them ever after: one that a proof has found is cheaper than any
that items make. What the engine proves with these answers holds of such columns alone;
`engine.proof.Parts` proves the rest, program by program.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from flows.planning.engine.columns import Columns, Pool
from flows.planning.engine.master import Cover, Free, missed_prices
from flows.planning.engine.pricing import Duals, Priced
from flows.planning.engine.proof import Least
from flows.planning.pool.at_prices.blocks import ModelBlocks
from flows.planning.pool.bound import Goal
from flows.planning.pool.columns import Allocation
from flows.planning.solver.arrays import Floats, Ints
from flows.planning.solver.tolerances import EXACT


def columns_of(
    models: int,
    price: Floats,
    model: Ints,
    vector: Ints,
    rate: Floats,
    allocations: Sequence[Allocation],
) -> Columns:
    """Allocations for the engine.

    Args:
        models: how many there are.
        price: [C] what a GPU costs; 0 where a level is asked for.
        model: [n] of each allocation.
        vector: [n, C] GPUs that it takes.
        rate: [n] that it serves.
        allocations: [n].
    """
    supply = np.eye(models)[model] * rate[:, None]
    return Columns.dense(vector @ price, supply, vector.astype(np.float64), model, allocations)


def served_rps(columns: Columns) -> Floats:
    """[n] rates of columns, each of its own model."""
    return columns.values[columns.starts[:-1]]


def cover_at(goal: Goal, gpus: Ints, level: float) -> Cover:
    """All models served at a level: for the least price of GPUs [C], or the least share of them.

    A share is a free column: it costs 1 and lends as much of every class as there is.
    """
    need, capacity = goal.needed_rps(level), gpus.astype(np.float64)
    if goal.fixed:
        missed = missed_prices(float(goal.price @ capacity), need)
        return Cover(need=need, capacity=capacity, cap=need, missed=missed)
    return Cover(
        need=need,
        capacity=np.zeros(len(gpus)),
        free=Free.dense(np.ones(1), np.zeros((1, len(need))), -capacity[None, :]),
        cap=need,
        missed=np.full(len(need), np.inf),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPricer:
    """A pricer of models that are each asked for a rate.

    Attributes:
        blocks: what models cost, over some configurations.
        numbers: [n] of these configurations in the problem.
        gpu_cost: [C] what a GPU costs; 0 where a level is asked for.
        need: [models] requests/s.
        known: columns; answers join them.
    """

    blocks: ModelBlocks
    numbers: Ints
    gpu_cost: Floats
    need: Floats
    known: Pool
    quick: bool = True

    @property
    def fewest(self) -> Floats:
        """[models] 1: what a model runs."""
        return np.ones(len(self.need))

    most = fewest

    @property
    def cheapest(self) -> Floats:
        """[models] 0: where a level is asked for, GPUs cost nothing."""
        return np.zeros(len(self.need))

    @property
    def steps(self) -> int:
        """Programs of `least`."""
        return self.blocks.steps

    def paid(self, duals: Duals) -> Floats:
        """[C] what a GPU costs at prices."""
        return duals.resource + self.gpu_cost

    def price(self, duals: Duals, cap: Floats) -> Priced:
        """A cheap column for every model; no column known costs less than `least`."""
        del cap
        items = self.blocks.propose(self.paid(duals), self.need)
        made = [(n, *self.blocks.total(own)) for n, own in enumerate(items) if len(own)]
        columns = self._columns(
            np.array([model for model, _, _ in made], dtype=np.int64),
            np.array([gpus for _, gpus, _ in made], dtype=np.int64).reshape(
                len(made), len(self.gpu_cost)
            ),
            np.array([rate for _, _, rate in made]),
            [self.blocks.allocation(items[model]) for model, _, _ in made],
        )
        self.known.add(columns)
        known, least = self.known.columns, np.full(len(self.need), np.inf)
        serving = self.serving(known)
        paid = replace(duals, demand=np.zeros(len(self.need))).reduced(known)
        np.minimum.at(least, known.group[serving], paid[serving])
        return Priced(columns=columns, least=least - duals.demand * self.need)

    def serving(self, columns: Columns) -> Ints:
        """Numbers of those that serve all that their model is asked for."""
        return np.flatnonzero(served_rps(columns) >= self.need[columns.group] * (1 - EXACT))

    def floor(self, duals: Duals) -> Floats:
        """[models] no column has a lower reduced cost: weak, at once."""
        return self.blocks.floor(self.paid(duals), self.need) - duals.demand * self.need

    def least(self, group: int, duals: Duals, cutoff: float, step: int) -> Least:
        """The same of one model, closer; see `engine.proof.SteppedPricer`."""
        rate, worth = float(self.need[group]), float(duals.demand[group] * self.need[group])
        cost, effort, found = self.blocks.least(group, self.paid(duals), rate, cutoff + worth, step)
        columns = Columns.none()
        if found is not None:
            gpus, served = self.blocks.served(found)
            columns = self._columns(np.array([group]), gpus[None, :], np.array([served]), [found])
        return cost - worth, columns, effort

    def _columns(
        self, model: Ints, vector: Ints, rate: Floats, allocations: Sequence[Allocation]
    ) -> Columns:
        source = [(self.numbers[rows], vgpus) for rows, vgpus in allocations]
        return columns_of(len(self.need), self.gpu_cost, model, vector, rate, source)
