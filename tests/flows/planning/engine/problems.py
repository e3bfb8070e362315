"""Toy problems of the engine: cutting stock, bin packing, generalised assignment.

Seeded, with a second solver. Every column is a knapsack: copies of items within a group's room. The
second solver (SCIP) gets the textbook's compact program, which knows no columns.
"""

import heapq
from dataclasses import dataclass
from functools import cache
from itertools import count
from typing import Any

import numpy as np
import pyscipopt

from flows.planning.engine.columns import Columns
from flows.planning.engine.master import Cover
from flows.planning.engine.pricing import Duals, Priced
from flows.planning.engine.proof import Least
from flows.planning.solver.arrays import Floats, Ints

NOISE = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Knapsacks:
    """Columns that hold copies of items within a room, as a pricer, also step by step.

    Attributes:
        weight: [G, I] of an item in a group.
        room: [G].
        fixed: [G] cost of a column.
        item: [G, I] cost of an item.
        own: [G, O] what a column supplies beside items: the demands behind those of items.
        use: [G, R] of resources.
        copies: of one item in a column at most.
    """

    weight: Ints
    room: Ints
    fixed: Floats
    item: Floats
    own: Floats
    use: Floats
    copies: int
    fewest: Floats
    most: Floats
    cheapest: Floats
    quick: bool = False
    steps: int = 1

    def price(self, duals: Duals, cap: Floats) -> Priced:
        """One best column of every group, all proven."""
        best = [self._nearest(g, duals, cap, np.inf, 1) for g in range(len(self.room))]
        least = np.array([float(reduced[0]) for _, reduced, _ in best])
        return Priced(columns=Columns.joined([columns for columns, _, _ in best]), least=least)

    def within(self, duals: Duals, cap: Floats, slack: Floats, most: int) -> Priced:
        """The best of every group first, as long as they are within the slack."""
        share = max(1, most // len(self.room))
        found = [self._nearest(g, duals, cap, slack[g], share) for g in range(len(self.room))]
        return Priced(
            columns=Columns.joined([columns for columns, _, _ in found]),
            least=np.array([left_out for _, _, left_out in found]),
        )

    def floor(self, duals: Duals) -> Floats:
        """As if items could be cut."""
        value = np.maximum(duals.demand[: self.weight.shape[1]] - self.item, 0.0)
        density = (value / self.weight).max(axis=1)
        return self._base(duals) - density * self.room

    def least(self, group: int, duals: Duals, cutoff: float, step: int) -> Least:
        """Exact at once."""
        del cutoff, step
        cap = np.full(len(duals.demand), np.inf)
        columns, reduced, _ = self._nearest(group, duals, cap, np.inf, 1)
        return float(reduced[0]), columns, 1

    def all(self) -> Columns:
        """Every column there is."""
        zero = Duals.zero(self.weight.shape[1] + self.own.shape[1], self.use.shape[1])
        cap = np.full(len(zero.demand), np.inf)
        groups = range(len(self.room))
        return Columns.joined([self._nearest(g, zero, cap, np.inf, 10**6)[0] for g in groups])

    def _base(self, duals: Duals) -> Floats:
        items = self.weight.shape[1]
        return self.fixed - self.own @ duals.demand[items:] + self.use @ duals.resource

    def _nearest(
        self, g: int, duals: Duals, cap: Floats, slack: float, most: int
    ) -> tuple[Columns, Floats, float]:
        """Columns of least reduced cost, up to slack, up to most.

        These costs; what the others have at least.
        """
        items, room = self.weight.shape[1], int(self.room[g])
        copies = np.arange(self.copies + 1)
        half = duals.half if len(duals.half) else np.zeros(items)
        worth = [
            np.minimum(copies, cap[i]) * duals.demand[i]
            + half[i] * ((copies > 0) + 1.0 * (copies >= cap[i])) / 2
            - copies * self.item[g, i]
            for i in range(items)
        ]
        # suffix[i][r]: the most that items i … are worth in a room r
        suffix = np.zeros((items + 1, room + 1))
        for i in range(items - 1, -1, -1):
            weight = int(self.weight[g, i])
            suffix[i] = worth[i][0] + suffix[i + 1]
            for k in range(1, min(self.copies, room // weight) + 1):
                more = worth[i][k] + suffix[i + 1, : room + 1 - k * weight]
                np.maximum(suffix[i, k * weight :], more, out=suffix[i, k * weight :])
        base, order = float(self._base(duals)[g]), count()
        heap: list[tuple[float, int, float, tuple[int, ...], int]] = [
            (base - float(suffix[0, room]), next(order), 0.0, (), room)
        ]
        found: list[tuple[int, ...]] = []
        reduced: list[float] = []
        while heap and len(found) < most and heap[0][0] <= slack:
            key, _, value, held, r = heapq.heappop(heap)
            i = len(held)
            if i == items:
                found.append(held)
                reduced.append(key)
                continue
            for k in range(min(self.copies, r // int(self.weight[g, i])) + 1):
                left, now = r - k * int(self.weight[g, i]), value + float(worth[i][k])
                bound = base - now - float(suffix[i + 1, left])
                heapq.heappush(heap, (bound, next(order), now, (*held, k), left))
        left_out = heap[0][0] if heap else np.inf
        return self._columns(g, found), np.array(reduced), left_out

    def _columns(self, g: int, found: list[tuple[int, ...]]) -> Columns:
        if not found:
            return Columns.none()
        held = np.array(found, dtype=np.float64)
        n = len(found)
        return Columns.dense(
            self.fixed[g] + held @ self.item[g],
            np.hstack([held, np.repeat(self.own[g : g + 1], n, axis=0)]),
            np.repeat(self.use[g : g + 1], n, axis=0),
            np.full(n, g, dtype=np.int64),
            [(g, one) for one in found],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A problem, its pricer, and the second solver's optimum (infinite: there is no plan)."""

    cover: Cover
    pricer: Knapsacks
    best: float


def minimum(model: Any) -> float:
    """The proven least cost of a SCIP model; infinite where it has no solution."""
    model.optimize()
    status = model.getStatus()
    assert status in {"optimal", "infeasible"}, status
    return float(model.getObjVal()) if status == "optimal" else np.inf


def scip() -> Any:
    """A model that says nothing."""
    model = pyscipopt.Model()
    model.hideOutput()
    return model


def cutting_stock(
    length: int, sizes: Ints, demand: Floats, stocks: float = np.inf, *, solve: bool = True
) -> Problem:
    """Cut sizes from as few stocks of a length as their demand allows; stocks may be limited.

    The second program is Kantorovich's: how many of each size are cut from stock b.
    """
    limited = bool(np.isfinite(stocks))
    items = len(sizes)
    pricer = Knapsacks(
        weight=sizes[None, :],
        room=np.array([length]),
        fixed=np.ones(1),
        item=np.zeros((1, items)),
        own=np.zeros((1, 0)),
        use=np.ones((1, int(limited))),
        copies=int(length // sizes.min()),
        fewest=np.zeros(1),
        most=np.array([stocks]),
        cheapest=np.ones(1),
    )
    cover = Cover(
        need=demand.astype(np.float64),
        capacity=np.full(int(limited), stocks),
        cap=demand.astype(np.float64),
        missed=np.full(items, 10.0),
    )
    return Problem(
        cover=cover,
        pricer=pricer,
        best=_kantorovich(length, sizes, demand, stocks) if solve else np.nan,
    )


def _kantorovich(length: int, sizes: Ints, demand: Floats, stocks: float) -> float:
    # A stock for every piece that is first fit does not place in those before.
    first: list[int] = []
    for size in sorted(np.repeat(sizes, demand.astype(int)).tolist(), reverse=True):
        for b, used in enumerate(first):
            if used + size <= length:
                first[b] += size
                break
        else:
            first.append(size)
    bins = int(min(len(first), stocks))
    model = scip()
    cut = [[model.addVar(vtype="I", lb=0) for _ in sizes] for _ in range(bins)]
    used = [model.addVar(vtype="B", obj=1.0) for _ in range(bins)]
    for b in range(bins):
        row = pyscipopt.quicksum(int(w) * x for w, x in zip(sizes, cut[b], strict=True))
        model.addCons(row <= length * used[b])
        if b:
            model.addCons(used[b - 1] >= used[b])
    for i, need in enumerate(demand.tolist()):
        if not bins and need:
            return np.inf
        if bins:
            model.addCons(pyscipopt.quicksum(cut[b][i] for b in range(bins)) >= need)
    return minimum(model) if bins else 0.0


def cutgen1(
    seed: int,
    sizes: int = 5,
    length: int = 100,
    low: float = 0.2,
    high: float = 0.7,
    mean: float = 3.0,
) -> tuple[int, Ints, Floats]:
    """A cutting stock problem as CUTGEN1 draws it (Gau and Wäscher 1995): length, sizes, demands.

    Sizes are uniform whole numbers between low and high times the length, equal ones merged; the
    total demand, sizes times mean, is divided by uniform random shares.
    """
    draw = np.random.default_rng(seed)
    lengths = draw.integers(int(np.ceil(low * length)), int(high * length) + 1, sizes)
    shares = draw.uniform(0.0, 1.0, sizes)
    total = int(sizes * mean)
    wanted = np.maximum(1, np.floor(total * shares / shares.sum() + 0.5))
    wanted[-1] = max(1.0, total - wanted[:-1].sum())
    merged = np.unique(lengths)
    return length, merged, np.array([wanted[lengths == size].sum() for size in merged])


def falkenauer_uniform(seed: int, items: int = 12) -> tuple[int, Ints, Floats]:
    """A bin packing problem as the set u120 is drawn (Falkenauer 1996), with fewer items.

    Bin, sizes, demands. Sizes are uniform whole numbers from 20 to 100, bins hold 150.
    """
    draw = np.random.default_rng(seed)
    sizes, copies = np.unique(draw.integers(20, 101, items), return_counts=True)
    return 150, sizes, copies.astype(np.float64)


def chu_beasley(kind: str, seed: int, agents: int = 3, jobs: int = 8) -> tuple[Ints, Floats, Ints]:
    """A small generalised assignment problem, type A to E (Chu, Beasley 1997; Laguna 1995).

    Returns weights [agents, jobs], costs of the same shape, rooms [agents].
    """
    draw = np.random.default_rng(seed)
    shape = (agents, jobs)
    if kind in "ABC":
        weight, cost = draw.integers(5, 26, shape), draw.integers(10, 51, shape)
    elif kind == "D":
        weight = draw.integers(1, 101, shape)
        cost = 111 - weight + draw.integers(-10, 11, shape)
    else:
        real = 1 - 10 * np.log(draw.uniform(np.finfo(float).tiny, 1.0, shape))
        weight = np.ceil(real).astype(np.int64)
        cost = np.rint(1000 / weight - 10 * draw.uniform(0.0, 1.0, shape))
    if kind in "AB":
        cheapest = cost.argmin(axis=0)
        loads = [weight[i, cheapest == i].sum() for i in range(agents)]
        room = np.full(agents, 9 * jobs / agents + 0.4 * max(loads))
        room = room if kind == "A" else 0.7 * room
    else:
        room = 0.8 * weight.sum(axis=1) / agents
    return weight, cost.astype(np.float64), np.floor(room).astype(np.int64)


def assignment(weight: Ints, cost: Floats, room: Ints, *, exactly_one: bool = False) -> Problem:
    """Every job to one agent, within the agents' rooms, at least cost.

    A column is what an agent does; an agent has one at most, or `exactly_one`, which may be to do
    nothing.
    """
    agents, jobs = weight.shape
    own = np.eye(agents) if exactly_one else np.zeros((agents, 0))
    pricer = Knapsacks(
        weight=weight,
        room=room,
        fixed=np.zeros(agents),
        item=cost,
        own=own,
        use=np.eye(agents),
        copies=1,
        fewest=np.full(agents, float(exactly_one)),
        most=np.ones(agents),
        cheapest=np.zeros(agents),
    )
    need = np.ones(jobs + own.shape[1])
    cover = Cover(
        need=need, capacity=np.ones(agents), cap=need, missed=np.full(len(need), 10 * cost.sum())
    )
    model = scip()
    does = [[model.addVar(vtype="B", obj=float(c)) for c in row] for row in cost]
    for i in range(agents):
        load = pyscipopt.quicksum(int(w) * x for w, x in zip(weight[i], does[i], strict=True))
        model.addCons(load <= int(room[i]))
    for j in range(jobs):
        model.addCons(pyscipopt.quicksum(does[i][j] for i in range(agents)) >= 1)
    return Problem(cover=cover, pricer=pricer, best=minimum(model))


@cache
def some(seed: int) -> Problem:
    """One of all kinds."""
    kind = "CFGABCDE"[seed % 8]
    if kind in "CG":
        length, sizes, demand = cutgen1(seed)
        return cutting_stock(length, sizes, demand, np.inf if kind == "C" else demand.sum())
    if kind == "F":
        return cutting_stock(*falkenauer_uniform(seed))
    return assignment(*chu_beasley(kind, seed), exactly_one=bool(seed // 8 % 2))


def some_duals(problem: Problem, seed: int) -> Duals:
    """Any prices, some of them 0."""
    draw = np.random.default_rng(seed)

    def prices(n: int, scale: float) -> Floats:
        return draw.uniform(0.0, scale, n) * (draw.uniform(size=n) < 0.8)

    scale = float(10.0 ** draw.uniform(-1.0, 0.5)) * (
        1.0 if problem.pricer.fixed.any() else float(problem.pricer.item.max())
    )
    return Duals(
        demand=prices(len(problem.cover.need), scale),
        resource=prices(len(problem.cover.capacity), scale),
    )


def meets(cover: Cover, columns: Columns, counts: Ints) -> bool:
    """True if a plan meets every demand within the resources."""
    total, demands = counts @ columns.matrix(cover.rows), len(cover.need)
    return bool(
        (total[:demands] >= cover.need - NOISE).all()
        and (total[demands:] <= cover.capacity + NOISE).all()
    )
