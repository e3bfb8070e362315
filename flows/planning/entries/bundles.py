"""The best groups of entries of one rate at prices, compiled.

A group has a shared stage s of blocks [J, M). Its entries that start at J board; those of a start
p < J are cut into bundles, each with an alignment stage of its own. Where rates are equal, a shared
stage costs by how many it carries, and of the entries of a start that are chosen neighbours by
limit share a bundle (exchange two members: no bundle's least limit falls). So for every s the
largest sum of prices less bundles of k entries is a dynamic program over entries by falling limit:

    best[k, o] of k entries taken, the last o of them in an open bundle

A bundle is paid for when it closes, at the time that its tightest entry has left beside s. The
starts' sums are added over all ways to divide k.

Here: the pricer and its kernels. Not here: plans (`search`).
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flows.planning.engine.pricing import Duals, Priced
from flows.planning.entries.groups import FRESH, Group, GroupingProblem, columns_of
from flows.planning.entries.tables import vgpus_for
from flows.planning.solver.arrays import Floats, Ints
from flows.planning.solver.tolerances import ROUNDING, SOLVED
from triton_backend.scheduler.compiled import entry as kernel_entry
from triton_backend.scheduler.compiled import kernel

Mask = NDArray[np.bool_]

_LOOK = 200  # stages that are priced between two times that all are


class Arrays(NamedTuple):
    """Arrays of a `Pricing`, for kernels. Items are ordered by start, then by falling limit.

    limit         [items]
    first         [starts + 1] the first item of each start
    block         [starts]
    junction, time, kind    [stages]
    cost          [stages, items + 1] of so many entries
    span          [blocks, blocks, kinds, 2] of a start, before a junction: its options
    option_time   [options] rising within a span
    lowest        [items + 1, options] of so many entries, the least cost up to an option of a span
    part          [stages, items] the least an entry pays for its alignment stage, shared or not
    best          [items + 1 of them, items + 1, items + 1] room
    own, total    [starts, items + 1], [starts + 1, items + 1] room: gains of so many entries
    """

    limit: Any
    first: Any
    block: Any
    junction: Any
    time: Any
    kind: Any
    cost: Any
    span: Any
    option_time: Any
    lowest: Any
    part: Any
    best: Any
    own: Any
    total: Any


@kernel
def _last(start: int, stage: int, item: int, arrays: Arrays) -> int:
    """The last option of a start before a stage that is in time for an item; -1: none."""
    span = arrays.span[arrays.block[start], arrays.junction[stage], arrays.kind[stage]]
    left = arrays.limit[item] - arrays.time[stage]
    number = np.searchsorted(arrays.option_time[span[0] : span[1]], left, side="right")
    return int(span[0] + number - 1) if left >= 0 and number > 0 else -1


@kernel
def _take(taken: int, pi: float, best: Floats, lowest: Floats, option: int) -> None:
    """One entry more: not taken, in the open bundle, or the one that closes it.

    Up to `taken` before it.
    """
    for k in range(taken, -1, -1):
        closed = -np.inf
        for o in range(k + 1):
            value = best[k, o] + pi
            best[k + 1, o + 1] = max(best[k + 1, o + 1], value)
            closed = max(closed, value - lowest[o + 1, option])
        best[k + 1, 0] = max(best[k + 1, 0], closed)


@kernel
def _bundled(
    start: int,
    stage: int,
    pi: Floats,
    most: int,
    arrays: Arrays,
    keep: int,
) -> int:
    """Fill in the largest gain of every number of entries, up to `most`, that align.

    Returns the largest number. `arrays.best[step, k, o]`; without `keep` every step is step 0.
    """
    first, end = arrays.first[start], arrays.first[start + 1]
    taken = 0
    best = arrays.best[0]
    best[0, 0] = 0.0
    for item in range(first, end):
        if keep > 0:
            after = arrays.best[item - first + 1]
            for k in range(taken + 1):
                for o in range(k + 1):
                    after[k, o] = best[k, o]
            best = after
        option = _last(start, stage, item, arrays)
        if option >= 0:
            if taken < most:
                taken += 1
                for o in range(taken + 1):
                    best[taken, o] = -np.inf
            _take(taken - 1, pi[item], best, arrays.lowest, option)
    for k in range(taken + 1):
        arrays.own[start, k] = best[k, 0]
    return taken


@kernel
def _boarding(start: int, stage: int, pi: Floats, arrays: Arrays) -> int:
    """Fill in the largest gain of every number of entries that board directly.

    Returns the most of them.
    """
    own, taken = arrays.own[start], 0
    own[0] = 0.0
    for item in range(arrays.first[start], arrays.first[start + 1]):
        if arrays.limit[item] < arrays.time[stage]:
            continue
        at = taken
        while at > 0 and own[at] < pi[item]:
            own[at + 1] = own[at]
            at -= 1
        own[at + 1] = pi[item]
        taken += 1
    for k in range(taken):
        own[k + 1] += own[k]
    return taken


@kernel
def _gains(stage: int, pi: Floats, limit: int, arrays: Arrays) -> int:
    """Fill in `arrays.total[starts, k]`, the largest gain of k entries, up to `limit`.

    Returns the most of them.
    """
    starts, most = len(arrays.block), 0
    for k in range(arrays.total.shape[1]):
        arrays.total[0, k] = -np.inf
    arrays.total[0, 0] = 0.0
    for start in range(starts):
        taken = 0
        arrays.own[start, 0] = 0.0
        if arrays.block[start] == arrays.junction[stage]:
            taken = min(_boarding(start, stage, pi, arrays), limit)
        elif arrays.block[start] < arrays.junction[stage]:
            taken = _bundled(start, stage, pi, limit, arrays, 0)
        for k in range(taken + 1, arrays.own.shape[1]):
            arrays.own[start, k] = -np.inf
        for k in range(arrays.total.shape[1]):
            arrays.total[start + 1, k] = -np.inf
        for a in range(most + 1):
            for b in range(min(taken, limit - a) + 1):
                gain = arrays.total[start, a] + arrays.own[start, b]
                arrays.total[start + 1, a + b] = max(arrays.total[start + 1, a + b], gain)
        most = min(most + taken, limit)
    return most


@kernel
def _at_least(stage: int, pi: Floats, below: float, arrays: Arrays) -> tuple[float, int, float]:
    """No group on a stage has a lower reduced cost.

    Every entry pays its part of an alignment stage only. Also from how many entries on no group is
    below `below`, and what those larger ones have at least.
    """
    gains, taken = arrays.own[0], 0
    for item in range(len(pi) - 1, -1, -1):  # those of the least limits gain most
        gain = pi[item] - arrays.part[stage, item]
        if gain > 0:
            at = taken
            while at > 0 and gains[at - 1] < gain:
                gains[at] = gains[at - 1]
                at -= 1
            gains[at] = gain
            taken += 1
    least, total = arrays.cost[stage, 1], 0.0
    largest, beyond = 0, np.inf
    for k in range(len(pi)):
        total += gains[k] if k < taken else 0.0
        bound = arrays.cost[stage, k + 1] - total
        least, beyond = min(least, bound), min(beyond, bound)
        if bound < below:
            largest, beyond = k + 1, np.inf
    return least, largest, beyond


@kernel_entry
def price(
    stages: Ints,
    pi: Floats,
    below: float,
    arrays: Arrays,
    least: Floats,
    size: Ints,
) -> None:
    """Fill in the least reduced cost of a group on each of some stages, and its size.

    Where that is `below` or more for sure, it is only bounded from below, and the number is 0.
    """
    starts = len(arrays.block)
    for at in range(len(stages)):
        stage = stages[at]
        least[at], largest, beyond = _at_least(stage, pi, below, arrays)
        size[at] = 0
        if least[at] >= below:
            continue
        most = _gains(stage, pi, largest, arrays)
        least[at] = beyond
        for k in range(1, most + 1):
            reduced = arrays.cost[stage, k] - arrays.total[starts, k]
            if reduced < least[at]:
                least[at], size[at] = reduced, k


@kernel_entry
def members(stage: int, size: int, pi: Floats, arrays: Arrays, chosen: Mask) -> float:
    """Fill in the entries of the best group of so many entries on a stage; returns its gain."""
    for item in range(len(chosen)):
        chosen[item] = False
    starts = len(arrays.block)
    most = _gains(stage, pi, size, arrays)
    if size > most:
        return -np.inf
    gain, left = arrays.total[starts, size], size
    for start in range(starts - 1, -1, -1):
        part = 0
        for b in range(left + 1):
            if (
                arrays.total[start, left - b] + arrays.own[start, b]
                == arrays.total[start + 1, left]
            ):
                part = b
        if part > 0 and arrays.block[start] == arrays.junction[stage]:
            _board(start, part, stage, pi, arrays, chosen)
        elif part > 0:
            _bundled(start, stage, pi, size, arrays, 1)
            _unfold(start, part, stage, pi, arrays, chosen)
        left -= part
    return gain


@kernel
def _board(start: int, part: int, stage: int, pi: Floats, arrays: Arrays, chosen: Mask) -> None:
    for _ in range(part):
        best = -1
        for item in range(arrays.first[start], arrays.first[start + 1]):
            if chosen[item] or arrays.limit[item] < arrays.time[stage]:
                continue
            if best < 0 or pi[item] > pi[best]:
                best = item
        chosen[best] = True


@kernel
def _unfold(
    start: int,
    part: int,
    stage: int,
    pi: Floats,
    arrays: Arrays,
    chosen: Mask,
) -> None:
    """Mark the entries of the best bundles of a start, from the last step of `_bundled` back."""
    first = arrays.first[start]
    k, o = part, 0
    for item in range(arrays.first[start + 1] - 1, first - 1, -1):
        if k == 0:
            break
        after, before = arrays.best[item - first + 1], arrays.best[item - first]
        reached = 0  # entries that could be taken before this one
        for other in range(first, item):
            reached += _last(start, stage, other, arrays) >= 0
        if k <= reached and before[k, o] == after[k, o]:
            continue
        chosen[item] = True
        if o > 0:
            o -= 1
        else:
            option = _last(start, stage, item, arrays)
            for open_ in range(k):
                value = before[k - 1, open_] + pi[item]
                value -= arrays.lowest[open_ + 1, option]
                if value == after[k, 0]:
                    o = open_
                    break
        k -= 1


@kernel_entry
def neighbours(
    left: Floats,
    total: Floats,
    options: tuple[Floats, Floats, Floats],
    most: float,
    best: Floats,
    before: Ints,
    row: Ints,
) -> None:
    """Fill in how entries of a start share alignment stages at the least cost, as neighbours.

    Args:
        left: [entries] time for the stage, rising.
        total: [entries + 1] rate of so many entries.
        options: time, rising; price; work.
        most: vGPUs of a stage.
        best: [entries + 1] room.
        before: [entries + 1] how many come before the bundle that ends with this one.
        row: [entries + 1] the option of that bundle.
    """
    times, price, work = options
    best[0], best[1:] = 0.0, np.inf
    for a in range(len(left)):
        in_time = np.searchsorted(times, left[a], side="right")
        for b in range(a + 1, len(left) + 1):
            load = (total[b] - total[a]) * (1 - ROUNDING)
            for option in range(in_time):
                vgpus = max(1.0, np.ceil(load * work[option]))
                value = best[a] + price[option] * vgpus
                if vgpus <= most and value < best[b]:
                    best[b], before[b], row[b] = value, a, option


class Bundles:
    """A pricer of groups of items of one rate; those of a root are a group of columns.

    Items are in the order of `items_of`.
    """

    quick = True

    def __init__(self, field: GroupingProblem) -> None:
        count, rate = len(field.items), float(field.rate[0])
        block, first = np.unique(field.block, return_index=True)
        most = int(np.diff(first, append=count).max()) + 2  # items of one start, and two
        time, price, work = field.options
        numbers = rate * np.arange(count + 1)[:, None]
        lowest = price * vgpus_for(numbers, work)
        for start, junction, kind in np.argwhere(np.diff(field.options_from)[..., 0] > 0).tolist():
            begin, end = field.options_from[start, junction, kind]
            own = lowest[:, begin:end]
            own[:] = np.minimum.accumulate(own, axis=1)
            if rate > field.link_rps[kind, junction]:
                own[:] = np.inf
        self.roots = field.needed_roots
        self.arrays = Arrays(
            limit=field.limit,
            first=np.append(first, count).astype(np.int64),
            block=block.astype(np.int64),
            junction=field.root_junction,
            time=field.root_time,
            kind=field.root_kind,
            cost=(field.root_price * vgpus_for(numbers, field.root_work)).T,
            span=field.options_from,
            option_time=time,
            lowest=lowest,
            part=field.parts_beside(),
            best=np.zeros((most, most, most)),
            own=np.zeros((len(block), count + 2)),
            total=np.zeros((len(block) + 1, count + 2)),
        )
        self.fewest, self.most = np.zeros(len(self.roots)), np.ones(len(self.roots))
        self.cheapest = field.root_price[self.roots]

    def least(self, pi: Floats, below: float) -> Floats:
        """[roots] no group has a lower reduced cost; from `below` on perhaps a lower one."""
        return self._least(self.roots, pi, below)[0]

    def _least(self, roots: Ints, pi: Floats, below: float) -> tuple[Floats, Ints]:
        """The same of some roots, and the size of that group; 0 from `below` on."""
        least, size = np.zeros(len(roots)), np.zeros(len(roots), dtype=np.int64)
        price(roots, pi, below, self.arrays, least, size)
        return least, size

    def price(self, duals: Duals, cap: Floats, *, thorough: bool) -> Priced:
        """Groups of low reduced cost.

        Unless thorough, of the roots that look best; others are bounded.
        """
        del cap
        pi = duals.demand
        if thorough:
            least, size = self._least(self.roots, pi, 0.0)
        else:
            least, size = self._least(self.roots, pi, -np.inf)
            look = np.argsort(least, kind="stable")[:_LOOK]
            least[look], size[look] = self._least(self.roots[look], pi, 0.0)
        score = np.where(size > 0, least, np.inf)
        order = np.argsort(score, kind="stable")[:FRESH].tolist()
        found = [self._group(n, int(size[n]), pi) for n in order if score[n] < -SOLVED]
        return Priced(columns=columns_of(found, self.roots), least=least)

    def _group(self, at: int, size: int, pi: Floats) -> Group:
        """The best group of a size on a root."""
        chosen, root = np.zeros(len(pi), dtype=np.bool_), int(self.roots[at])
        gain = members(root, size, pi, self.arrays, chosen)
        items = np.flatnonzero(chosen)
        cost = float(self.arrays.cost[root, size] + pi[items].sum() - gain)
        return Group(items=tuple(items.tolist()), root=root, cost=cost)
