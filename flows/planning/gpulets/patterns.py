"""Patterns of one whole GPU: what each of its parts does, priced exactly and enumerated.

A pattern is a partition with an option (`parts.Options`) on every part in use. Part p presses e_p
on the others and feels t_p = sum of e_q over the others; its turns are ceil(solo max(1, u + t_p)
inflation), or solo where it is alone on the GPU. So interference, turns and memory are constants of
a pattern, and what a plan must choose is how many GPUs follow which pattern: cutting stock.

A pattern's value at prices is a sum over models (`Worths`): price x rate, counted up to a cap,
the whole demand of the model; and a price of carrying it at all, half of which is for any rate and
all of it for the cap. The best pattern is found without looking at all of them: pressures are put
into buckets; with every neighbour at the lower edge of its bucket a part can only be faster, so the
sum of the best options under these edges bounds every pattern of those buckets (`search`).

Here: patterns of one class at prices. Not here: how many GPUs follow which (`master`).
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from flows.planning.engine.columns import undominated
from flows.planning.gpulets.parts import Options, options_of
from flows.planning.gpulets.search import (
    UNFINISHED,
    Room,
    Side,
    Tops,
    Worths,
    price_options,
    search,
)
from flows.planning.gpulets.tables import ClassTable, Tables
from flows.planning.solver.arrays import Floats, Ints
from flows.planning.solver.tolerances import EXACT, ROUNDING
from flows.planning.watch import Watch

LEVELS = 24  # of what a part feels
ENUMERATED = 50_000  # patterns worth more than asked, before those that others replace are dropped
_NEAR = 0.8  # of the best pattern known: partitions whose best is below it need not be known

Parts = tuple[tuple[int, int], ...]  # (share, row of its options), rising
Key = tuple[int, Parts]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """The work of one GPU of a class.

    Attributes:
        parts: share and row of the options of every part in use.
        rates_rps: [model].
    """

    gpu_class: int
    parts: Parts
    rates_rps: Floats

    @property
    def key(self) -> Key:
        """Two patterns of one key are the same."""
        return self.gpu_class, self.parts


class Patterns:
    """All patterns of one class, to be asked at prices."""

    def __init__(self, tables: Tables, number: int, watch: Watch | None = None) -> None:
        """Enumerate the options of every share of class `number`.

        Raises:
            InfeasibleError: the time is over before all are known.
        """
        clock = watch or Watch()
        self.tables = tables
        self.number = number
        self.table: ClassTable = tables.classes[number]
        self._watch = clock
        self._shares = sorted(self.table.cells)
        self.options = {
            share: options_of(tables, self.table, share, clock) for share in self._shares
        }

    @cached_property
    def _side(self) -> Side:
        """The options of all shares as `search` takes them.

        Buckets of pressure are so wide that all neighbours together press `LEVELS` at most. Levels
        that the time leaves out take the speeds of the level below: a part is no faster than that.
        """
        options, table = [self.options[share] for share in self._shares], self.table
        own = Options.joined(options)
        share = np.repeat(np.arange(len(options)), [one.number for one in options])
        begins = np.ones(own.number, dtype=np.bool_)
        begins[1:] = (own.model[1:] != own.model[:-1]).any(axis=1) | (share[1:] != share[:-1])
        start = np.flatnonzero(begins)
        levels = LEVELS if table.interference else 1
        neighbours = max(1, max(map(len, table.partitions)) - 1)
        step = float(own.pressure.max(initial=0.0)) * neighbours / levels
        bucket = np.zeros(own.number, dtype=np.int64)
        if step > 0:
            bucket = (own.pressure / step).astype(np.int64)
            # rounding must not put a pressure below the lower edge of its bucket
            bucket -= own.pressure < bucket * step
        every, felt = np.arange(own.number), step * (1 - EXACT) * np.arange(levels)
        speed = np.empty((own.number, levels))
        for level, pressed in enumerate(felt):
            if level and self._watch.over():
                speed[:, level:] = speed[:, level - 1, None]
                break
            speed[:, level] = own.speed(every, own.turns_us(every, pressed, table.inflation))
        return Side(
            own=own,
            bucket=bucket,
            start=np.append(start, own.number),
            first=np.searchsorted(share[start], np.arange(len(options) + 1)),
            lowest=np.minimum.reduceat(bucket, start),
            speed=speed,
        )

    def best(self, worth: Worths, watch: Watch) -> tuple[list[tuple[float, Pattern]], bool]:
        """The best pattern and those of other partitions near it, if any is worth something.

        Returns:
            values and patterns, and whether no pattern is worth more: not where the time was over
            before all were looked at.
        """
        tops = self._priced(worth)
        found: list[tuple[float, Pattern]] = []
        least, whole = 0.0, True
        for partition in self.table.partitions:
            rows, values, left = self._search(partition, tops, worth, least, 1, watch)
            whole = whole and not left
            if len(values):
                value = float(values[0])
                found.append((value, self.pattern(partition, rows[0])))
                least = max(least, _NEAR * value)
        return found, whole

    def above(
        self, worth: Worths, least: float, most: int, watch: Watch
    ) -> tuple[list[Pattern], float]:
        """Up to about `most` dearest patterns worth more than `least`, without dominated ones.

        Another replaces a pattern that carries no less of any model, up to caps.

        Returns:
            patterns, and the value that no other exceeds but those replaced; none, and no such
            value (inf), where the time is over.
        """
        tops = self._priced(worth)
        kept: list[tuple[tuple[int, ...], Ints, Floats]] = []  # partition, rows, values
        for partition in self.table.partitions:
            more = True
            while more:
                if watch.over():
                    return [], np.inf
                rows, worths, more = self._search(
                    partition, tops, worth, least, 2 * ENUMERATED, watch
                )
                every = np.concatenate([*(own for _, _, own in kept), worths])
                if not more:
                    kept.append((partition, rows, worths))
                if len(every) > ENUMERATED:
                    least = _left_out(every, ENUMERATED)
                    kept = [(cut, r[v > least], v[v > least]) for cut, r, v in kept]
        rates = np.concatenate([self._rates(cut, rows) for cut, rows, _ in kept])
        values = np.concatenate([own for _, _, own in kept])
        near = np.flatnonzero(undominated(np.minimum(rates, worth.cap)))
        if len(near) > most:
            least = _left_out(values[near], most)
            near = near[values[near] > least]
        ends = np.cumsum([len(own) for _, _, own in kept])
        patterns: list[Pattern] = []
        for number, at in zip(near.tolist(), np.searchsorted(ends, near, "right"), strict=True):
            cut, rows, _ = kept[at]
            parts = tuple(zip(cut, rows[number - ends[at]].tolist(), strict=True))
            patterns.append(Pattern(gpu_class=self.number, parts=parts, rates_rps=rates[number]))
        return patterns, least

    def pattern(self, partition: tuple[int, ...], rows: Ints) -> Pattern:
        """A pattern in full.

        It carries nothing where a seat would be late or memory does not do.
        """
        parts = tuple(sorted(zip(partition, map(int, rows), strict=True)))
        shares = tuple(share for share, _ in parts)
        rates = self._rates(shares, np.array([[row for _, row in parts]]))[0]
        return Pattern(gpu_class=self.number, parts=parts, rates_rps=rates)

    def _rates(self, partition: tuple[int, ...], rows: Ints) -> Floats:
        """[n, model] requests/s that patterns carry; nothing where one does not work."""
        options = [self.options[share] for share in partition]
        pressure = [own.pressure[rows[:, i]] for i, own in enumerate(options)]
        memory = np.sum([own.memory_gib[rows[:, i]] for i, own in enumerate(options)], axis=0)
        works = memory <= self.table.memory_gib * (1 + ROUNDING)
        rates = np.zeros((len(rows), len(self.tables.models)))
        for i, share in enumerate(partition):
            felt = sum(pressure[:i] + pressure[i + 1 :], np.zeros(len(rows)))
            carried = self.carried(share, rows[:, i], felt, beside=len(partition) > 1)
            works &= carried.any(axis=1)
            rates += carried
        return rates * works[:, None]

    def carried(self, share: int, rows: Ints, felt: Floats | float, *, beside: bool) -> Floats:
        """[row, model] what parts carry beside so much pressure, or alone."""
        own = self.options[share]
        turns = own.turn_us[rows]
        if beside:
            turns = own.turns_us(rows, felt, self.table.inflation)
        return own.rates_rps(rows, turns, len(self.tables.models))

    def _priced(self, worth: Worths) -> Tops:
        """Options at prices."""
        side = self._side
        count, levels = side.speed.shape
        tops = Tops(
            value=np.empty((count, levels)),
            group=np.empty((len(side.lowest), levels)),
            every=np.empty((len(self._shares), levels)),
            order=np.empty(count, dtype=np.int64),
        )
        price_options(side, worth, tops)
        share = np.repeat(np.arange(len(self._shares)), np.diff(side.start[side.first]))
        tops.order[:] = np.lexsort((-tops.value[:, 0], share))
        return tops

    def _search(
        self,
        partition: tuple[int, ...],
        tops: Tops,
        worth: Worths,
        least: float,
        most: int,
        watch: Watch,
    ) -> tuple[Ints, Floats, bool]:
        """Up to `most` patterns of a partition worth more than `least`; of one, the best.

        Returns:
            [n, part] rows of the options, [n] values, and whether there may be more: there are, or
            the time was over.
        """
        cut, side = np.searchsorted(self._shares, partition), self._side
        room = Room(
            row=np.zeros((most, len(cut)), dtype=np.int64),
            value=np.zeros(most),
            carried=np.zeros((len(cut), side.own.model.shape[1])),
            chosen=np.zeros(len(cut), dtype=np.int64),
            group=np.zeros(len(cut), dtype=np.int64),
            place=np.zeros(3, dtype=np.int64),
        )
        limits = least, self.table.inflation, self.table.memory_gib * (1 + ROUNDING)
        count = search(side, tops, cut, worth, room, limits)
        while count == UNFINISHED and not watch.over():
            count = search(side, tops, cut, worth, room, limits)
        more = count == UNFINISHED or count > most
        kept = min(int(room.place[2]) if count == UNFINISHED else count, most)
        rows = room.row[:kept] - side.start[side.first[cut]]
        return rows, room.value[:kept].copy(), more


def _left_out(values: Floats, most: int) -> float:
    """The dearest value but for the `most` dearest."""
    at = len(values) - most - 1
    return float(np.partition(values, at)[at])
