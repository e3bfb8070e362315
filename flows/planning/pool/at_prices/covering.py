"""Cheap allocations made of items: an unbounded covering knapsack per block.

An item is a column that may be taken any number of times and adds up with others of its block: its
vector and its rate. At given prices, items that another one beats in cost and rate are left out;
over the rest,

    f(j) = min over items of  cost + f(j - length)

is the least cost of a rate of j · (demand / J). The true rate of every f(j) is carried along, so
that rounding to J steps costs next to nothing. The item that is cheapest for its rate is 8 steps
long or longer: where J / 8 of it do not reach the demand, as for a model on thousands of GPUs, the
excess is taken of this item, and only the rest is divided into steps. The result then costs at most
one such item more than the least. An item that is slower than a step counts as many times as reach
one. The result is cheap, seldom proven: items that share a resource may be cheaper together.
"""

from typing import NamedTuple

import numpy as np

from flows.planning.solver.arrays import FAR, Floats, Ints
from flows.planning.solver.tolerances import EXACT
from triton_backend.scheduler.compiled import entry, kernel

STEPS = 400  # J
LENGTH = 8  # least steps of the cheapest item; with 1, columns cost up to 1.5 times the least


def cheapest(start: Ints, cost: Floats, rate: Floats, demand: Floats) -> list[Ints]:
    """A cheap column for every block: numbers of its items, as often as each is taken.

    None where the demand is out of reach.

    Args:
        start: [B + 1] items of block b are start[b] … start[b + 1] - 1, by falling rate.
        cost: [n] of every item.
        rate: [n] of every item.
        demand: [B] rate that a block must reach, greater than 0.
    """
    blocks, shape = len(demand), (len(demand), STEPS + 1)
    tables = _Tables(
        front=np.empty(len(cost), dtype=np.int64),
        fronts=np.empty(blocks + 1, dtype=np.int64),
        least=np.empty(shape),
        have=np.empty(shape),
        item=np.empty(shape, dtype=np.int64),
        before=np.empty(shape, dtype=np.int64),
        times=np.empty(shape, dtype=np.int64),
        most=np.full(blocks, -1, dtype=np.int64),
        excess=np.zeros(blocks, dtype=np.int64),
    )
    _cover(start, cost, rate, demand, tables)
    return [_parts(tables, b) for b in range(blocks)]


def _parts(tables: "_Tables", block: int) -> Ints:
    """The items of a block: its excess, then those on the way back from the last step to 0."""
    parts = [int(tables.most[block])] * int(tables.excess[block])
    step = STEPS
    while step > 0 and tables.item[block, step] >= 0:
        parts += [int(tables.item[block, step])] * int(tables.times[block, step])
        step = int(tables.before[block, step])
    return np.array(sorted(parts), dtype=np.int64)


class _Tables(NamedTuple):
    """The kernel's result; f(j) is in the row of its block, place j.

    Attributes:
        front: [n] items that no other of their block beats, block by block.
        fronts: [B + 1] where those of each block begin in `front`.
        least: [B, J + 1] f(j), far where it is out of reach.
        have: [B, J + 1] the true rate of f(j).
        item: [B, J + 1] the last item of f(j), -1 for none.
        before: [B, J + 1] the step that this item was added to.
        times: [B, J + 1] how many of it were added at once.
        most: [B] the item that is cheapest for its rate, -1 for a block without items.
        excess: [B] how many of it are taken before the steps.
    """

    front: Ints
    fronts: Ints
    least: Floats
    have: Floats
    item: Ints
    before: Ints
    times: Ints
    most: Ints
    excess: Ints


@entry
def _cover(start: Ints, cost: Floats, rate: Floats, demand: Floats, tables: _Tables) -> None:
    """Fill in the tables of every block as `cheapest` has it; see the head of this file."""
    count = 0
    for b in range(len(demand)):
        tables.fronts[b] = count
        cheapest = FAR
        for i in range(start[b], start[b + 1]):
            if cost[i] < cheapest:  # by falling rate: only what is cheaper than all faster ones
                cheapest = cost[i]
                tables.front[count] = i
                count += 1
                most = tables.most[b]
                if most < 0 or cost[i] * rate[most] < cost[most] * rate[i]:
                    tables.most[b] = i
    tables.fronts[len(demand)] = count
    for b in range(len(demand)):
        most, rest = tables.most[b], demand[b]
        if most >= 0 and rest > STEPS / LENGTH * rate[most]:
            tables.excess[b] = np.int64(np.ceil((rest / rate[most] - STEPS / LENGTH) * (1 - EXACT)))
            rest -= tables.excess[b] * rate[most]
        unit = rest / STEPS
        tables.least[b, 0], tables.have[b, 0] = 0.0, 0.0
        tables.item[b, 0], tables.before[b, 0], tables.times[b, 0] = -1, 0, 0
        for j in range(1, STEPS + 1):
            _step(b, j, unit, cost, rate, tables)


@kernel
def _step(b: int, j: int, unit: float, cost: Floats, rate: Floats, tables: _Tables) -> None:
    """f(j) of block b from those before it; a step is `unit` of its rate."""
    lowest, reached, last, source, count = FAR, 0.0, -1, 0, 0
    for f in range(tables.fronts[b], tables.fronts[b + 1]):
        i = tables.front[f]
        times = max(1, int(np.ceil(unit / rate[i] * (1 - EXACT))))
        more = times * rate[i]
        p = max(0, j - max(1, int(more / unit * (1 + EXACT))))
        # One step less may do, because its true rate is higher than its number says.
        if p > 0 and tables.have[b, p - 1] + more >= j * unit * (1 - EXACT):
            p -= 1
        price = tables.least[b, p] + times * cost[i]
        rates = tables.have[b, p] + more
        if price < lowest * (1 - EXACT) or (price <= lowest and rates > reached):
            lowest, reached, last, source, count = price, rates, i, p, times
    tables.least[b, j], tables.have[b, j] = lowest, reached
    tables.item[b, j], tables.before[b, j], tables.times[b, j] = last, source, count
