"""Time and GPUs handed out to lines of which no more is known than what their relaxation needs.

Without regard to whole vGPUs, GPUs a_m serve a line m within a budget where they hold some mix of
its configurations: R_m · usage of the mix <= a_m. So at any prices p of GPUs they are worth at
least

    floor_mp(L) = R_m · min over configurations c of at most L of  p · usage_c

and prices are found one by one, where GPUs were handed out that do not suffice (Benders 1962):

    a_mk whole    GPUs of class k that line m has
    u_ml 0 or 1   line m keeps level l; only times at which some floor falls are levels
    minimise   sum_mk price_k · a_mk
    capacity_k:  sum_m a_mk <= gpus_k,      one_m and paths as in `levels`
    floor_mp:    sum_l floor_mp(l) · u_ml <= p · a_m        for every price found

This has no configurations, so it is small where a program over them is not, and it keeps what the
relaxation of all lines loses: whole GPUs of each. What it costs is a bound for all plans; its times
are worth a search.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from flows.planning.applications.lines import Lines
from flows.planning.pool.applications.levels import Floor, add_one, add_paths
from flows.planning.solver.arrays import Floats, Ints
from flows.planning.solver.program import Program, ProgramBuilder
from flows.planning.solver.solve import FEW_NODES, Limits, solve_integer, solve_linear
from flows.planning.solver.tolerances import ROUND_OFF_US, SOLVED
from flows.planning.watch import Watch

_ROUNDS, _WHOLE_ROUNDS = 40, 4  # of programs without and with whole numbers


@dataclass(slots=True)
class LineLowerBounds:
    """The needs of one line.

    Attributes:
        times: [n] of its configurations (µs), rising.
        usage: [n, C] GPUs that each takes for all of the line's rate.
        prices: [C] found so far, each with its floors [n].
    """

    times: Floats
    usage: Floats
    prices: list[tuple[Floats, Floats]] = field(default_factory=list[tuple[Floats, Floats]])

    def add(self, price: Floats) -> None:
        """Know what GPUs are worth at prices, in units of the least that suffices."""
        floors = np.minimum.accumulate(self.usage @ price)
        if floors[-1] > 0:
            self.prices.append((price / floors[-1], floors / floors[-1]))

    def levels(self) -> Ints:
        """Rows where some floor is lower than before."""
        floors = np.array([own for _, own in self.prices])
        falls = np.any(np.diff(floors, axis=1) < 0, axis=0)
        return np.flatnonzero(np.concatenate([[True], falls]))

    def short(self, row: int, gpus: Floats) -> Floats | None:
        """Prices at which some GPUs are worth less than anything as fast as a row.

        None where they suffice.

        maximise sum_c x_c   subject to   sum_c usage_c x_c <= gpus: the prices are its duals.
        """
        usage = self.usage[: np.searchsorted(self.times, self.times[row], side="right")]
        build = ProgramBuilder()
        part = build.variables("x", len(usage), cost=1.0)
        build.entries(build.rows("capacity", len(gpus), upper=gpus), part[:, None], usage)
        answer = solve_linear(build.build())
        return None if answer is None or answer[0].sum() >= 1 - SOLVED else answer[1]

    def floor(self, number: int) -> list[Floor]:
        """Known facts as rows of a program over configurations."""

        def proven(budgets_us: Floats, own: Floats) -> Floats:
            at = np.searchsorted(self.times, budgets_us + ROUND_OFF_US, side="right") - 1
            return np.where(at >= 0, own[np.maximum(at, 0)], np.inf)

        return [
            (number, price, lambda budgets, own=own: proven(budgets, own))
            for price, own in self.prices
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedOut:
    """The result of handing out GPUs.

    Attributes:
        bound: what no plan costs less than.
        times: by line (µs); None where none were found.
        extra: [C] what GPUs are worth beside what they cost, were parts of them handed out.
    """

    bound: float
    times: list[int] | None
    extra: Floats


@dataclass(frozen=True, slots=True)
class _Master:
    """The program, its rows of GPUs [C], and the numbers of its variables.

    GPUs [lines, C], levels and their rows by line.
    """

    program: Program
    capacity: Ints
    owned: Ints
    chosen: list[Ints]
    rows: list[Ints]


def hand_out(
    lines: Lines,
    gpus: Ints,
    price: Floats,
    line_bounds: Sequence[LineLowerBounds],
    watch: Watch,
    cutoff: float,
) -> HandedOut:
    """Hand out time and GPUs at least cost.

    Args:
        lines: paths and limits.
        gpus: [C] that there are.
        price: [C] of a GPU.
        line_bounds: what every line needs; prices that are found are added.
        watch: ends it earlier.
        cutoff: a cost, plans of which are of no interest.
    """
    for own in line_bounds:
        for k in range(len(gpus)):
            own.add(price / price.max() + len(gpus) * np.eye(len(gpus))[k])
    best = HandedOut(bound=-np.inf, times=None, extra=np.zeros(len(gpus)))
    for _ in range(_ROUNDS):
        master = _master(lines, gpus, price, line_bounds, whole=False)
        answer = solve_linear(master.program)
        if answer is None:
            return best
        best = replace(best, extra=np.maximum(answer[1][master.capacity], 0.0))
        if watch.over() or not _refine(line_bounds, master, answer[0]):
            break
    for _ in range(_WHOLE_ROUNDS):
        master = _master(lines, gpus, price, line_bounds, whole=True)
        limits = Limits(relative_gap=1e-5, nodes=FEW_NODES, seconds=watch.left_s(), cutoff=-cutoff)
        answer = solve_integer(master.program, limits)
        bound = max(best.bound, min(cutoff, -answer.bound))
        if answer.values is None:
            return replace(best, bound=bound)
        taken = zip(line_bounds, master.rows, master.chosen, strict=True)
        values = answer.values
        rows = [(own, int(at[values[u].argmax()])) for own, at, u in taken]
        times = [int(np.ceil(own.times[row] - ROUND_OFF_US)) for own, row in rows]
        best = replace(best, bound=bound, times=times)
        if watch.over() or not _refine(line_bounds, master, values):
            break
    return best


def _refine(line_bounds: Sequence[LineLowerBounds], master: _Master, values: Floats) -> bool:
    """Find prices at which what was handed out is worth too little; whether there are any."""
    found = False
    for own, at, chosen, owned in zip(
        line_bounds, master.rows, master.chosen, master.owned, strict=True
    ):
        kept, gpus = values[chosen], np.maximum(values[owned], 0.0)
        used = at[np.flatnonzero(kept > SOLVED)]
        for row in {int(used[0]), int(used[-1])}:
            price = own.short(row, gpus)
            if price is None:
                continue
            floors = np.minimum.accumulate(own.usage @ price)
            if floors[at] @ kept > (price @ gpus) * (1 + SOLVED):
                own.add(price)
                found = True
    return found


def _master(
    lines: Lines, gpus: Ints, price: Floats, line_bounds: Sequence[LineLowerBounds], *, whole: bool
) -> _Master:
    build, shape = ProgramBuilder(), (len(line_bounds), len(gpus))
    owned = build.variables("a", shape, upper=gpus, cost=-price, whole=whole)
    capacity = build.rows("capacity", len(gpus), upper=gpus)
    build.entries(capacity, owned, 1.0)
    rows = [own.levels() for own in line_bounds]
    chosen = [build.variables("u", len(at), upper=1.0, whole=whole) for at in rows]
    for own, at, u, mine in zip(line_bounds, rows, chosen, owned, strict=True):
        add_one(build, u)
        for worth, floors in own.prices:
            row = build.rows("floor", 1, upper=0.0)
            build.entries(row, u, floors[at])
            build.entries(row, mine, -worth)
    levels = [own.times[at] for own, at in zip(line_bounds, rows, strict=True)]
    for graph in lines.graphs:
        add_paths(build, graph, levels, chosen)
    return _Master(build.build(), capacity, owned, chosen, rows)
