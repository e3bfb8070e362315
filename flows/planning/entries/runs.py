"""Many entries of one start and one rate beside a shared stage: the best of them at prices.

An alignment stage is in time for its tightest entry, and costs by how many it carries. That cost is
a staircase; a *level* is the end of a step, so many entries for a price, that no others replace:

    cost  6 |            ____          levels (2, 2) and (5, 4)
          4 |       ____/              3: none, (5, 4) carries more; 7: none, (2, 2) and (5, 4) do
          2 | _____/
              1 2  3 4 5  6 7  entries

Prices do not rise with limits (`pricer`), so by falling limit a stage serves a run of entries, and
every run but the one of the longest limits is full: the next entry of a longer limit joins it for
one that the last run gives up, which is worth no more. Boarding is a level of all for nothing. Of
the first i entries, k gain

    gain[i, k]   the largest of
        gain[i - 1, k]
        total[i] - total[i - k] - price                        the last run: any level
        gain[i - o, k - o] + total[i] - total[i - o] - price   a full one: levels (o, price)

`total` sums prices of the first entries; levels are those in time for entry i.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flows.planning.entries.groups import GroupingProblem
from flows.planning.solver.arrays import Floats, Ints
from flows.planning.solver.tolerances import ROUNDING
from triton_backend.scheduler.compiled import entry as kernel_entry
from triton_backend.scheduler.compiled import kernel

# Rows of levels: of an entry that is late beside a root, of one that boards, of the first option.
_NEVER, _BOARDS, _ROWS = range(3)


class Levels(NamedTuple):
    """Levels of alignment stages of some entries.

    Attributes:
        rows: [R, entries] the row of levels in time for an entry beside a root.
        first: [rows + 1] where each row begins.
        capacity: [levels] entries, rising in a row.
        price: [levels] rising in a row.
    """

    rows: Ints
    first: Ints
    capacity: Ints
    price: Floats

    @staticmethod
    def none(shape: tuple[int, ...]) -> "Levels":
        """None at all, of so many roots and entries."""
        whole, nothing = np.zeros(shape, dtype=np.int64), np.zeros(0, dtype=np.int64)
        return Levels(rows=whole, first=np.zeros(2, np.int64), capacity=nothing, price=np.zeros(0))

    @staticmethod
    def joined(parts: Sequence["Levels"]) -> "Levels":
        """Those of several, the entries of each in turn."""
        first = [part.first for part in parts]
        rows = np.cumsum([0, *map(len, first)])
        levels = np.cumsum([0, *(len(part.price) for part in parts)])
        return Levels(
            rows=np.concatenate(
                [part.rows + at for part, at in zip(parts, rows[:-1], strict=True)], axis=1
            ),
            first=np.concatenate([own + at for own, at in zip(first, levels[:-1], strict=True)]),
            capacity=np.concatenate([part.capacity for part in parts]),
            price=np.concatenate([part.price for part in parts]),
        )


def levels_of(field: GroupingProblem, own: Ints) -> Levels:
    """Levels beside every root of entries of one start and one rate, by falling limit."""
    start, count = int(field.block[own[0]]), len(own)
    spans = field.options_from[start]  # of junctions, kinds
    able = field.rate[own[0]] <= field.link_rps[:, : len(spans)].T
    spans = np.where(able[:, :, None], spans, 0)
    price = np.full((_ROWS + field.options.shape[1], count + 1), np.inf)
    price[_BOARDS, count] = 0.0
    measures = float(field.rate[own[0]]), float(field.table.most)
    room = np.zeros((2, count + 2)), np.zeros(count, dtype=np.int64)
    fill_levels(spans, field.options, measures, room, price)
    used, capacity = np.nonzero(np.isfinite(price))
    rows = np.zeros((len(field.root_time), count), dtype=np.int64)
    roots = field.root_junction, field.root_time, field.root_kind
    _fill_rows(start, field.limit[own], roots, spans, field.options, rows)
    first = np.searchsorted(used, np.arange(len(price) + 1))
    return Levels(rows=rows, first=first, capacity=capacity, price=price[used, capacity])


@kernel_entry
def fill_levels(
    spans: Ints,
    options: Floats,
    measures: tuple[float, float],
    room: tuple[Floats, Ints],
    price: Floats,
) -> None:
    """Fill in the prices of levels of every option and those before it in its span.

    Args:
        spans: [junctions, kinds, 2] where options of a range begin and end.
        options: [3, options] time, price, vGPUs per rate.
        measures: the rate of an entry; most vGPUs of a stage.
        room: [2, entries + 2] the staircase, the least cost of as many entries in several stages;
            [entries] capacities of a row.
        price: [rows, entries + 1] infinite before, and where no level is.
    """
    rate, most = measures
    step, whole, known = room[0][0], room[0][1], room[1]
    count = price.shape[1] - 1
    for junction in range(spans.shape[0]):
        for kind in range(spans.shape[1]):
            step[:] = np.inf
            for option in range(spans[junction, kind, 0], spans[junction, kind, 1]):
                for carried in range(1, count + 1):
                    load = carried * rate * options[2, option] * (1 - ROUNDING)
                    vgpus = max(1.0, np.ceil(load))
                    if vgpus <= most:
                        step[carried] = min(step[carried], options[1, option] * vgpus)
                _fill_row(step, whole, known, price[_ROWS + option])


@kernel
def _fill_row(step: Floats, whole: Floats, known: Ints, price: Floats) -> None:
    """Fill in the prices of levels of a staircase; `whole` and `known` are room."""
    whole[0], count = 0.0, 0
    for carried in range(1, len(price)):
        several = np.inf
        for n in range(count):
            several = min(several, price[known[n]] + whole[carried - known[n]])
        whole[carried] = min(several, step[carried])
        if step[carried] < min(step[carried + 1], several * (1 - ROUNDING)):
            price[carried] = step[carried]
            known[count] = carried
            count += 1


@kernel_entry
def _fill_rows(
    start: int,
    limit: Floats,
    roots: tuple[Ints, Floats, Ints],
    spans: Ints,
    options: Floats,
    rows: Ints,
) -> None:
    """Fill in `Levels.rows`: `_NEVER` before."""
    junction, time, kind = roots
    for root in range(len(time)):
        begin, end = spans[junction[root], kind[root], 0], spans[junction[root], kind[root], 1]
        for n in range(len(limit)):
            left = limit[n] - time[root]
            if left < 0 or start > junction[root]:
                continue
            if start == junction[root]:
                rows[root, n] = _BOARDS
                continue
            number = np.searchsorted(options[0, begin:end], left, side="right")
            if number > 0:
                rows[root, n] = _ROWS + begin + number - 1


@kernel
def gains_of_runs(
    gain: Floats,
    rows: Ints,
    levels: tuple[Ints, Ints, Floats],
    most: int,
    total: Floats,
    gains: Floats,
) -> None:
    """Fill in gains[i, k], the largest one of k of the first i entries, k up to `most`.

    Lower where fewer entries gain as much.

    Args:
        gain: [entries] prices, rising.
        rows: [entries] of levels.
        levels: where rows begin, capacities, prices.
        most: entries.
        total: [entries + 1] room.
        gains: [entries + 1, entries + 1] filled in.
    """
    first, capacity, price = levels
    total[0], gains[0, 0] = 0.0, 0.0
    for i in range(1, len(gain) + 1):
        total[i] = total[i - 1] + gain[i - 1]
        top = min(i, most)
        for k in range(top + 1):
            gains[i, k] = gains[i - 1, k] if k < i else -np.inf
        k, highest = 1, 0.0
        for level in range(first[rows[i - 1]], first[rows[i - 1] + 1]):
            while k <= min(top, capacity[level]):
                gains[i, k] = max(gains[i, k], total[i] - total[i - k] - price[level])
                k += 1
            carried = capacity[level]
            if carried >= top:
                break
            worth = total[i] - total[i - carried] - price[level]
            if worth > highest:  # else a level of fewer is worth as much
                highest = worth
                _joined(gains[i, carried + 1 : top + 1], gains[i - carried, 1:], worth)


@kernel
def _joined(gains: Floats, before: Floats, worth: float) -> None:
    """Fill in gains with a run more, where they are larger."""
    for k in range(len(gains)):
        gains[k] = max(gains[k], before[k] + worth)


@kernel_entry
def members_of_runs(
    gain: Floats,
    rows: Ints,
    levels: tuple[Ints, Ints, Floats],
    most: int,
    room: tuple[Floats, Floats],
    chosen: NDArray[np.bool_],
) -> float:
    """Mark the best so many entries; returns what they cost beside the root.

    Args:
        gain: [entries] prices, rising.
        rows: [entries] of levels.
        levels: where rows begin, capacities, prices.
        most: so many.
        room: `total` and `gains` of it.
        chosen: [entries] filled in.
    """
    first, capacity, price = levels
    total, gains = room
    gains_of_runs(gain, rows, levels, most, total, gains)
    k, end, cost = most, len(chosen), 0.0
    for i in range(len(chosen), 0, -1):
        if k == 0:
            break
        if i > end or (k < i and gains[i, k] == gains[i - 1, k]):
            continue
        for level in range(first[rows[i - 1]], first[rows[i - 1] + 1]):
            carried = min(capacity[level], k)
            worth = total[i] - total[i - carried] - price[level]
            rest = gains[i - carried, k - carried]
            if rest + worth == gains[i, k]:
                chosen[i - carried : i] = True
                cost += price[level]
                k, end = k - carried, i - carried
                break
    return cost
