"""Patterns of one whole GPU: what each of its parts does, priced exactly and enumerated.

A pattern is a partition with an option (`parts.Options`) on every part in use. Part p presses e_p
on the others and feels t_p = sum of e_q over the others; its turns are ceil(solo max(1, u + t_p)
inflation), or solo where it is alone on the GPU. So interference, turns and memory are constants of
a pattern, and what a plan must choose is how many GPUs follow which pattern: cutting stock.

A pattern's value at prices is a sum over models (`Worths`): price x rate, counted up to a cap,
the whole demand of the model; and a price of carrying it at all, half of which is for any rate and
all of it for the cap. The best pattern is found without looking at all of them: pressures are put
into buckets; with every neighbour at the lower edge of its bucket a part can only be faster, so the
sum of the best options under these edges bounds every pattern of those buckets. Two parts are
searched by `pairs`. Of three parts and more, buckets are searched by falling bound, options
likewise, until no bound exceeds the best found; there a model with seats on two parts is counted up
to its cap twice, so values never fall short.

Here: patterns of one class at prices. Not here: how many GPUs follow which (`master`).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from flows.planning.engine.columns import undominated
from flows.planning.gpulets.pairs import (
    Room,
    Side,
    Tops,
    Worths,
    price_options,
    price_rows,
    search_pairs,
)
from flows.planning.gpulets.parts import Options, options_of
from flows.planning.gpulets.tables import ClassTable, Tables
from flows.planning.solver.arrays import Floats, Ints
from flows.planning.solver.tolerances import EXACT
from flows.planning.watch import Watch

BUCKETS = 24  # of pressure, where a GPU has two parts
MOST_TUPLES = 40_000  # bucket choices of one partition
CHUNK = 200_000  # patterns evaluated at once
_FIRST = 32  # options of every part that are tried before the rest is bounded
ENUMERATED = 50_000  # patterns worth more than asked, before those that others replace are dropped
PAIR = 2
_NEAR = 0.8  # of the best pattern known: partitions whose best is below it need not be known
_QUARTILE = 0.25  # of the patterns there is room for: what is dropped where there are more

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Patterns of one partition, n of them.

    Attributes:
        rows: [n, part] rows of the options.
        values: [n] at the prices asked with.
    """

    partition: tuple[int, ...]
    rows: Ints
    values: Floats


