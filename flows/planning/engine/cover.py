"""Column generation.

The linear optimum over all columns, its prices, and a bound that no plan beats. The master program
over the columns known gives prices; the pricer answers them with columns that would pay off; they
join, until none does. Prices of a master program swing, so a quick pricer is asked first half way
between them and the prices of the best bound (Wentges 1997); where that brings nothing new, at the
master's own. A look of any other pricer is too dear to bring nothing.

Whatever the prices π, μ ≥ 0, and whatever columns are known, no plan costs less than (weak duality)

    Lagrange   π·need - μ·capacity + η·1 + Σ_g n_g r_g + Σ_f min over 0 ≤ y_f ≤ upper_f of r_f y_f
               r_g: no column of group g has a lower reduced cost; n_g: most_g where r_g < 0, else
                   fewest_g
    Farley     f · (π·need - μ·capacity + η·1) + the same for free columns at prices f π, f μ
               f = min over groups of cheapest_g / (cheapest_g - r_g): no reduced cost stays below 0

and the same at prices that the pricer itself has made feasible. The greatest of them counts.
"""

from dataclasses import dataclass, replace

import numpy as np

from flows.planning.engine.columns import Columns, Pool
from flows.planning.engine.master import Cover, Master, Mixed
from flows.planning.engine.pricing import Duals, Priced, Pricer, ScreeningPricer
from flows.planning.solver.arrays import Floats
from flows.planning.solver.tolerances import ROUNDING
from flows.planning.watch import Watch

ROUNDS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Relaxed:
    """Where column generation ended.

    Attributes:
        value: of the linear master program over the columns known; infinite where none was solved.
        bound: no plan costs less; minus infinity where nothing is proven.
        duals: the prices that prove it.
        mixed: the master program's optimum, counts in the order of `pool.columns`; None where there
            is none.
    """

    value: float
    bound: float
    duals: Duals
    mixed: Mixed | None


def bound_at(cover: Cover, pricer: Pricer, duals: Duals, priced: Priced) -> tuple[float, Duals]:
    """A bound by a pricer's answer, and the prices that prove it."""
    best = (at_prices(cover, pricer, duals, priced.least), duals)
    least = np.minimum(priced.least, 0.0)
    below = least < 0
    factor = 0.0
    if not below.any():
        factor = 1.0
    elif (pricer.cheapest[below] > 0).all() and np.isfinite(least).all():
        cheapest = pricer.cheapest[below]
        factor = float((cheapest / (cheapest - least[below])).min())
    # A factor of 1 counts too: what rounding puts a little below 0 would count without end.
    scaled = [duals.scaled(factor)] if factor > 0 else []
    for other in scaled + ([] if priced.feasible is None else [priced.feasible]):
        best = max(best, (_worth(cover, other), other), key=lambda known: known[0])
    return best


def at_prices(cover: Cover, pricer: Pricer, duals: Duals, least: Floats) -> float:
    """The Lagrange bound if no column of a group has a reduced cost below least [G]."""
    copies = np.where(least < 0, pricer.most, pricer.fewest)
    counted = (least != 0) & (copies != 0)  # no copies, and copies at 0, cost nothing: 0 · inf is 0
    return _worth(cover, duals) + float(copies[counted] @ least[counted])


def _worth(cover: Cover, duals: Duals) -> float:
    """The cost of the demands at prices, free columns at their best."""
    worth = float(duals.demand @ cover.need - duals.resource @ cover.capacity)
    worth += float(duals.half @ cover.half_need)
    columns = cover.free.columns
    if not len(columns):
        return worth
    reduced = duals.reduced(columns)
    sizes = replace(columns, values=np.abs(columns.values))
    scale = np.abs(columns.cost) + sizes.priced(np.abs(duals.rows))
    taken = (reduced < -ROUNDING * scale) & (cover.free.upper != 0)  # 0 · inf is 0
    return worth + float(reduced[taken] @ cover.free.upper[taken])


def normal(cover: Cover, duals: Duals) -> Duals:
    """The same prices, scaled so that a free column without an upper bound has the reduced cost 0.

    Where a level is maximised, prices mean something only up to a factor.
    """
    columns = cover.free.columns
    for n in np.flatnonzero(np.isinf(cover.free.upper)).tolist():
        worth = float(columns.priced(duals.rows)[n])
        if worth * columns.cost[n] > 0:
            return duals.scaled(float(columns.cost[n]) / worth)
    return duals


