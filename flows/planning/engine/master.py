"""The master program: how many of each column, so that demands are met within the resources.

    minimise    Σ_j cost_j x_j + Σ_f cost_f y_f
    demand_d:   Σ_j a_dj x_j + Σ_f a_df y_f ≥ need_d           dual π_d
    resource_r: Σ_j u_rj x_j + Σ_f u_rf y_f ≤ capacity_r       dual μ_r
    x ≥ 0, lower_f ≤ y_f ≤ upper_f

Free columns y are the family's own: a level that is maximised (cost -1, takes from every demand),
resources that are lent at a high cost. The linear program is kept warm while columns join; the
whole one is built for either solver.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from flows.planning.engine.columns import Columns
from flows.planning.engine.pricing import Duals
from flows.planning.solver.arrays import Floats, Ints
from flows.planning.solver.program import Program, ProgramBuilder
from flows.planning.solver.warm import WarmProgram

_MISSED = 1e3
"""The cost of a missed demand, in units of all that the plan may otherwise cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Free:
    """Columns that no pricer brings.

    Attributes:
        columns: their costs and entries; groups mean nothing here.
        lower, upper: [n] bounds.
    """

    columns: Columns = field(default_factory=Columns.none)
    lower: Floats = field(default_factory=lambda: np.zeros(0))
    upper: Floats = field(default_factory=lambda: np.zeros(0))


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
    """

    need: Floats
    capacity: Floats
    free: Free = field(default_factory=Free)
    cap: Floats
    missed: Floats

    @property
    def rows(self) -> int:
        """Demands and resources."""
        return len(self.need) + len(self.capacity)

    @property
    def caps(self) -> Floats:
        """[D + R] what a column counts for at most in every row."""
        return np.concatenate([self.cap, np.full(len(self.capacity), np.inf)])


def level_column(weight: Floats, resources: int, most: float = np.inf) -> Free:
    """The level z of demands weight [D] · z, to be maximised: a free column of cost -1."""
    return Free(
        columns=Columns.dense(
            np.array([-1.0]),
            -weight[None, :],
            np.zeros((1, resources)),
            np.zeros(1, np.int64),
            [""],
        ),
        lower=np.zeros(1),
        upper=np.array([most]),
    )


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
        beyond = np.full(len(cover.need), np.inf)
        self._program = WarmProgram(
            np.concatenate([cover.need, none]), np.concatenate([beyond, cover.capacity])
        )
        free, self._missable = cover.free, np.flatnonzero(np.isfinite(cover.missed))
        self._add(free.columns, free.lower, free.upper)
        lost = self._missable
        one = Columns(
            cost=cover.missed[lost],
            starts=np.arange(len(lost) + 1),
            rows=lost,
            values=np.ones(len(lost)),
            group=np.zeros(len(lost), np.int64),
            source=[None] * len(lost),
        )
        self._add(one, np.zeros(len(lost)), np.full(len(lost), np.inf))
        self._first = len(free.columns) + len(lost)

    def _add(self, columns: Columns, lower: Floats, upper: Floats) -> None:
        entries = (columns.starts, columns.rows, columns.values)
        self._program.add(columns.cost, (lower, upper), entries)

    def add(self, columns: Columns) -> None:
        """Let columns join; each counts up to the cover's caps."""
        columns = columns.capped(self._cover.caps)
        self._add(columns, np.zeros(len(columns)), np.full(len(columns), np.inf))

    def solve(self) -> Mixed | None:
        """An optimum; None where the columns known cannot meet the demands."""
        found = self._program.solve()
        if found is None:
            return None
        demands, free = len(self._cover.need), len(self._cover.free.columns)
        missed = np.zeros(demands)
        missed[self._missable] = found.values[free : self._first]
        return Mixed(
            value=found.value,
            counts=found.values[self._first :],
            free=found.values[:free],
            missed=missed,
            duals=Duals(
                demand=np.maximum(found.duals[:demands], 0.0),
                resource=np.maximum(-found.duals[demands:], 0.0),
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """The master program in whole numbers, and where its variables are."""

    program: Program
    counts: Ints
    free: Ints


Extra = Callable[[ProgramBuilder, Columns, Ints], None]
"""Adds a family's own variables and rows to a whole program, given its columns."""


def whole_program(
    cover: Cover, columns: Columns, most: Floats, extra: Extra | None = None
) -> Whole:
    """The integer program over some columns, up to most [n] of each; nothing may be missed.

    Args:
        cover: what is asked for.
        columns: to choose from.
        most: [n] of every column.
        extra: adds variables and rows of the family's own.
    """
    build, free = ProgramBuilder(), cover.free
    columns = columns.capped(cover.caps)
    n = build.variables("columns", len(columns), upper=most, cost=-columns.cost, whole=True)
    y = build.variables(
        "free", len(free.columns), lower=free.lower, upper=free.upper, cost=-free.columns.cost
    )
    demands = build.rows("demand", len(cover.need), upper=-cover.need)
    resources = build.rows("resource", len(cover.capacity), upper=cover.capacity)
    rows = np.concatenate([demands, resources])
    sign = np.concatenate([np.full(len(demands), -1.0), np.ones(len(resources))])
    for part, variables in ((columns, n), (free.columns, y)):
        of = variables[part.of_columns()]
        build.entries(rows[part.rows], of, sign[part.rows] * part.values)
    if extra is not None:
        extra(build, columns, n)
    return Whole(program=build.build(), counts=n, free=y)


def missed_prices(cover_cost: float, need: Floats) -> Floats:
    """[D] prices for what is missed, beyond any plan that costs up to `cover_cost`."""
    return _MISSED * max(cover_cost, 1.0) / np.maximum(need, 1e-300)