class Patterns:
    """All patterns of one class, to be asked at prices."""

    def __init__(self, tables: Tables, number: int) -> None:
        """Enumerate the options of every share of class `number`."""
        self.tables = tables
        self.number = number
        self.table: ClassTable = tables.classes[number]
        shares = sorted(self.table.cells)
        self.options = {share: options_of(tables, self.table, share) for share in shares}
        widest = max(map(len, self.table.partitions))
        if self.table.interference:
            self._buckets = max(2, min(BUCKETS, int(MOST_TUPLES ** (1 / max(widest, 1)))))
        else:
            self._buckets = 1
        top = max((float(o.pressure.max()) for o in self.options.values() if o.count), default=0.0)
        self._step = top / self._buckets
        self._levels = (max(widest, 2) - 1) * (self._buckets - 1) + 1
        self._shares = {
            share: _Share(options, (self._step, self._buckets, self._levels), self.table.inflation)
            for share, options in self.options.items()
        }

    def best(self, worth: Worths) -> list[tuple[float, Pattern]]:
        """The best pattern and those of other partitions near it, if any is worth something."""
        priced = self._priced(worth)
        found: list[tuple[float, Pattern]] = []
        least = 0.0
        for partition in self.table.partitions:
            best = self._best(partition, priced, worth, least)
            if best is not None:
                value = float(best.values[0])
                found.append((value, self.pattern(partition, best.rows[0])))
                least = max(least, _NEAR * value)
        return found

    def above(
        self, worth: Worths, least: float, most: int, watch: Watch | None = None
    ) -> tuple[list[Pattern], float]:
        """Up to about `most` dearest patterns worth more than `least`, without dominated ones.

        Another replaces a pattern that carries no less of any model, up to caps.

        Returns:
            patterns, and the value that no other exceeds but those replaced; none, and no such
            value (inf), where the time is over.
        """
        priced = self._priced(worth)
        kept: list[Found] = []
        floor = [least]  # rises as more are found than are wanted
        held = 0
        for partition in self.table.partitions:
            for found in self._over(partition, priced, worth, floor, watch or Watch()):
                over = found.values > floor[0]
                if not over.any():
                    continue
                kept.append(_picked(found, over))
                held += int(over.sum())
                if held > 4 * ENUMERATED:
                    kept, floor[0] = _dearest(kept, ENUMERATED)
                    held = sum(len(f.values) for f in kept)
        if floor[0] == np.inf:
            return [], np.inf
        if held > ENUMERATED:
            kept, floor[0] = _dearest(kept, ENUMERATED)
        if not kept:
            return [], floor[0]
        if watch is not None and watch.over():
            return [], np.inf
        rates = [self._rates(found) for found in kept]
        capped = np.minimum(np.concatenate(rates), worth.cap)
        keep = np.split(undominated(capped), np.cumsum([len(r) for r in rates])[:-1])
        kept = [_picked(found, own) for found, own in zip(kept, keep, strict=True)]
        rates = [r[own] for r, own in zip(rates, keep, strict=True)]
        if sum(len(found.values) for found in kept) > most:
            top, floor[0] = _dearest(kept, most)
            rates = [r[found.values > floor[0]] for r, found in zip(rates, kept, strict=True)]
            kept = top
        unique = {
            (parts := tuple(sorted(zip(f.partition, rows.tolist(), strict=True)))): Pattern(
                gpu_class=self.number, parts=parts, rates_rps=carried
            )
            for f, own in zip(kept, rates, strict=True)
            for rows, carried in zip(f.rows, own, strict=True)
        }
        return list(unique.values()), floor[0]

    def _rates(self, found: Found) -> Floats:
        """[n, model] requests/s that patterns carry; all of them work."""
        options = [self.options[share] for share in found.partition]
        pressures = [own.pressure[found.rows[:, i]] for i, own in enumerate(options)]
        rates = np.zeros((len(found.rows), len(self.tables.models) + 1))  # the last is no model
        every = np.arange(len(rates))
        for i, own in enumerate(options):
            rows = found.rows[:, i]
            turns = own.turn_us[rows]
            if len(options) > 1:
                felt = sum(p for j, p in enumerate(pressures) if j != i)
                turns = own.turns_us(rows, felt, self.table.inflation)
            speed = own.speed(rows, turns)
            for seat in range(own.model.shape[1]):
                rates[every, own.model[rows, seat]] += own.batch[rows, seat] * speed
        return rates[:, :-1]

    def _priced(self, worth: Worths) -> "dict[int, _Priced]":
        """By share that has options: these at prices."""
        return {
            share: _Priced(own, worth) for share, own in self._shares.items() if own.options.count
        }

    def pattern(self, partition: tuple[int, ...], rows: Ints) -> Pattern:
        """A pattern in full.

        It carries nothing where a seat would be late or memory does not do.
        """
        parts = tuple(sorted(zip(partition, (int(row) for row in rows), strict=True)))
        rates = np.zeros(len(self.tables.models))
        memory = sum(float(self.options[share].memory_gib[row]) for share, row in parts)
        works = memory <= self.table.memory_gib * (1 + 1e-9)
        for share, row, turns in self.turns_us(parts):
            options = self.options[share]
            speed = float(options.speed(np.array([row]), turns[None, :])[0])
            works &= speed > 0
            seats = options.model[row] >= 0
            rates[options.model[row][seats]] += options.batch[row][seats] * speed
        rates *= works
        return Pattern(gpu_class=self.number, parts=parts, rates_rps=rates)

    def turns_us(self, parts: Parts) -> Iterator[tuple[int, int, Floats]]:
        """Share, row and turns [K] of every part."""
        for at, (share, row) in enumerate(parts):
            options, rows = self.options[share], np.array([row])
            if len(parts) == 1:
                yield share, row, options.turn_us[row]
                continue
            felt = self.felt(parts, at)
            yield share, row, options.turns_us(rows, np.array([felt]), self.table.inflation)[0]

    def part_rates(self, share: int, row: int, felt: float, *, beside: bool) -> Floats:
        """[model] what one part carries that feels so much; alone on its GPU where not `beside`."""
        options, rows = self.options[share], np.array([row])
        turns = options.turn_us[rows]
        if beside:
            turns = options.turns_us(rows, np.array([felt]), self.table.inflation)
        speed = float(options.speed(rows, turns)[0])
        rates = np.zeros(len(self.tables.models))
        seats = options.model[row] >= 0
        rates[options.model[row][seats]] = options.batch[row][seats] * speed
        return rates

    def felt(self, parts: Parts, at: int) -> float:
        """The pressure of the other parts on part number `at`."""
        others = (part for i, part in enumerate(parts) if i != at)
        return float(sum(self.options[share].pressure[row] for share, row in others))

    def _best(
        self,
        partition: tuple[int, ...],
        priced: "dict[int, _Priced]",
        worth: Worths,
        least: float,
    ) -> Found | None:
        """The best pattern of a partition, where one is worth more than `least`."""
        if len(partition) == PAIR:
            return self._pairs(partition, priced, worth, least, 1, best_only=True)[0]
        best: Found | None = None

        def known() -> float:
            return least if best is None else float(best.values[0])

        for found in self._search(partition, priced, known):
            if not len(found.values):
                continue
            top = int(np.argmax(found.values))
            if found.values[top] > known() * (1 + EXACT):
                best = _picked(found, np.array([top]))
        return best

    def _over(
        self,
        partition: tuple[int, ...],
        priced: "dict[int, _Priced]",
        worth: Worths,
        floor: list[float],
        watch: Watch,
    ) -> Iterator[Found]:
        """Patterns of a partition worth more than the floor, which rises where there are too many.

        Where the time is over it rises above all.
        """
        if watch.over():
            floor[0] = np.inf
            return
        if len(partition) != PAIR:
            yield from self._search(partition, priced, lambda: floor[0])
            return
        while not watch.over():
            found, more = self._pairs(
                partition, priced, worth, floor[0], 4 * ENUMERATED, best_only=False
            )
            if found is None:
                return
            if not more:
                yield found
                return
            floor[0] = float(np.quantile(found.values, _QUARTILE))
        floor[0] = np.inf

    def _pairs(
        self,
        partition: tuple[int, ...],
        priced: "dict[int, _Priced]",
        worth: Worths,
        least: float,
        most: int,
        *,
        best_only: bool,
    ) -> tuple[Found | None, bool]:
        """Up to `most` patterns of two parts worth more than `least`; whether there are more."""
        if any(share not in priced for share in partition):
            return None, False
        first, second = (priced[share] for share in partition)
        room = Room(
            row=np.zeros((most, 2), dtype=np.int64),
            value=np.zeros(most),
            carried=np.zeros(sum(p.share.options.model.shape[1] for p in (first, second))),
        )
        count = search_pairs(
            (first.share.side, second.share.side),
            (first.tops, second.tops),
            first.order,
            worth,
            room,
            (least, self.table.inflation, self.table.memory_gib * (1 + 1e-9)),
            (best_only, partition[0] == partition[1]),
        )
        kept = min(count, most)
        if not kept:
            return None, False
        found = Found(
            partition=partition, rows=room.row[:kept].copy(), values=room.value[:kept].copy()
        )
        return found, count > most

    def _search(
        self,
        partition: tuple[int, ...],
        priced: "dict[int, _Priced]",
        least: Callable[[], float],
    ) -> Iterator[Found]:
        """Every pattern of a partition worth more than `least()`, which may rise meanwhile."""
        if any(share not in priced for share in partition):
            return
        parts = [priced[share] for share in partition]
        if len(parts) == 1:
            rows = np.flatnonzero(parts[0].alone > least())
            yield Found(partition=partition, rows=rows[:, None], values=parts[0].alone[rows])
            return
        axes = np.indices((self._buckets,) * len(parts)).reshape(len(parts), -1)
        if len(set(partition)) == 1:  # equal parts: only one order of buckets
            axes = axes[:, (np.diff(axes, axis=0) >= 0).all(axis=0)]
        level = axes.sum(axis=0) - axes  # [part, choice] of what each part feels at least
        tops = np.stack([p.top[axes[i], level[i]] for i, p in enumerate(parts)])
        bound = tops.sum(axis=0)
        for choice in np.argsort(-bound, kind="stable").tolist():
            if not bound[choice] > least() * (1 + EXACT):
                return
            where = [(int(axes[i, choice]), int(level[i, choice])) for i in range(len(parts))]
            yield from self._within(partition, parts, (where, tops[:, choice]), least)

    def _within(
        self,
        partition: tuple[int, ...],
        parts: "list[_Priced]",
        chosen: tuple[list[tuple[int, int]], Floats],
        least: Callable[[], float],
    ) -> Iterator[Found]:
        """Patterns whose parts press as one choice of buckets says; the likeliest first."""
        where, tops = chosen
        rows = [p.rows(bucket, level) for p, (bucket, level) in zip(parts, where, strict=True)]
        if all(len(r) > _FIRST for r in rows):
            yield self._evaluated(partition, parts, [r[:_FIRST] for r in rows])
        spare = tops.sum() - tops
        kept = [
            r[p.value[r, level] + left > least()]
            for p, r, (_, level), left in zip(parts, rows, where, spare, strict=True)
        ]
        if any(not len(r) for r in kept):
            return
        inner = int(np.prod([len(r) for r in kept[1:]]))
        size = max(1, CHUNK // max(inner, 1))
        first, level = kept[0], where[0][1]
        for at in range(0, len(first), size):
            if not parts[0].value[first[at], level] + spare[0] > least():
                return
            now = least()
            outer = first[at : at + size]
            # the worth left for the others, given the best of these
            room = now - float(parts[0].value[first[at], level])
            rest = [
                r[p.value[r, lv] + (left - tops[0]) > room]
                for p, r, (_, lv), left in zip(
                    parts[1:], kept[1:], where[1:], spare[1:], strict=True
                )
            ]
            if all(len(r) for r in rest):
                yield self._evaluated(partition, parts, [outer, *rest])

    def _evaluated(
        self, partition: tuple[int, ...], parts: "list[_Priced]", rows: list[Ints]
    ) -> Found:
        """The patterns of all combinations of these rows, exactly."""
        grid = np.stack([axis.ravel() for axis in np.meshgrid(*rows, indexing="ij")], axis=1)
        options = [part.share.options for part in parts]
        memory = sum(o.memory_gib[grid[:, i]] for i, o in enumerate(options))
        grid = grid[memory <= self.table.memory_gib * (1 + 1e-9)]
        pressure = np.stack([o.pressure[grid[:, i]] for i, o in enumerate(options)])
        felt = pressure.sum(axis=0) - pressure
        values = np.zeros(len(grid))
        late = np.zeros(len(grid), dtype=np.bool_)
        for i, (part, own) in enumerate(zip(parts, options, strict=True)):
            turns = own.turns_us(grid[:, i], felt[i], self.table.inflation)
            speed = own.speed(grid[:, i], turns)
            late |= speed == 0
            values += part.worth(grid[:, i], speed)
        values[late] = -1.0
        return Found(partition=partition, rows=grid, values=values)


class _Share:
    """The options of a share with what they do at every level of pressure.

    Attributes:
        alone: [n] rounds per second with no neighbour.
        bucket: [n] of its own pressure.
        speed: [n, level] rounds per second where neighbours press level x step at least.
    """

    def __init__(self, options: Options, scale: tuple[float, int, int], inflation: float) -> None:
        step, buckets, levels = scale
        every = np.arange(options.count)
        self.options = options
        self.buckets = buckets
        self.alone = options.speed(every, options.turn_us)
        self.bucket = np.zeros(options.count, dtype=np.int64)
        if step > 0:
            self.bucket = np.minimum((options.pressure / step).astype(np.int64), buckets - 1)
            # rounding must not put a pressure below the lower edge of its bucket
            self.bucket -= options.pressure < self.bucket * step
        self.speed = np.empty((options.count, levels))
        for level in range(levels):
            felt = np.full(options.count, level * step * (1 - 1e-12))
            self.speed[:, level] = options.speed(every, options.turns_us(every, felt, inflation))

    @cached_property
    def members(self) -> list[Ints]:
        """Rows of every bucket."""
        return [np.flatnonzero(self.bucket == b) for b in range(self.buckets)]

    @cached_property
    def side(self) -> Side:
        """The options as `pairs` takes them.

        Those of the same models are made beside each other.
        """
        own = self.options
        begins = np.concatenate([[True], (own.model[1:] != own.model[:-1]).any(axis=1)])
        start = np.append(np.flatnonzero(begins), own.count)
        return Side(
            model=own.model,
            batch=own.batch.astype(np.float64),
            turn_us=own.turn_us,
            susceptibility=own.susceptibility,
            limit_us=own.limit_us,
            pressure=own.pressure,
            memory_gib=own.memory_gib,
            bucket=self.bucket,
            start=start,
            lowest=np.minimum.reduceat(self.bucket, start[:-1]),
            speed=self.speed,
        )


class _Priced:
    """Options of a share at prices; without any option, of no use.

    Attributes:
        tops: what they are worth at every level.
    """

    def __init__(self, share: _Share, worth: Worths) -> None:
        self.share = share
        self._worth = worth
        levels = share.speed.shape[1]
        self.tops = Tops(
            value=np.empty((share.options.count, levels)),
            group=np.empty((len(share.side.lowest), levels)),
            every=np.empty(levels),
        )
        price_options(share.side, worth, self.tops)

    @property
    def value(self) -> Floats:
        """[n, level]."""
        return self.tops.value

    @cached_property
    def order(self) -> Ints:
        """Options, the most valuable at the lowest level first."""
        return np.argsort(-self.value[:, 0], kind="stable")

    @cached_property
    def alone(self) -> Floats:
        """[n] value per second with no neighbour."""
        return self.worth(np.arange(self.share.options.count), self.share.alone)

    @cached_property
    def top(self) -> Floats:
        """[bucket, level] the best value of options that press so; -inf where there is none."""
        top = np.full((self.share.buckets, self.value.shape[1]), -np.inf)
        for bucket, members in enumerate(self.share.members):
            if len(members):
                top[bucket] = self.value[members].max(axis=0)
        return top

    def worth(self, rows: Ints, speed: Floats) -> Floats:
        """Value per second of rows at speeds [row]; what is late has speed 0."""
        value = np.empty(len(rows))
        price_rows(self.share.side, rows, speed, self._worth, value)
        return value

    def rows(self, bucket: int, level: int) -> Ints:
        """Rows of a bucket, the best first."""
        members = self.share.members[bucket]
        value = self.value[members, level]
        order = np.argsort(-value, kind="stable")
        return members[order[: int((value > -np.inf).sum())]]


def _picked(found: Found, which: Ints | NDArray[np.bool_]) -> Found:
    return Found(partition=found.partition, rows=found.rows[which], values=found.values[which])


def _dearest(kept: list[Found], most: int) -> tuple[list[Found], float]:
    """The `most` dearest of all, and the value of the dearest left out."""
    values = np.concatenate([found.values for found in kept])
    least = float(np.partition(values, len(values) - most - 1)[len(values) - most - 1])
    return [_picked(found, found.values > least) for found in kept], least
