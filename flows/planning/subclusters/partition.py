"""Models into sub-clusters of one GPU class: the integer program, and a start for it.

All GPUs of a sub-cluster hold the same models (Symphony, 4.4 and appendix A). Sets: models i, parts
j. Given: load n_i (GPUs), static and dynamic bytes s_i and d_i, GPUs N, the load carried(g) that
g GPUs may carry (`free`); the mean load of a GPU r = sum n_i / N, of a part R = sum n_i /
parts, and S = sum s_i / parts. Variables:

    x_ij  in {0, 1}     model i is in part j
    g_j   whole         GPUs of part j: N / parts rounded down or up; 1 .. N where not `even`
    D_j   >= 0          largest dynamic bytes of a part
    z_j   in {0, 1}     part j carries as many GPUs as it has but one (`free`)
    dR, dS, M >= 0      imbalance of load and of static bytes; share of the static bytes that move

    minimise   dR + w dS + M
    one        sum_j x_ij = 1                             every model i               (8, 9)
    gpus       sum_j g_j = N
    fits       sum_i n_i x_ij <= carried(g_j)             every part j                (4)
    memory     sum_i s_i x_ij + D_j <= room               every part j                (5)
    dynamic    d_i x_ij <= D_j                            every i, j
    load       |sum_i n_i x_ij - r g_j| <= R dR           every part j                (6)
    static     |sum_i s_i x_ij - S| <= S dS               every part j                (7)
    moves      sum s_i (1 - x_i,old(i)) / sum s_i = M     models with a part now  (10, as cost)

Numbers in brackets are the paper's. Where parts have equally many GPUs, `load` is its (6) word by
word; where N does not divide, load is balanced per GPU. A move costs its share of all bytes, so
that a hundredth of the bytes moves only for a hundredth of balance.

A greedy assignment with exchanges comes first: largest models go where most is left, then the best
exchange or move of the part furthest off is made until none helps. Large problems end there where
the imbalance is a thousandth, near to 0, which nothing undercuts; small ones are proven by the
integer program.
"""

from dataclasses import dataclass, replace

import numpy as np

from flows.planning.solver.arrays import Floats, Ints
from flows.planning.solver.program import Program, ProgramBuilder
from flows.planning.solver.solve import FEW_NODES, PROOF_NODES, Limits, solve_integer
from flows.planning.solver.tolerances import EXACT, ROUNDING
from flows.planning.subclusters.free import carried, limits, needed
from flows.planning.watch import Watch

