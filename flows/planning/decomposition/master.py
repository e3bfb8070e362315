"""The master program: one column per block, chosen so that all fit the resources.

Sets: known columns j of block b(j) with vectors a_j and rates; only columns that deliver the
block's demand.

    λ_j ≥ 0 (relaxed) or ∈ {0, 1}

    level:       minimise τ
    price:       minimise Σ_j price · a_j λ_j + far · Σ_k lent_k
    one_b:       Σ_{j of b} λ_j ≥ 1        for every block
    capacity_k:  Σ_j a_jk λ_j ≤ τ · N_k    for every resource; with prices  ≤ N_k + lent_k

A level can be reached by known columns where τ ≤ 1. The duals of `capacity` are the prices of
resources. Resources are lent in the relaxation alone, so that it always has an answer.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flows.planning.decomposition.blocks import Demands
from flows.planning.solver.program import Program, ProgramBuilder
from flows.planning.solver.solve import Limits, solve_integer, solve_linear
from triton_backend.contract.errors import InvariantError

_REACHED = 1e-12
_LENT = 1e3  # times the highest price of any column: what a lent resource costs


@dataclass(slots=True)
class BlockColumns:
    """Every column known, no two of a block with the same vector: the faster one stays."""

    resources: int
    block: list[int] = field(default_factory=list[int])
    vector: list[NDArray[np.int64]] = field(default_factory=list[NDArray[np.int64]])
    rate: list[float] = field(default_factory=list[float])
    column: list[Any] = field(default_factory=list[Any])
    _known: dict[tuple[int, bytes], int] = field(default_factory=dict[tuple[int, bytes], int])

    def better(self, block: int, vector: NDArray[np.int64], rate: float) -> bool:
        """True if a column is new, or faster than the one of the same vector."""
        at = self._known.get((block, vector.tobytes()))
        return at is None or rate > self.rate[at] * (1 + _REACHED)

    def add(self, block: int, vector: NDArray[np.int64], rate: float, column: Any) -> None:
        """Keep a column that is better than the one known."""
        key = (block, vector.tobytes())
        at = self._known.get(key)
        if at is None:
            self._known[key] = len(self.block)
            self.block.append(block)
            self.vector.append(vector)
            self.rate.append(rate)
            self.column.append(column)
        else:
            self.rate[at], self.column[at] = rate, column

    def cheapest(
        self, price: NDArray[np.float64], demand: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """[B] cost at prices [K] of the cheapest column that delivers its block's demand [B]."""
        least = np.full(len(demand), np.inf)
        if self.block:
            block, vector, rate = self._arrays()
            rows = np.flatnonzero(rate >= demand[block] * (1 - _REACHED))
            np.minimum.at(least, block[rows], vector[rows] @ price)
        return least

    def _arrays(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
        block = np.array(self.block, dtype=np.int64)
        vector = np.array(self.vector, dtype=np.int64).reshape(len(block), self.resources)
        return block, vector, np.array(self.rate)

    def delivering(self, demand: NDArray[np.float64]) -> "Choice":
        """The columns that deliver the demands [B] of their blocks, without dominated ones."""
        block, vector, rate = self._arrays()
        rows = np.flatnonzero(rate >= demand[block] * (1 - _REACHED))
        rows = rows[np.lexsort((vector[rows].sum(axis=1), block[rows]))]
        kept: list[NDArray[np.int64]] = []
        for own in np.split(rows, np.flatnonzero(np.diff(block[rows])) + 1):
            used = vector[own]
            less = np.all(used[:, None, :] <= used[None, :, :], axis=2)  # i needs no more than j
            kept.append(own[~np.any(np.triu(less, 1), axis=0)])
        chosen = np.concatenate(kept) if kept else rows
        return Choice(rows=chosen, block=block[chosen], vector=vector[chosen], blocks=len(demand))


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Columns to choose from: numbers in `Columns`, blocks [n], vectors [n, K]."""

    rows: NDArray[np.int64]
    block: NDArray[np.int64]
    vector: NDArray[np.int64]
    blocks: int

    def complete(self) -> bool:
        """True if every block has a column."""
        return len(np.unique(self.block)) == self.blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class Relaxed:
    """The relaxed master program: its value (τ, or the price), prices [K], resources lent."""

    value: float
    price: NDArray[np.float64]
    lent: float


def relax(choice: Choice, demands: Demands) -> Relaxed:
    """Solve the relaxed master program over a complete choice."""
    program = _program(choice, demands, whole=False)
    answer = solve_linear(program)
    if answer is None:
        raise InvariantError("the relaxed master program has no answer")
    values, duals = answer
    extra = values[len(choice.rows) :]
    price = np.maximum(duals[choice.blocks :], 0.0)
    if demands.fixed:
        return Relaxed(value=-float(program.cost @ values), price=price, lent=float(extra.sum()))
    return Relaxed(value=float(extra[0]), price=price, lent=0.0)


def choose(
    choice: Choice, demands: Demands, limits: Limits, bonus: NDArray[np.float64] | None = None
) -> list[int] | None:
    """Whole columns that fit, as numbers in `Columns` by block; None where none were found.

    Args:
        choice: the columns.
        demands: what is asked for.
        limits: of minus τ, or minus the price; with a bonus, of the bonus.
        bonus: [n] what each column adds to an objective that is maximised instead, τ at most 1.
    """
    program = _program(choice, demands, whole=True)
    if bonus is not None:
        upper = program.upper.copy()
        if not demands.fixed:
            upper[-1] = 1.0
        cost = np.zeros_like(program.cost)
        cost[: len(bonus)] = bonus
        program = replace(program, cost=cost, upper=upper)
    answer = solve_integer(program, limits)
    if answer.values is None:
        return None
    taken = np.flatnonzero(answer.values[: len(choice.rows)] > 1 / 2)
    first = taken[np.unique(choice.block[taken], return_index=True)[1]]
    if np.any(choice.vector[first].sum(axis=0) > demands.capacity):
        return None
    return choice.rows[first].tolist()


def _program(choice: Choice, demands: Demands, *, whole: bool) -> Program:
    resources, count = len(demands.capacity), len(choice.rows)
    build = ProgramBuilder()
    paid = choice.vector @ demands.price
    columns = build.variables(
        "λ", count, upper=1.0 if whole else np.inf, cost=-paid, whole=whole
    )  # fmt: skip
    one = build.rows("one", choice.blocks, upper=-1.0)
    build.entries(one[choice.block], columns, -1.0)
    room = demands.capacity if demands.fixed else 0.0
    capacity = build.rows("capacity", resources, upper=room)
    row, k = np.nonzero(choice.vector)
    build.entries(capacity[k], columns[row], choice.vector[row, k])
    if demands.fixed:
        far = _LENT * float(paid.max(initial=1.0))
        lent = build.variables("lent", resources, upper=0.0 if whole else np.inf, cost=-far)
        build.entries(capacity, lent, -1.0)
    else:
        tau = build.variables("τ", 1, cost=-1.0)
        build.entries(capacity, np.repeat(tau, resources), -demands.capacity)
    return build.build()
