"""Patterns of one whole GPU: what each of its parts does, priced exactly and enumerated.

A pattern is a partition with an option (`parts.Options`) on every part in use. Part p presses e_p on the
others and feels t_p = sum of e_q over the others; its turns are ceil(solo max(1, u + t_p) inflation), or solo where
it is alone on the GPU. So interference, turns and memory are constants of a pattern, and what a plan must
choose is how many GPUs follow which pattern: cutting stock.

A pattern's value at prices is the sum over its seats of price of the model x batch x rounds/s, each counted up to a
cap: what the whole demand of the model is worth. (A model with seats on two parts is counted up to its cap twice, so
values never fall short.) The best pattern is found
without looking at all of them: pressures are put into buckets; with every neighbour at the lower edge of
its bucket a part can only be faster, so the sum of the best options under these edges bounds every pattern of
those buckets. Buckets are searched by falling bound, options likewise, until no bound exceeds the best found.

Here: patterns of one class at prices. Not here: how many GPUs follow which (`master`).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from flows.planning.gpulets.parts import Options, options_of
from flows.planning.gpulets.tables import ClassTable, Floats, Ints, Tables

BUCKETS = 24  # of pressure, where a GPU has two parts
MOST_TUPLES = 40_000  # bucket choices of one partition
CHUNK = 200_000  # patterns evaluated at once
_FIRST = 32  # options of every part that are tried before the rest is bounded
TOLERANCE = 1e-12

Parts = tuple[tuple[int, int], ...]  # (share, row of its options), rising


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """What one GPU of a class does.

    Attributes:
        parts: share and row of the options of every part in use.
        rates_rps: [model].
    """

    gpu_class: int
    parts: Parts
    rates_rps: Floats

    @property
    def key(self) -> tuple[int, Parts]:
        """Two patterns of one key are the same."""
        return self.gpu_class, self.parts


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Patterns of one partition, n of them.

    Attributes:
        rows: [n, part] rows of the options.
        speeds: [n, part] rounds per second.
        values: [n] at the prices asked with.
    """

    partition: tuple[int, ...]
    rows: Ints
    speeds: Floats
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

    def best(self, prices: Floats, caps: Floats) -> list[tuple[float, Pattern]]:
        """The best pattern of every partition at prices per request/s, where any is worth something.

        Args:
            prices: [model].
            caps: [model] requests/s that count at most; infinite where all do.
        """
        priced = {share: own.at(prices, caps) for share, own in self._shares.items()}
        found: list[tuple[float, Pattern]] = []
        for partition in self.table.partitions:
            best = self._best(partition, priced)
            if best is not None:
                found.append((float(best.values[0]), self.pattern(partition, best.rows[0])))
        return found

    def above(
        self, prices: Floats, caps: Floats, least: float, most: int
    ) -> tuple[list[tuple[float, Pattern]], float]:
        """Patterns worth more than `least` at prices, `most` at most, the dearest.

        Returns:
            values and patterns, and the value that no pattern left out exceeds.
        """
        priced = {share: own.at(prices, caps) for share, own in self._shares.items()}
        kept: list[Found] = []
        floor = [least]  # rises as more are found than are wanted
        held = 0
        for partition in self.table.partitions:
            for found in self._search(partition, priced, lambda: floor[0]):
                over = found.values > floor[0]
                if not over.any():
                    continue
                kept.append(_picked(found, over))
                held += int(over.sum())
                if held > 4 * most:
                    kept, floor[0] = _dearest(kept, most)
                    held = sum(len(f.values) for f in kept)
        if held > most:
            kept, floor[0] = _dearest(kept, most)
        unique = {
            (pattern := self.pattern(f.partition, rows)).key: (float(value), pattern)
            for f in kept
            for rows, value in zip(f.rows, f.values, strict=True)
        }
        return list(unique.values()), floor[0]

    def pattern(self, partition: tuple[int, ...], rows: Ints) -> Pattern:
        """A pattern in full; it carries nothing where a seat would be late or memory does not do."""
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
        """What the other parts press on part number `at`."""
        others = (part for i, part in enumerate(parts) if i != at)
        return float(sum(self.options[share].pressure[row] for share, row in others))

    def _best(self, partition: tuple[int, ...], priced: "dict[int, _Priced]") -> Found | None:
        best: Found | None = None

        def least() -> float:
            return 0.0 if best is None else float(best.values[0])

        for found in self._search(partition, priced, least):
            if not len(found.values):
                continue
            top = int(np.argmax(found.values))
            if found.values[top] > least() * (1 + TOLERANCE):
                best = _picked(found, np.array([top]))
        return best

    def _search(
        self,
        partition: tuple[int, ...],
        priced: "dict[int, _Priced]",
        least: Callable[[], float],
    ) -> Iterator[Found]:
        """Every pattern of a partition that may be worth more than `least()`, which may rise meanwhile."""
        parts = [priced[share] for share in partition]
        if any(not part.share.options.count for part in parts):
            return
        if len(parts) == 1:
            rows = np.flatnonzero(parts[0].alone > least())
            speeds = parts[0].share.alone[rows]
            yield Found(
                partition=partition,
                rows=rows[:, None],
                speeds=speeds[:, None],
                values=parts[0].alone[rows],
            )
            return
        axes = np.indices((self._buckets,) * len(parts)).reshape(len(parts), -1)
        if len(set(partition)) == 1:  # equal parts: only one order of buckets
            axes = axes[:, (np.diff(axes, axis=0) >= 0).all(axis=0)]
        level = axes.sum(axis=0) - axes  # [part, choice] of what each part feels at least
        tops = np.stack([p.top[axes[i], level[i]] for i, p in enumerate(parts)])
        bound = tops.sum(axis=0)
        for choice in np.argsort(-bound, kind="stable").tolist():
            if not bound[choice] > least() * (1 + TOLERANCE):
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
            # what is left of the others, now that the best of these is known
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
        speeds = np.empty(grid.shape)
        values = np.zeros(len(grid))
        late = np.zeros(len(grid), dtype=np.bool_)
        for i, (part, own) in enumerate(zip(parts, options, strict=True)):
            turns = own.turns_us(grid[:, i], felt[i], self.table.inflation)
            speeds[:, i] = own.speed(grid[:, i], turns)
            late |= speeds[:, i] == 0
            values += part.worth(grid[:, i], speeds[:, i])
        values[late] = -1.0
        return Found(partition=partition, rows=grid, speeds=speeds, values=values)


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

    def at(self, prices: Floats, caps: Floats) -> "_Priced":
        """The same at prices per request/s of a model, of which so many count at most."""
        padded = np.append(prices, 0.0)  # model -1 is none
        seats = padded[self.options.model] * self.options.batch.astype(np.float64)
        if np.isinf(caps).all():
            return _Priced(self, seats, None)
        worth = np.append(np.where(prices > 0, prices * caps, 0.0), 0.0)
        return _Priced(self, seats, worth[self.options.model])


