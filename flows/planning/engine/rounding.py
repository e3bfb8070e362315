"""Whole plans: integer programs over chosen columns, and dives.

A ladder of programs over the columns of least reduced cost, more of them on each rung, looks for
plans that beat the one before. A dive relaxes, takes what is whole (or else the largest count as
1), and relaxes what is left.

Here: plans. Not here: what they prove (`proof`).
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from flows.planning.engine.columns import Columns, Pool
from flows.planning.engine.cover import relax, restarted
from flows.planning.engine.master import Cover, whole_program
from flows.planning.engine.pricing import Pricer
from flows.planning.solver.arrays import Floats, Ints
from flows.planning.solver.solve import Limits, solve_integer
from flows.planning.solver.tolerances import SOLVED
from flows.planning.watch import Watch

DIVE_ROUNDS = 4  # of column generation after every step


@dataclass(slots=True)
class Incumbent:
    """The best plan known.

    Attributes:
        cost: infinite before the first.
        columns: those it uses.
        counts: [n] of each.
        free: of free columns, where a program gave it.
        judge: the true cost of columns, counts and free columns, infinite where they are no plan;
            without it the columns' costs.
    """

    cost: float = np.inf
    columns: Columns = field(default_factory=Columns.none)
    counts: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    free: Floats = field(default_factory=lambda: np.zeros(0))
    judge: Callable[[Columns, Ints, Floats], float] | None = None

    def offer(self, columns: Columns, counts: Ints, free: Floats | None = None) -> bool:
        """Take a plan that is better; whether it is."""
        used = np.flatnonzero(counts)
        columns, counts = columns.take(used), counts[used]
        free = np.zeros(0) if free is None else free
        cost = float(columns.cost @ counts)
        cost = cost if self.judge is None else self.judge(columns, counts, free)
        if cost >= self.cost:
            return False
        self.cost, self.columns, self.counts, self.free = cost, columns, counts, free
        return True

    def among(self, columns: Columns) -> Ints | None:
        """[n] how often the plan has each of some columns; None where it has another."""
        place = {key: n for n, key in enumerate(columns.identities())}
        found = [place.get(key) for key in self.columns.identities()]
        counts = np.zeros(len(columns), dtype=np.int64)
        for at, count in zip(found, self.counts.tolist(), strict=True):
            if at is None:
                return None
            counts[at] += count
        return counts if np.isfinite(self.cost) else None

    def settled(self, bound: float, gap: float) -> bool:
        """True if it is proven within a relative gap."""
        return bool(np.isfinite(self.cost) and self.cost - bound <= gap * abs(self.cost) + 1e-12)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """A program over so many columns.

    Nodes of its tree, and the share of the time left that it may take.
    """

    columns: int
    nodes: int
    share: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """How whole programs are solved.

    Attributes:
        solver: a name of `solver.solve`.
        gap: relative, that is asked for.
        most: [n] of columns: how often each may be taken; without it any number of times.
        begin: programs begin with the best plan known, where they have its columns.
        whole_costs: plans cost multiples of this; 0: anything.
    """

    solver: str = "highs"
    gap: float = 1e-4
    most: Callable[[Columns], Floats] | None = None
    begin: bool = False
    whole_costs: float = 0.0


def restricted(
    cover: Cover,
    columns: Columns,
    incumbent: Incumbent,
    limits: Limits,
    tools: Tools,
) -> float:
    """The whole program over some columns.

    What plans of these that beat the incumbent cost at least.

    Args:
        cover: what is asked for.
        columns: to choose from.
        incumbent: the best plan known; a better one is put there.
        limits: of the solver, of minus the cost.
        tools: how to solve.
    """
    if not len(columns) and not len(cover.free.columns):
        if (cover.need > 0).any():
            return np.inf
        incumbent.offer(columns, np.zeros(0, dtype=np.int64))
        return 0.0
    most = tools.most(columns) if tools.most else np.full(len(columns), np.inf)
    program = whole_program(cover, columns, most)
    count, end = len(columns), len(columns) + len(cover.free.columns)
    known = incumbent.among(columns) if tools.begin else None
    start = None
    if known is not None and len(incumbent.free) == end - count:
        start = np.zeros(program.shape[1])
        start[:end] = np.append(known, incumbent.free)
        limits = replace(limits, cutoff=-np.inf)
    answer = solve_integer(program, limits, tools.solver, start)
    if answer.values is not None:
        counts = np.rint(answer.values[:count]).astype(np.int64)
        incumbent.offer(columns, counts, cover.free.rounded(answer.values[count:end]))
    return -answer.bound


def _room(columns: Columns, demands: int, capacity: Floats) -> Floats:
    """[n] how many of each column its scarcest resource holds."""
    uses = np.flatnonzero((columns.rows >= demands) & (columns.values > 0))
    each = np.floor(capacity[columns.rows[uses] - demands] / columns.values[uses] + SOLVED)
    room = np.full(len(columns), np.inf)
    np.minimum.at(room, columns.of_columns()[uses], each)
    return room


def dive(cover: Cover, pricer: Pricer, pool: Pool, watch: Watch) -> tuple[Columns, Ints]:
    """Columns taken a few at a time, what is left relaxed again each time.

    The plan may miss something.

    Args:
        cover: what is asked for.
        pricer: the source of columns.
        pool: columns known, which grows.
        watch: the clock.
    """
    taken: dict[int, int] = {}
    rest, demands = cover, len(cover.need)
    while (rest.need > SOLVED * cover.need).any():
        relaxed = relax(rest, pricer, pool, watch, rounds=DIVE_ROUNDS)
        if relaxed.mixed is None or relaxed.mixed.counts.max(initial=0.0) <= SOLVED:
            break
        columns, counts = pool.columns, relaxed.mixed.counts
        whole = np.floor(counts + SOLVED).astype(np.int64)
        if not whole.any():
            fits = _room(columns, demands, rest.capacity)[: len(counts)] >= 1
            whole[int(np.argmax(np.where(fits, counts, -1.0)))] = 1
        left = rest.capacity.astype(np.float64)
        served = np.zeros(demands)
        some = False
        for n in np.flatnonzero(whole).tolist():
            own = columns.take(np.array([n]))
            count = int(min(whole[n], _room(own, demands, left)[0]))
            if count <= 0:
                continue
            some = True
            taken[n] = taken.get(n, 0) + count
            given = count * own.matrix(cover.rows)[0]
            left -= given[demands:]
            served += given[:demands]
        if not some or watch.over():
            break
        rest = restarted(cover, np.maximum(rest.need - served, 0.0), np.maximum(left, 0.0))
    counts = np.zeros(len(pool), dtype=np.int64)
    counts[list(taken)] = list(taken.values())
    return pool.columns, counts
