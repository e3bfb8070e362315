"""Inputs of planners of entries: ranges of blocks on every share and batch, budgets, prices.

    time of a stage    T = L(blocks, class, share, batch) + Y(batch)
    vGPUs for a rate   n = ceil(rate L / batch), cost = price of its share of a GPU times n
    limit of an entry  floor((1 - margin) budget)

Y is the move to the next stage, 0 at the end; half a budget pays for waiting (Graft, section 4.3).

An option of a range is a class, a share, a batch and, with `phases` any, how long its requests can
wait (`clients_of`). One that is no faster, no cheaper per vGPU and carries no more than another is
left out, whatever the rate: it is never needed.

A batch of an alignment stage boards a shared batch as a whole. Where the shared batch is no
multiple of it, rows stay empty that the shared stage's rate counts on: batches of 2 in 3 rows fill
2. So it goes to shared batches that are multiples of it alone, and of shared stages one replaces
another only if its batch is a multiple of the other's.

    alignment, 2 requests   [a a] [b b]            [a a] [b b]
    shared stage            [a a .] [b b .]        [a a b b]
                            of 3                   of 4

Here: entries, and what each range of blocks may run on. Not here: reading profiles and classes
(`inputs`); which entries meet (`groups`).
"""

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from flows.planning.engine.columns import undominated
from flows.planning.entries.options import (
    ANY_NUMBER,
    NO_OPTIONS,
    Found,
    Kind,
    Layout,
    Options,
    Range,
    Size,
    Stage,
)
from flows.planning.inputs import (
    gpu_price,
    link_rps,
    moves_us,
    profile_of,
    require_rates,
    room_gib,
    without_gpus,
)
from flows.planning.promises.headroom import NO_HEADROOM, factor_of
from flows.planning.registry import Inputs
from flows.planning.solver.arrays import Floats, Ints
from flows.planning.solver.tolerances import ROUNDING
from triton_backend.contract.entries import Entry
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import BYTES_PER_GIB
from triton_backend.contract.profiles import ModelProfile
from triton_backend.contract.shares import WHOLE_GPU
from triton_backend.contract.units import US_PER_S
from triton_backend.contract.workload import ModelDemand
from triton_backend.scheduler.compiled import entry as kernel_entry

ANY_PHASE, EVEN = "any", "even"
_PERIODS = 256  # in which clients may come together again and again
_REFERENCES = 3  # periods that entries of several rates are read at
_LATER, _AGAIN = 8, 2  # waits of an option that are looked at: runs, periods


