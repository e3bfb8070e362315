"""The master program: how many of each column, so that demands are met within the resources.

    minimise    Σ_j cost_j x_j + Σ_f cost_f y_f
    demand_d:   Σ_j a_dj x_j + Σ_f a_df y_f ≥ need_d           dual π_d
    resource_r: Σ_j u_rj x_j + Σ_f u_rf y_f ≤ capacity_r       dual μ_r
    half_d:     Σ_j h_dj x_j ≥ 1                               dual η_d
                h = 1 where a_dj ≥ need_d, 1/2 where a_dj > 0, else 0
    x ≥ 0, 0 ≤ y_f ≤ upper_f

Halves are rows of covers that ask for them: whole columns meet a fixed demand by one that supplies
all of it, or by two that supply some (Chvátal 1973). Free columns y are the family's own: a level
that is maximised (cost -1, takes from every demand), resources that are lent at a cost. The linear
program is kept warm while columns join; the whole one is built for either solver.
"""

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from flows.planning.engine.columns import Columns, undominated
from flows.planning.engine.pricing import Duals
from flows.planning.solver.arrays import Floats
from flows.planning.solver.program import Program, ProgramBuilder
from flows.planning.solver.tolerances import ROUNDING
from flows.planning.solver.warm import WarmProgram

FULL = 1 - ROUNDING
"""Of a demand: a supply that counts as all of it."""
_MISSED = 1e3
"""The cost of a missed demand, in units of all that the plan may otherwise cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Free:
    """Columns that no pricer brings.

    Attributes:
        columns: their costs and entries; groups mean nothing here.
        upper: [n] bounds.
        whole: [n] whether they are whole numbers in a whole program; empty where none is.
    """

    columns: Columns = field(default_factory=Columns.none)
    upper: Floats = field(default_factory=lambda: np.zeros(0))
    whole: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))

    @classmethod
    def dense(
        cls,
        cost: Floats,
        supply: Floats,
        use: Floats,
        upper: float | Floats = np.inf,
        whole: NDArray[np.bool_] | None = None,
    ) -> "Free":
        """From full matrices: supply [n, D], use [n, R]."""
        n = len(cost)
        return cls(
            columns=Columns.dense(cost, supply, use, np.zeros(n, dtype=np.int64), range(n)),
            upper=np.broadcast_to(np.asarray(upper, dtype=np.float64), n),
            whole=np.zeros(n, dtype=np.bool_) if whole is None else whole,
        )

    def and_these(self, other: "Free") -> "Free":
        """Both, in order."""
        return Free(
            columns=Columns.joined([self.columns, other.columns]),
            upper=np.append(self.upper, other.upper),
            whole=np.append(self.whole, other.whole),
        )

    def rounded(self, values: Floats) -> Floats:
        """Values [n] of a solution, those that are whole made so."""
        return np.where(self.whole, np.rint(values), values) if len(self.whole) else values


@dataclass(frozen=True, slots=True, kw_only=True)
class Cover:
    """The demand.

    Attributes:
        need: [D] of every demand.
        capacity: [R] of every resource.
        free: columns of the family's own.
        cap: [D] what one column counts for at most; the need itself where whole columns cover fixed
            demands, infinite where a level is maximised.
        missed: [D] what a unit of a demand that is not met costs; infinite where columns known at
            the start can meet every demand.
        halves: whether fixed demands are asked for in halves, too (head of this file); caps are
            then what is needed.
    """

    need: Floats
    capacity: Floats
    free: Free = field(default_factory=Free)
    cap: Floats
    missed: Floats
    halves: bool = False

    @property
    def rows(self) -> int:
        """Demands and resources: the rows of columns."""
        return len(self.need) + len(self.capacity)

    @property
    def caps(self) -> Floats:
        """[D + R] what a column counts for at most in every row."""
        return np.concatenate([self.cap, np.full(len(self.capacity), np.inf)])

    @property
    def half_need(self) -> Floats:
        """[D or 0] of the rows of halves."""
        return (self.need > 0).astype(np.float64) if self.halves else np.zeros(0)

    def counted(self, columns: Columns) -> Columns:
        """Columns as the master program counts them: up to caps, halves behind the resources."""
        capped = columns.capped(self.caps)
        if not self.halves:
            return capped
        gives = np.flatnonzero((capped.rows < len(self.need)) & (capped.values > 0))
        demand, of = capped.rows[gives], capped.of_columns()
        full = columns.values[gives] >= self.need[demand] * FULL
        every = np.concatenate([of, of[gives]])
        order = np.argsort(every, kind="stable")
        return replace(
            capped,
            starts=np.searchsorted(every[order], np.arange(len(columns) + 1)),
            rows=np.concatenate([capped.rows, self.rows + demand])[order],
            values=np.concatenate([capped.values, 0.5 + 0.5 * full])[order],
        )

    def undominated(self, columns: Columns) -> Columns:
        """Without columns that another of their group dominates.

        That one supplies no less up to caps, uses no more and costs no more.
        """
        counted = self.counted(columns)
        used = (counted.rows >= len(self.need)) & (counted.rows < self.rows)
        gives = replace(counted, values=np.where(used, -counted.values, counted.values))
        full = np.column_stack([gives.in_groups(), -columns.cost])
        return columns.take(np.flatnonzero(undominated(full, columns.group)))


def level_column(weight: Floats, resources: int, most: float = np.inf) -> Free:
    """The level z of demands weight [D] · z, to be maximised: a free column of cost -1."""
    return Free.dense(np.array([-1.0]), -weight[None, :], np.zeros((1, resources)), most)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixed:
    """An optimum of the linear master program.

    Attributes:
        value: its cost, what is missed included.
        counts: [n] of the columns in the order in which they were added.
        free: [n] of the free columns.
        missed: [D] of demands.
        duals: prices of the rows.
    """

    value: float
    counts: Floats
    free: Floats
    missed: Floats
    duals: Duals


class Master:
    """The linear master program, warm."""

    def __init__(self, cover: Cover) -> None:
        self._cover = cover
        none = np.full(len(cover.capacity), -np.inf)
        beyond, half = np.full(len(cover.need), np.inf), cover.half_need
        self._program = WarmProgram(
            np.concatenate([cover.need, none, half]),
            np.concatenate([beyond, cover.capacity, np.full(len(half), np.inf)]),
        )
        free, self._missable = cover.free, np.flatnonzero(np.isfinite(cover.missed))
        self._add(free.columns, free.upper)
        lost, price = self._missable, cover.missed[self._missable]
        if cover.halves:  # a row of halves that is missed costs the whole demand
            price = np.concatenate([price, price * cover.need[lost]])
            lost = np.concatenate([lost, cover.rows + lost])
        one_each = np.arange(len(lost) + 1), lost, np.ones(len(lost))
        self._program.add(price, np.full(len(lost), np.inf), one_each)
        self._first = len(free.columns) + len(lost)

    def _add(self, columns: Columns, upper: Floats) -> None:
        entries = (columns.starts, columns.rows, columns.values)
        self._program.add(columns.cost, upper, entries)

    def add(self, columns: Columns) -> None:
        """Let columns join, as the cover counts them."""
        columns = self._cover.counted(columns)
        self._add(columns, np.full(len(columns), np.inf))

    def solve(self) -> Mixed | None:
        """An optimum; None where the columns known cannot meet the demands."""
        found = self._program.solve()
        if found is None:
            return None
        value, values, duals = found
        demands, free = len(self._cover.need), len(self._cover.free.columns)
        missed = np.zeros(demands)
        missed[self._missable] = values[free : free + len(self._missable)]
        return Mixed(
            value=value,
            counts=values[self._first :],
            free=values[:free],
            missed=missed,
            duals=Duals(
                demand=np.maximum(duals[:demands], 0.0),
                resource=np.maximum(-duals[demands : self._cover.rows], 0.0),
                half=np.maximum(duals[self._cover.rows :], 0.0),
            ),
        )


def whole_program(cover: Cover, columns: Columns, most: Floats) -> Program:
    """The integer program over some columns, up to most [n] of each; nothing may be missed.

    Its first variables are how many of each column, then those of the free columns.

    Args:
        cover: what is asked for.
        columns: to choose from.
        most: [n] of every column.
    """
    build, free = ProgramBuilder(), cover.free
    columns = cover.counted(columns)
    n = build.variables("columns", len(columns), upper=most, cost=-columns.cost, whole=True)
    y = build.variables(
        "free",
        len(free.columns),
        upper=free.upper,
        cost=-free.columns.cost,
        whole=free.whole if len(free.whole) else False,
    )
    demands = build.rows("demand", len(cover.need), upper=-cover.need)
    resources = build.rows("resource", len(cover.capacity), upper=cover.capacity)
    halves = build.rows("half", len(cover.half_need), upper=-cover.half_need)
    rows = np.concatenate([demands, resources, halves])
    sign = np.where(np.isin(np.arange(len(rows)), np.arange(len(demands), cover.rows)), 1.0, -1.0)
    for part, variables in ((columns, n), (free.columns, y)):
        of = variables[part.of_columns()]
        build.entries(rows[part.rows], of, sign[part.rows] * part.values)
    return build.build()


def missed_prices(cover_cost: float, need: Floats) -> Floats:
    """[D] prices for what is missed, beyond any plan that costs up to `cover_cost`."""
    return _MISSED * max(cover_cost, 1.0) / np.maximum(need, 1e-300)