@dataclass(slots=True)
class Generation:
    """Column generation for one cover; more columns and other prices may be tried at any time.

    Attributes:
        cover: what is asked for.
        pricer: the source of columns.
        pool: columns known; shared with other covers of the same pricer, which begin with them.
        close: relative gap between master program and bound at which it ends.
        enough: a bound at which it ends, too.
        bound: no plan costs less.
        duals: the prices that prove it.
    """

    cover: Cover
    pricer: Pricer
    pool: Pool
    watch: Watch
    close: float = 0.0
    rounds: int = ROUNDS
    whole_costs: float = 0.0
    enough: float = np.inf
    bound: float = -np.inf
    duals: Duals | None = None

    def run(self, start: Duals | None = None) -> Relaxed:
        """Generate columns until none pays off, the gap is closed, or the time is over.

        Args:
            start: prices to look at first.
        """
        master = Master(self.cover)
        master.add(self.pool.columns)
        if start is not None:
            self._join(master, self._look(normal(self.cover, start)))
        mixed = None if self._enough() else master.solve()
        for _ in range(self.rounds):
            if mixed is not None and self._closed(mixed.value):
                break
            if mixed is None or not self._round(master, mixed) or self.watch.over():
                break
            mixed = master.solve()
        sizes = len(self.cover.need), len(self.cover.capacity), len(self.cover.half_need)
        return Relaxed(
            value=np.inf if mixed is None else mixed.value,
            bound=self.bound,
            duals=self.duals or Duals.zero(*sizes),
            mixed=mixed,
        )

    def _closed(self, value: float) -> bool:
        if self._enough() or not np.isfinite(self.bound):
            return self._enough()
        bound = raised(self.bound, self.whole_costs)
        return value - bound <= max(self.close, ROUNDING) * abs(value)

    def _enough(self) -> bool:
        return raised(self.bound, self.whole_costs) >= self.enough < np.inf

    def _round(self, master: Master, mixed: Mixed) -> bool:
        """Look for columns that pay off; whether any joined."""
        prices = mixed.duals
        at = [normal(self.cover, prices)]
        if self.duals is not None and self.pricer.quick:
            at.insert(0, normal(self.cover, self.duals).between(at[0], 0.5))
        for duals in at:
            found = self._look(duals)
            reduced = prices.reduced(self.cover.counted(found))
            paid = np.abs(found.cost) + np.abs(found.cost - reduced)
            if self._join(master, found.take(np.flatnonzero(reduced < -ROUNDING * paid))):
                return True
            if self._closed(mixed.value):
                return False
        return False

    def _join(self, master: Master, columns: Columns) -> bool:
        fresh = self.pool.add(columns)
        master.add(fresh)
        return len(fresh) > 0

    def _look(self, duals: Duals) -> Columns:
        """Ask the pricer, and keep what it proves."""
        priced = self.pricer.price(duals, self.cover.cap)
        bound, proving = bound_at(self.cover, self.pricer, duals, priced)
        if bound > self.bound or self.duals is None:
            self.bound, self.duals = max(bound, self.bound), proving
        return priced.columns


def relax(
    cover: Cover,
    pricer: Pricer,
    pool: Pool,
    watch: Watch,
    *,
    start: Duals | None = None,
    rounds: int = ROUNDS,
) -> Relaxed:
    """The linear optimum over all columns of a pricer, nearly, and the bound that its prices prove.

    Args:
        cover: what is asked for.
        pricer: the source of columns.
        pool: columns known, which grows.
        watch: the clock.
        start: prices to look at first.
        rounds: at most.
    """
    return Generation(cover, pricer, pool, watch, rounds=rounds).run(start)


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """Columns that a better plan may have, by prices and their bound.

    A plan with a column of reduced cost r costs bound + r - base_g at least: what the bound counts
    for the group g already, it counts in this column's place.

    Attributes:
        columns: those found.
        outside: plans with any other column cost at least.
        bound: no plan costs less.
        duals: prices of the reduced costs.
        base: [G] what the bound counts for a column of a group.
    """

    columns: Columns
    outside: float
    bound: float
    duals: Duals
    base: Floats

    def at_least(self, cover: Cover, columns: Columns) -> Floats:
        """[n] what a plan with each of some columns costs at least."""
        reduced = self.duals.reduced(cover.counted(columns))
        return self.bound + reduced - self.base[columns.group]


def screened(
    cover: Cover, pricer: ScreeningPricer, duals: Duals, known: float, most: int
) -> Screen:
    """Columns that a plan cheaper than one known may have.

    Those that lose no more than is open to the bound.

    Args:
        cover: what is asked for.
        pricer: the source of columns.
        duals: the prices.
        known: cost of the best plan known.
        most: columns, nearly.
    """
    priced = pricer.price(duals, cover.cap)
    bound, proving = bound_at(cover, pricer, duals, priced)
    if proving is not duals:  # the prices were made feasible
        duals, priced = proving, pricer.price(proving, cover.cap)
    bound, least = max(bound, at_prices(cover, pricer, duals, priced.least)), priced.least
    counted = np.where(least < 0, np.isfinite(pricer.most), pricer.fewest > 0) & np.isfinite(least)
    base = np.where(counted, least, 0.0)
    lost = known - bound if known > bound else 0.0
    found = pricer.within(duals, cover.cap, base + lost, most)
    left = np.isfinite(found.least)
    outside = np.where(left, bound + np.where(left, found.least - base, 0.0), found.least)
    return Screen(
        columns=found.columns,
        outside=float(outside.min(initial=np.inf)),
        bound=bound,
        duals=duals,
        base=base,
    )


def raised(bound: float, step: float) -> float:
    """The next cost that a plan can have, where costs are multiples of a step; 0: any."""
    if not step or not np.isfinite(bound):
        return bound
    return float(np.ceil(bound / step - 1e-6) * step)


def restarted(cover: Cover, need: Floats, capacity: Floats) -> Cover:
    """The same for what is left of demands and resources; columns count for no more than that."""
    need = np.where(need > ROUNDING * cover.need, need, 0.0)
    return replace(cover, need=need, capacity=capacity, cap=np.minimum(cover.cap, need))