@dataclass(frozen=True, kw_only=True)
class ModelTable:
    """One model.

    Attributes:
        number: of the model in the workload.
        entries: with their planned rates (`listed`: as the workload lists them, or the model as a
            whole).
        limits_us: by entry.
        most: vGPUs that a stage may have.
        chains: whether a pipeline may have two stages.
        kept: part of a budget that is not kept for waiting.
        period_us: of clients that pools serve in any phase; None: by rates alone.
        references_us: periods that entries of several rates can be read at (`in_periods_of`).
        rates_rps: by entry, that pools carry for it.
        kinds: of shared stages.
        found: options, by period and by which prices are lower.
    """

    number: int
    profile: ModelProfile
    entries: tuple[Entry, ...]
    listed: bool
    limits_us: tuple[int, ...]
    sizes: tuple[Size, ...]
    most: int
    chains: bool
    kept: float
    period_us: float | None
    references_us: tuple[float, ...]
    rates_rps: tuple[float, ...]
    kinds: tuple[Kind, ...]
    _known: dict[Stage, Options] = field(default_factory=dict[Stage, Options])
    found: dict[Hashable, Found] = field(default_factory=dict[Hashable, Found])

    @cached_property
    def prices(self) -> Floats:
        """[sizes] of one vGPU."""
        return np.array([size.price for size in self.sizes])

    @cached_property
    def _ranks(self) -> tuple[int, ...]:
        """[sizes] how many prices there are below, those alike counted once."""
        return tuple(np.unique(self.prices, return_inverse=True)[1].tolist())

    def _before(self) -> Found:
        return self.found.setdefault((self.period_us, self._ranks), Found())

    @property
    def name(self) -> str:
        """Of the model."""
        return self.profile.name

    @property
    def blocks(self) -> int:
        """Of the model."""
        return self.profile.blocks

    def _kinds_of(self, roots: Options) -> Ints:
        numbers = {kind: number for number, kind in enumerate(self.kinds)}
        both = zip(roots.size.tolist(), roots.batch.tolist(), strict=True)
        found = [numbers[kind_of(self.sizes[s], b, chains=self.chains)] for s, b in both]
        return np.array(found, dtype=np.int64)

    def options(self, first: int, last: int, kind: int = 0) -> Options:
        """The stage of blocks [first, last), whose results go to a shared stage of a kind."""
        receiver = self.kinds[kind if last < self.blocks else 0]
        key = (first, last, receiver.nic_gbps, receiver.batch)  # its link counts in a group alone
        if key not in self._known:
            before = self._before()
            if key not in before.options:
                before.options[key] = self._options(*key, before.rows)
            found = before.options[key]
            self._known[key] = Options(
                time_us=found.time_us,
                price=self.prices[found.size],
                work=found.work,
                size=found.size,
                batch=found.batch,
            )
        return self._known[key]

    def layout(self, starts: Ints) -> Layout:
        """Options of ranges from some blocks, in rising order."""
        layouts, key = self._before().layouts, tuple(starts.tolist())
        if key not in layouts:
            layouts[key] = self._layout(key)
        return layouts[key]

    def _layout(self, starts: tuple[int, ...]) -> Layout:
        roots: list[Options] = []
        for junction in range(self.blocks):
            wanted = bool(starts) and junction >= starts[0]
            wanted = wanted and (self.chains or junction in starts)
            roots.append(self.options(junction, self.blocks) if wanted else NO_OPTIONS)
        root_start = np.cumsum([0, *map(len, roots)])
        root_junction = np.repeat(np.arange(self.blocks), np.diff(root_start))
        root_kind = np.concatenate([self._kinds_of(o) for o in roots])
        met = np.unique(np.column_stack([root_junction, root_kind]), axis=0).tolist()
        options_from = np.zeros((self.blocks, self.blocks, len(self.kinds), 2), np.int64)
        found, count = [NO_OPTIONS], 0
        for start in starts:
            for junction, kind in met if self.chains else ():
                if start < junction:
                    found.append(self.options(start, junction, kind))
                    options_from[start, junction, kind] = count, count + len(found[-1])
                    count += len(found[-1])
        return Layout(
            root_start=root_start,
            root_junction=root_junction,
            root_time=np.concatenate([o.time_us for o in roots]),
            root_work=np.concatenate([o.work for o in roots]),
            root_kind=root_kind,
            root_size=np.concatenate([o.size for o in roots]),
            options_from=options_from,
            time=np.concatenate([o.time_us for o in found]),
            work=np.concatenate([o.work for o in found]),
            size=np.concatenate([o.size for o in found]),
        )

    def like(self, other: "ModelTable") -> "ModelTable":
        """The same table, which does not seek again the options that another of its model found.

        Which are needed depends on which prices are lower, not on how much, and on rates only where
        clients have phases.
        """
        phased = self.period_us is not None or self.references_us
        if phased and (self.period_us, self.rates_rps) != (other.period_us, other.rates_rps):
            return self
        return replace(self, found=other.found)

    def _options(
        self, first: int, last: int, nic_gbps: float, batch: int, known: dict[Range, Floats]
    ) -> Options:
        key = (first, last, nic_gbps)
        if key not in known:
            known[key] = _rows(self, *key)
        rows, multiples = known[key], np.zeros((0, 0))
        if last < self.blocks:
            rows = rows[:, batch % rows[4] == 0]
        elif self.chains and first > min(entry.block for entry in self.entries):
            multiples = rows[4] % np.unique(rows[4])[:, None] == 0
        needed = undominated(np.column_stack([*-rows[:3], *multiples]))
        time, price, work, number, batches = rows[:, needed]
        return Options(
            time_us=time,
            price=price,
            work=work,
            size=number.astype(np.int64),
            batch=batches.astype(np.int64),
        )


def read_tables(
    inputs: Inputs,
    level: float = 1.0,
    weights: Mapping[str, float] | None = None,
    waste: float = 0.0,
    like: Sequence[ModelTable] = (),
) -> list[ModelTable]:
    """Every model of the workload, rates times `level`, prices of classes times their weights.

    With `waste` 1 a vGPU costs its part of a GPU that is cut into as many such shares as fit;
    below, that in part. `like` are tables of the same workload at another level or other prices:
    what was found for them is not sought again.

    Raises:
        InputError: a model has no profile, is measured nowhere or has no rate, or a price is
            missing.
    """
    require_rates(inputs.workload, inputs.options.objective)
    tables = [
        _model_table(inputs, number, demand, level, weights or {}, waste)
        for number, demand in enumerate(inputs.workload.models)
    ]
    return [t.like(other) for t, other in zip(tables, like, strict=True)] if like else tables