class _Priced:
    """Options of a share at prices.

    Attributes:
        seats: [n, K] value of a batch of every seat.
        most: [n, K] value per second that counts at most; None where all counts.
        alone: [n] value per second with no neighbour.
        value: [n, level].
        top: [bucket, level] the best value of options that press so; -inf where there is none.
    """

    def __init__(self, share: _Share, seats: Floats, most: Floats | None) -> None:
        self.share = share
        self.seats = seats
        self.most = most
        self._gain = seats.sum(axis=1)
        every = np.arange(len(seats))
        self.alone = self.worth(every, share.alone)
        self.value = np.where(share.speed > 0, self.worth(every, share.speed), -np.inf)
        self.top = np.full((share.buckets, share.speed.shape[1]), -np.inf)
        for bucket, members in enumerate(share.members):
            if len(members):
                self.top[bucket] = self.value[members].max(axis=0)

    def worth(self, rows: Ints, speed: Floats) -> Floats:
        """Value per second of rows at speeds [row] or [row, level]."""
        wide = speed if speed.ndim > 1 else speed[:, None]
        if self.most is None:
            value = self._gain[rows][:, None] * wide
        else:
            value = np.zeros(wide.shape)
            for seat in range(self.seats.shape[1]):
                own = self.seats[rows, seat][:, None] * wide
                value += np.minimum(own, self.most[rows, seat][:, None])
        return value if speed.ndim > 1 else value[:, 0]

    def rows(self, bucket: int, level: int) -> Ints:
        """Rows of a bucket, the best first."""
        members = self.share.members[bucket]
        value = self.value[members, level]
        order = np.argsort(-value, kind="stable")
        return members[order[: int((value > -np.inf).sum())]]


def _picked(found: Found, which: Ints | np.ndarray) -> Found:
    return Found(
        partition=found.partition,
        rows=found.rows[which],
        speeds=found.speeds[which],
        values=found.values[which],
    )


def _dearest(kept: list[Found], most: int) -> tuple[list[Found], float]:
    """The `most` dearest of all, and the value of the dearest left out."""
    values = np.concatenate([found.values for found in kept])
    least = float(np.partition(values, len(values) - most - 1)[len(values) - most - 1])
    return [_picked(found, found.values > least) for found in kept], least