_SMALL = 100  # x variables up to which the best is proven
_CLOSE = 1e-3  # imbalance below which larger ones are left alone


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionProblem:
    """The models to divide.

    Attributes:
        load: [m] GPUs that each model needs.
        static_bytes, dynamic_bytes: [m].
        room_bytes: of one GPU for models; infinite where not known.
        parts: sub-clusters.
        gpus: of all parts together.
        utilisation: share of the time of many GPUs that may be planned; infinite where loads may
            be scaled.
        memory_weight: w.
        even: parts have equally many GPUs, but for what N leaves over; they may not where one model
            alone needs more.
        before: [m] part of each model under the plan in force; -1 where it has none, and all are
            that where there is no plan in force.
    """

    load: Floats
    static_bytes: Floats
    dynamic_bytes: Floats
    room_bytes: float
    parts: int
    gpus: int
    utilisation: float
    before: Ints
    memory_weight: float = 1.0
    even: bool = True

    @property
    def fewest(self) -> int:
        """GPUs of a part at least."""
        return self.gpus // self.parts if self.even else 1

    @property
    def most(self) -> int:
        """GPUs of a part at most."""
        return -(-self.gpus // self.parts) if self.even else self.gpus

    @property
    def labelled(self) -> bool:
        """True if parts differ, because they hold models now."""
        return bool((self.before >= 0).any())


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPartition:
    """An assignment, and what is known of the best.

    Attributes:
        part: [m] number of each model's part.
        gpus: [parts].
        value: dR + w dS + M; `bound` is what no assignment undercuts.
        status: `optimal` where both meet; else what ended the search.
    """

    part: Ints
    gpus: Ints
    value: float
    bound: float
    status: str

    @property
    def gap(self) -> float:
        """Absolute: value less bound, in shares of a part."""
        return max(0.0, self.value - self.bound)


def divide(
    asked: PartitionProblem, watch: Watch, solver: str = "highs", gap: float = 1e-4
) -> ClusterPartition | None:
    """The most even assignment that fits; None where none is known to fit."""
    if asked.parts > min(len(asked.load), asked.gpus):
        return None
    found = _greedy(asked)
    if asked.parts == 1:
        return None if found is None else replace(found, bound=found.value, status="optimal")
    size = len(asked.load) * asked.parts
    if size > _SMALL and found is not None and found.value <= _CLOSE:
        return found
    nodes = PROOF_NODES if size <= _SMALL else FEW_NODES
    limits = Limits(relative_gap=gap, nodes=nodes, seconds=watch.left_s())
    return _exact(asked, found, limits, solver)


def imbalance(values: Floats) -> float:
    """(max - min) / mean over parts (Symphony, A.2); 0 where all are 0."""
    mean = float(values.mean())
    return float(values.max() - values.min()) / mean if mean > 0 else 0.0


def sums(part: Ints, values: Floats, parts: int = 0) -> Floats:
    """[parts] sums over the models of each part; of all that have some, and so many at least."""
    return np.bincount(part, weights=values, minlength=parts).astype(np.float64)


def fits(asked: PartitionProblem, part: Ints, gpus: Ints) -> bool:
    """True if load and memory of every part are within what its GPUs have."""
    load = sums(part, asked.load, asked.parts)
    static = sums(part, asked.static_bytes, asked.parts)
    dynamic = np.zeros(asked.parts)
    np.maximum.at(dynamic, part, asked.dynamic_bytes)
    return bool(
        (load <= carried(gpus, asked.utilisation) * (1 + ROUNDING)).all()
        and (static + dynamic <= asked.room_bytes * (1 + ROUNDING)).all()
        and len(np.unique(part)) == asked.parts
        and asked.fewest <= gpus.min()
        and gpus.max() <= asked.most
    )


def value_of(asked: PartitionProblem, part: Ints, gpus: Ints) -> float:
    """dR + w dS + M of an assignment."""
    off, uneven = _unevenness(asked, part, gpus)
    moved = asked.static_bytes[(asked.before >= 0) & (asked.before != part)].sum()
    share = moved / asked.static_bytes.sum() if moved else 0.0
    return float(off + asked.memory_weight * uneven + share)


def _unevenness(asked: PartitionProblem, part: Ints, gpus: Ints) -> tuple[float, float]:
    """dR and dS of an assignment."""
    load, static = (sums(part, v, asked.parts) for v in (asked.load, asked.static_bytes))
    total = float(asked.load.sum())
    off = np.abs(load - total / asked.gpus * gpus).max() * asked.parts / total if total else 0.0
    uneven = np.abs(static - static.mean()).max() / static.mean() if static.any() else 0.0
    return float(off), float(uneven)


# Greedy, with exchanges


def _greedy(asked: PartitionProblem) -> ClusterPartition | None:
    """The best of two starts that fits.

    The parts of now, and the largest model where most is left.
    """
    starts = [_largest_first(asked)]
    if asked.labelled:
        starts.append(np.where(asked.before >= 0, asked.before, starts[0]))
    found: list[ClusterPartition] = []
    for start in starts:
        part = _exchanged(asked, start)
        gpus = _gpus_of_parts(asked, part)
        if gpus is not None and fits(asked, part, gpus):
            value = value_of(asked, part, gpus)
            found.append(
                ClusterPartition(part=part, gpus=gpus, value=value, bound=0.0, status="exchanges")
            )
    return min(found, key=lambda each: each.value, default=None)


def _largest_first(asked: PartitionProblem) -> Ints:
    """Every model where load and bytes would stay lowest, largest models first."""
    size = _sizes(asked)
    order = np.argsort(-size.max(axis=1), kind="stable")
    held = np.zeros((asked.parts, size.shape[1]))
    part = np.zeros(len(size), dtype=np.int64)
    for rank, model in enumerate(order.tolist()):
        growth = ((held + size[model]) ** 2 - held**2).sum(axis=1)
        chosen = rank if rank < asked.parts else int(growth.argmin())
        part[model] = chosen
        held[chosen] = held[chosen] + size[model]
    return part


def _sizes(asked: PartitionProblem) -> Floats:
    """[m, 2] load and static bytes in shares of a part's mean."""
    load, static = asked.load.sum() or 1.0, asked.static_bytes.sum() or 1.0
    weight = np.sqrt(asked.memory_weight)
    return asked.parts * np.column_stack([asked.load / load, weight * asked.static_bytes / static])


def _exchanged(asked: PartitionProblem, part: Ints) -> Ints:
    """Make the exchange or move that evens parts most (least squares), until none does.

    A move of bytes away from where they are now pays its share of all bytes; coming home earns it.
    """
    part = part.copy()
    size = _sizes(asked)
    cost = asked.static_bytes / (asked.static_bytes.sum() or 1.0)
    everywhere = np.arange(asked.parts)
    away = np.where(
        asked.before[:, None] >= 0, (everywhere != asked.before[:, None]) * cost[:, None], 0.0
    )
    target = _targets(asked, part)
    held = np.array([sums(part, column, asked.parts) for column in size.T]).T - target
    while best := _best_exchange(size, part, held, away):
        for model, to in best:
            held[part[model]] -= size[model]
            held[to] += size[model]
            part[model] = to
    return part


def _targets(asked: PartitionProblem, part: Ints) -> Floats:
    """[parts, 2] sizes that parts should have: load as their GPUs, bytes alike."""
    gpus = _gpus_of_parts(asked, part)
    if gpus is None:
        gpus = np.full(asked.parts, asked.gpus // asked.parts)
        gpus[: asked.gpus % asked.parts] += 1
    weight = np.sqrt(asked.memory_weight) if asked.static_bytes.any() else 0.0
    return np.column_stack([asked.parts * gpus / asked.gpus, np.full(asked.parts, weight)])


def _best_exchange(size: Floats, part: Ints, held: Floats, away: Floats) -> list[tuple[int, int]]:
    """Models and where they go: of the fullest and emptiest parts, what lowers the squares most.

    Exchanges of one model for one other, or for none, between the part that is furthest off and
    each other part; none where nothing lowers them.
    """
    parts = len(held)
    worst = np.argsort(-(held**2).sum(axis=1), kind="stable")
    for one in worst.tolist():
        mine = np.flatnonzero(part == one)
        best, gain = list[tuple[int, int]](), EXACT
        for other in range(parts):
            if other == one:
                continue
            theirs = np.flatnonzero(part == other)
            # the last row and column stand for no model
            give = np.vstack([size[mine], np.zeros(2)])
            take = np.vstack([size[theirs], np.zeros(2)])
            moved = take[None, :, :] - give[:, None, :]  # into `one`, out of `other`
            before = (held[one] ** 2).sum() + (held[other] ** 2).sum()
            after = ((held[one] + moved) ** 2).sum(axis=2) + ((held[other] - moved) ** 2).sum(
                axis=2
            )
            paid = np.append(away[mine, other] - away[mine, one], 0.0)[:, None] + np.append(
                away[theirs, one] - away[theirs, other], 0.0
            )
            won = before - after - paid / parts
            if len(mine) == 1:
                won[0, -1] = -np.inf  # no part is left empty
            if len(theirs) == 1:
                won[-1, 0] = -np.inf
            row, column = divmod(int(won.argmax()), won.shape[1])
            if won[row, column] > gain:
                gain = float(won[row, column])
                best = [(int(mine[row]), other)] if row < len(mine) else []
                best += [(int(theirs[column]), one)] if column < len(theirs) else []
        if best:
            return best
    return []


def _gpus_of_parts(asked: PartitionProblem, part: Ints) -> Ints | None:
    """The needs of each part, and the room left where load per GPU is highest.

    None beyond all GPUs.
    """
    load = sums(part, asked.load, asked.parts)
    need = np.ceil(needed(load, asked.utilisation) * (1 - ROUNDING)).astype(np.int64)
    need = np.maximum(need, max(1, asked.fewest))
    left = asked.gpus - int(need.sum())
    return None if left < 0 else spread(load, need, left, asked.most)


def spread(load: Floats, gpus: Ints, more: int, most: int) -> Ints:
    """Give `more` GPUs one by one to the part with the highest load per GPU, up to `most` each."""
    gpus = gpus.copy()
    for _ in range(more):
        gpus[int(np.where(gpus < most, load / gpus, -1.0).argmax())] += 1
    return gpus


# The integer program


def _exact(
    asked: PartitionProblem, start: ClusterPartition | None, limits: Limits, solver: str
) -> ClusterPartition | None:
    has_part = asked.before >= 0
    home = float(asked.static_bytes[has_part].sum() / (asked.static_bytes.sum() or 1.0))
    cutoff = -np.inf if start is None else home - start.value
    answer = solve_integer(_program(asked), replace(limits, cutoff=cutoff), solver)
    found, m, parts = start, len(asked.load), asked.parts
    bound = max(0.0, home - answer.bound)
    if answer.values is not None:
        part = answer.values[: m * parts].reshape(m, parts).argmax(axis=1)
        gpus = np.rint(answer.values[m * parts : m * parts + parts]).astype(np.int64)
        value = value_of(asked, part, gpus)
        if fits(asked, part, gpus) and (start is None or value < start.value):
            found = ClusterPartition(part=part, gpus=gpus, value=value, bound=0.0, status="")
    if found is None:
        return None
    proven = found.value - bound <= max(limits.relative_gap * found.value, 1e-6)
    status = "optimal" if proven else answer.status
    return replace(found, bound=min(bound, found.value), status=status)


def _program(asked: PartitionProblem) -> Program:
    """The program of the head of this file; families in the order x, g, D, z, dR, dS."""
    builder = ProgramBuilder()
    m, parts = len(asked.load), asked.parts
    load = asked.load / (asked.load.sum() or 1.0) * parts
    unit = float(asked.static_bytes.sum()) / parts or 1.0  # mean bytes of a part
    static, largest = asked.static_bytes / unit, asked.dynamic_bytes / unit
    cost, upper = np.zeros((m, parts)), np.ones((m, parts))
    if asked.labelled:  # M is what all earn that have a part now, less this
        now = np.flatnonzero(asked.before >= 0)
        cost[now, asked.before[now]] = static[now] / parts
    else:  # parts are numbered by their first model
        upper = np.arange(parts) <= np.arange(m)[:, None]
    x = builder.variables("x", (m, parts), upper=upper, cost=cost, whole=True)
    g = builder.variables("g", parts, lower=asked.fewest, upper=asked.most, whole=True)
    dynamic = builder.variables("D", parts, upper=float(largest.max()))
    one_free = builder.variables("z", parts, upper=1.0, whole=True)
    off = builder.variables("dR", 1, cost=-1.0)
    uneven = builder.variables("dS", 1, cost=-asked.memory_weight)

    def sums_of(name: str, upper: float, each: Floats) -> Ints:
        """A row for every part: the sum of what its models have."""
        rows = builder.rows(name, parts, upper=upper)
        builder.entries(rows, x, each[:, None])
        return rows

    for sign in (1.0, -1.0):
        builder.entries(builder.rows("one", m, upper=sign)[:, None], x, sign)
        builder.entries(builder.rows("gpus", 1, upper=sign * asked.gpus), g, sign)
        if load.any():
            rows = sums_of("load", 0.0, sign * load)
            builder.entries(rows, g, -sign * parts / asked.gpus)
            builder.entries(rows, off, -1.0)
        if static.any():
            rows = sums_of("static", sign, sign * static)
            builder.entries(rows, uneven, -1.0)
    sums_of("held", -1.0, -np.ones(m))  # every part holds a model
    for each, free in limits(asked.gpus, asked.utilisation) if asked.utilisation < np.inf else ():
        rows = sums_of("fits", 0.0, asked.load)
        builder.entries(rows, g, -each)
        builder.entries(rows, one_free, -free)
    if asked.room_bytes < np.inf:
        builder.entries(sums_of("memory", asked.room_bytes / unit, static), dynamic, 1.0)
        rows = builder.rows("dynamic", (m, parts), upper=0.0)
        builder.entries(rows, x, largest[:, None])
        builder.entries(rows, dynamic, -1.0)
    return builder.build()