def _model_table(
    inputs: Inputs,
    number: int,
    demand: ModelDemand,
    level: float,
    weights: Mapping[str, float],
    waste: float,
) -> ModelTable:
    options, where = inputs.options, f"workload model {demand.name!r}"
    profile = profile_of(inputs.profiles, demand.name)
    for entry in demand.entries:
        if entry.block >= profile.blocks:
            reason = f"{entry.block}, but the model has blocks 0 to {profile.blocks - 1}"
            raise InputError(f"{where}, entry {entry.name}, block", reason)
    sizes = tuple(_sizes(inputs, profile, weights, waste))
    if not sizes:
        reason = "not measured on any share of a GPU that it may use"
        raise without_gpus(inputs, profile) or InputError(where, reason)
    kept = 1 - options.margin(demand.name)
    listed = demand.entries or (
        Entry(
            name=demand.name,
            block=0,
            budget_us=demand.slo_us,
            rate_rps=demand.normaliser(options.objective),
        ),
    )
    entries = tuple(replace(entry, rate_rps=entry.rate_rps * level) for entry in listed)
    any_phase = options.own.get("phases") == ANY_PHASE and demand.entries
    rates = sorted({entry.rate_rps for entry in entries} if any_phase else ())
    headroom = factor_of(str(options.own.get("headroom") or NO_HEADROOM))
    return ModelTable(
        number=number,
        profile=profile,
        entries=entries,
        listed=bool(demand.entries),
        limits_us=tuple(math.floor(kept * entry.budget_us + 1e-6) for entry in entries),
        sizes=sizes,
        most=options.own.get("max_instances") or ANY_NUMBER,
        chains=options.max_partitions > 1,
        kept=kept,
        period_us=US_PER_S / rates[0] if len(rates) == 1 else None,
        references_us=_references_us(entries) if len(rates) > 1 else (),
        rates_rps=tuple(headroom * entry.rate_rps for entry in entries),
        kinds=tuple(
            dict.fromkeys(
                kind_of(size, batch, chains=options.max_partitions > 1)
                for size in sizes
                for batch in size.table.batches
            )
        ),
    )


def kind_of(size: Size, batch: int, *, chains: bool) -> Kind:
    """A shared stage on a size; its batch counts only where there are alignment stages."""
    return Kind(size.nic_gbps, size.link_rps, batch if chains else 0)


def _references_us(entries: Sequence[Entry]) -> tuple[float, ...]:
    """Periods of entries of several rates, those at which they count least."""
    periods = {US_PER_S / entry.rate_rps for entry in entries}
    total = {p: math.fsum(_counted(entry, p) for entry in entries) / p for p in periods}
    return tuple(sorted(periods, key=lambda p: (total[p], p))[:_REFERENCES])


def _counted(entry: Entry, period_us: float) -> int:
    """How many clients of a period an entry counts as: no two requests of one are closer."""
    return math.ceil(entry.rate_rps * period_us / US_PER_S * (1 - ROUNDING))


def in_periods_of(table: ModelTable, period_us: float) -> ModelTable:
    """Entries of several rates as clients of one period, whatever their phases.

    The requests of one that sends more often go to several such clients in turns, ceil(period /
    own); one that sends less often is one of them that skips requests. `clients_of` holds where
    two requests of a client are a period apart or more, so it holds for these.
    """
    rates = zip(table.rates_rps, table.entries, strict=True)
    often = US_PER_S / period_us
    return replace(
        table,
        period_us=period_us,
        references_us=(),
        rates_rps=tuple(r / e.rate_rps * _counted(e, period_us) * often for r, e in rates),
        _known={},
    )


def _sizes(
    inputs: Inputs, profile: ModelProfile, weights: Mapping[str, float], waste: float
) -> Iterator[Size]:
    cluster = inputs.cluster
    for gpu_class in cluster.gpu_classes:
        name = gpu_class.name
        if not cluster.gpus(name) or not inputs.options.class_allowed(profile.name, name):
            continue
        price = gpu_price(gpu_class, inputs.options.objective) * weights.get(name, 1.0)
        for share in sorted(gpu_class.shares):
            measured = profile.table(name, share, gpu_class.basis)
            if measured is None:
                continue
            link = np.full(profile.blocks + 1, np.inf)
            if gpu_class.vgpu_divisors:
                link = link_rps(profile, cluster, name, share)
            yield Size(
                gpu_class=name,
                share=share,
                price=price * ((1 - waste) * share / WHOLE_GPU + waste / (WHOLE_GPU // share)),
                nic_gbps=cluster.nic_gbps(name),
                link_rps=tuple(link.tolist()),
                room_gib=room_gib(gpu_class, share),
                table=measured,
            )


def _rows(table: ModelTable, first: int, last: int, nic_gbps: float) -> Floats:
    """[5, n] time, price, work, size and batch of options of a range, by rising time.

    Of each batch those that no other one of it beats.
    """
    leaving = table.profile.boundary_bytes[last - 1] if last < table.blocks else 0
    rows: list[Floats] = []
    moves: dict[tuple[float, tuple[int, ...]], Floats] = {}
    held_gib = table.profile.stage_memory_bytes((first, last)) / BYTES_PER_GIB
    for number, size in enumerate(table.sizes):
        if held_gib > size.room_gib * (1 + ROUNDING):
            continue
        batches = np.array(size.table.batches)
        latency = size.table.stage_latency_us((first, last))[batches - 1].astype(np.float64)
        move = min(nic_gbps, size.nic_gbps), size.table.batches
        if move not in moves:
            moves[move] = moves_us(leaving, move[1], move[0])
        rows.append(
            np.stack(
                [
                    latency + moves[move],
                    np.full(len(batches), size.price),
                    np.maximum(latency / (batches * US_PER_S), 1 / size.link_rps[last]),
                    np.full(len(batches), number),
                    batches,
                ]
            )
        )
    found = np.concatenate(rows, axis=1) if rows else np.zeros((5, 0))
    if table.period_us is not None and found.size:
        found = _in_any_phase(found, table, (first, last))
    time, price, work, number, batch = found
    found = found[:, np.lexsort((number, batch, work, price, time))]
    return found[:, undominated(-found[:3].T, found[4].astype(np.int64))]


@kernel_entry
def clients_of(wait: float, latency: float, batch: int, period: float) -> float:
    """How many clients a vGPU serves, each a request per period, whatever their phases.

    v vGPUs run batches of the most urgent, each as soon as it is free, in `latency`. Let a request
    be late that had to start by D, and s the last instant before D at which none was waiting that
    has to start by then. From s on a vGPU is taken for `latency` at most, and each batch is full of
    them: v batch floor(x / latency) have started x later. n clients have sent floor((x - wait) /
    period) + 1 each of those, less one for each of the clients whose requests took the vGPUs: v of
    them where wait + latency <= period, for then none took two. None is late if for all x = wait +
    k period

        n (k + 1) <= v (batch floor(x / latency) + one)

    with one = 1 where wait + latency <= period, else 0

    Returns:
        The largest n / v; at most batch period / latency, which is the rate.
    """
    one = 1.0 if wait + latency <= period else 0.0
    least = batch * period / latency
    for k in range(_PERIODS):
        started = np.floor((wait + k * period) / latency * (1 + ROUNDING))
        least = min(least, (batch * started + one) / (k + 1))
    beyond = (wait + _PERIODS * period) / latency - 1  # the rest is at least this, or the rate
    return min(least, batch * beyond / (_PERIODS + 1))


def _in_any_phase(found: Floats, table: ModelTable, blocks: tuple[int, int]) -> Floats:
    """Options with the time their requests can wait, as part of a budget, and their vGPUs."""
    assert table.period_us is not None
    number, batch = found[3:].astype(np.int64)
    by_size = [size.table.stage_latency_us(blocks) for size in table.sizes]
    latency = np.array([by_size[n][b - 1] for n, b in zip(number, batch, strict=True)], dtype=float)
    rows = np.empty((5, len(latency) * (_LATER + 2)))
    ends = np.empty(2 * _AGAIN * _LATER)
    return rows[:, : _waiting(found, latency, (table.period_us, table.kept), ends, rows)]


@kernel_entry
def _waiting(
    found: Floats, latency: Floats, about: tuple[float, float], ends: Floats, rows: Floats
) -> int:
    """Fill in options with each wait beyond which more clients are served; how many they are.

    The first wait is the one that a budget leaves anyway. Longer ones end with a run, of the same
    period's or the next one's; the last is that of a run and a period, for which rates alone count.
    """
    (period, kept), count = about, 0
    for option in range(len(latency)):
        own, last = latency[option], latency[option] + period
        free = found[0, option] * (1 / kept - 1)
        number = 0
        for k in range(_AGAIN):
            first = max(1, int((free + k * period) / own))
            beyond = min(first + _LATER, _LATER + int(np.ceil((own + k * period) / own)))
            for m in range(first, beyond):
                end, at = m * own - k * period, number
                if not free < end < last:
                    continue
                while at > 0 and ends[at - 1] > end:
                    ends[at] = ends[at - 1]
                    at -= 1
                ends[at] = end
                number += 1
        wait, at, given = free, 0, 0
        while True:
            clients = clients_of(wait, own, int(found[4, option]), period)
            rows[0, count] = max(found[0, option], kept * (found[0, option] + wait))
            rows[1, count] = found[1, option]
            rows[2, count] = max(found[2, option], period / US_PER_S / clients)
            rows[3, count], rows[4, count] = found[3, option], found[4, option]
            count, given = count + 1, given + 1
            while at < number and ends[at] <= wait:
                at += 1
            if wait >= last:
                break
            wait = ends[at] if at < number and given <= _LATER else last
    return count
