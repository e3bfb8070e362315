"""Greedy planners that the exact one is compared with, on the same tables and the same feasibility.

`gpulets-greedy` is Algorithm 1 of gpulets (section 4.3) made whole: models by rate x SLO, rising;
each takes the smallest part that is no smaller than its ideal size, which an uncut GPU is cut for;
what fills a part badly is first merged into a part that others use, in turns. Neighbours, slowed
down, choose batches again. Where no empty part lets them carry what they promised, they promise
less, as in the authors' code, which then takes smaller parts too; what they lose is placed again.
`ideal-static` tries every cut of every GPU and runs the same without cutting; `best-fit` takes the
smallest part that carries the rate, one model each, blind to interference (GSLICE); `sbp` leaves
GPUs whole (squishy bin packing).

Here: the rules. Not here: turns, factors and memory (`parts`, `patterns`), plans (`plan`).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations_with_replacement

import numpy as np

from flows.clock import Stopwatch
from flows.planning.engine.level import halved
from flows.planning.gpulets.master import Answer, Master
from flows.planning.gpulets.patterns import Parts, Pattern, Patterns
from flows.planning.gpulets.plan import outcome_of
from flows.planning.gpulets.tables import read_tables
from flows.planning.registry import Inputs, Outcome, Trace
from flows.planning.solver.arrays import Floats, Ints
from flows.planning.solver.tolerances import ROUNDING, SOLVED
from triton_backend.contract.errors import InfeasibleError, InputError
from triton_backend.contract.shares import WHOLE_GPU

GAIN = 1.05  # of throughput, that makes a larger size worth it
PERCENTS = 100  # steps in which a rest of a rate is merged
STEP, STEPS = 1.02, 20  # ratio and number of the multiples tried above the one found by halving


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """The parameters that distinguish the rules.

    Attributes:
        cut: whether uncut GPUs are cut as models come; else they stay as they are given.
        whole: only whole GPUs.
        fitting: the ideal size is the smallest that carries the rate, whatever is efficient.
    """

    cut: bool = True
    whole: bool = False
    fitting: bool = False


@dataclass(slots=True)
class Part:
    """A part of a GPU: its share, the row of what it does, and what its models are promised."""

    share: int
    row: int | None = None
    promised: dict[int, float] = field(default_factory=dict[int, float])


@dataclass(slots=True)
class Gpu:
    """Parts of a GPU; one of the whole share where it is uncut."""

    parts: list[Part]

    def copy(self) -> "Gpu":
        """The same, to try something on."""
        return Gpu([Part(p.share, p.row, dict(p.promised)) for p in self.parts])


class Greedy:
    """Rates onto GPUs of one class by a rule."""

    def __init__(self, patterns: Patterns, rule: Rule) -> None:
        """Index the options of every share by the models that take turns there."""
        self.patterns = patterns
        self.rule = rule
        self.limit_us = patterns.tables.limit_us
        self.shares = sorted(patterns.options)
        if rule.whole:
            self.shares = [share for share in self.shares if share == WHOLE_GPU]
        self.rows: dict[tuple[int, tuple[int, ...]], Ints] = {}
        for share, options in patterns.options.items():
            keys: dict[tuple[int, ...], list[int]] = {}
            for row, models in enumerate(options.model.tolist()):
                keys.setdefault(tuple(m for m in models if m >= 0), []).append(row)
            self.rows |= {(share, key): np.array(rows) for key, rows in keys.items()}
        self.alone = np.zeros((len(patterns.tables.models), len(self.shares)))
        for at, share in enumerate(self.shares):
            options = patterns.options[share]
            for model in range(len(self.alone)):
                rows = self.rows.get((share, (model,)))
                if rows is not None:
                    speed = options.speed(rows, options.turn_us[rows])
                    self.alone[model, at] = (options.batch[rows, 0] * speed).max()

    def place(self, rates: Floats, gpus: list[Gpu]) -> bool:
        """Put all rates on the GPUs, which change; whether that went.

        What models give up to later ones is placed once these are. Every step adds a model to a
        part or fills one up, so that this ends.
        """
        order = sorted(range(len(rates)), key=lambda m: (rates[m] * self.limit_us[m], m))
        left = np.array(rates, dtype=np.float64)
        while waiting := [m for m in order if left[m] > ROUNDING * rates[m]]:
            for model in waiting:
                while left[model] > ROUNDING * rates[model]:
                    if not self._some(model, left, gpus):
                        return False
        return True

    def ideal(self, model: int, rate: float) -> int | None:
        """The size that suits a model best; None where none serves it."""
        throughput = self.alone[model]
        able = np.flatnonzero(throughput > 0)
        if not len(able):
            return None
        carrying = np.flatnonzero(throughput >= rate)
        if self.rule.fitting:
            return self.shares[int(carrying[0] if len(carrying) else able[-1])]
        efficient = self.shares[int(able[0])]
        steepest = 0.0
        for low, high in zip(range(len(self.shares)), range(1, len(self.shares)), strict=False):
            if self.shares[high] == WHOLE_GPU or throughput[high] <= 0:
                continue
            if throughput[high] < GAIN * throughput[low]:
                continue
            slope = (throughput[high] - throughput[low]) / (self.shares[high] - self.shares[low])
            if slope > steepest:
                steepest, efficient = slope, self.shares[high]
        return min(efficient, self.shares[int(carrying[0])]) if len(carrying) else efficient

    def _some(self, model: int, left: Floats, gpus: list[Gpu]) -> bool:
        """Place some of what is left of a model; neighbours yield before models share parts."""
        size = self.ideal(model, float(left[model]))
        if size is None:
            return False
        return (
            self._on_a_part(model, left, size, gpus)
            or self._on_a_part(model, left, size, gpus, yielding=True)
            or self._rest(model, left, gpus)
        )

    def _on_a_part(
        self, model: int, left: Floats, size: int, gpus: list[Gpu], *, yielding: bool = False
    ) -> bool:
        """Place some on the best fitting empty part, or by a merge instead of it.

        Where neighbours yield, smaller parts than the ideal are taken too.
        """
        for number, at in self._empty(size, gpus, smaller=yielding):
            tried = gpus[number].copy()
            if (
                self.rule.cut
                and len(tried.parts) == 1
                and tried.parts[at].share == WHOLE_GPU > size
            ):
                tried.parts = [Part(size)]
                if WHOLE_GPU - size in self.shares:
                    tried.parts.append(Part(WHOLE_GPU - size))
                at = 0  # noqa: PLW2901 - the part just cut
            able = self._able(tried, at, model)
            if not able:
                continue
            take = min(float(left[model]), able)
            tried.parts[at].promised = {model: take}
            if not self._settled(tried, at, yielding=yielding):
                continue
            if not (take < able and self._merge(model, take, left, gpus)):
                self._apply(number, tried, left, gpus)
            return True
        return False

    def _empty(self, size: int, gpus: list[Gpu], *, smaller: bool) -> list[tuple[int, int]]:
        """GPU and number of every empty part, the best fit for a size first, then smaller ones."""
        found = sorted(
            (part.share < size, abs(part.share - size), number, at)
            for number, gpu in enumerate(gpus)
            for at, part in enumerate(gpu.parts)
            if part.row is None and (smaller or part.share >= size)
        )
        return [(number, at) for *_, number, at in found]

    def _rest(self, model: int, left: Floats, gpus: list[Gpu]) -> bool:
        """Place all that is left on parts in use, or the largest whole percent of it."""
        whole = float(left[model])
        if self._merged(model, whole / PERCENTS, gpus) is None:
            return False
        return any(
            self._merge(model, whole * percent / PERCENTS, left, gpus)
            for percent in range(PERCENTS, 0, -1)
        )

    def _merge(self, model: int, take: float, left: Floats, gpus: list[Gpu]) -> bool:
        """Add a rate to the fullest part in use that can carry it, in turns or by itself."""
        found = self._merged(model, take, gpus)
        if found is not None:
            self._apply(*found, left, gpus)
        return found is not None

    def _merged(self, model: int, take: float, gpus: list[Gpu]) -> tuple[int, Gpu] | None:
        """The GPU that `_merge` changes, and as it is then."""
        used = [
            (-self._fullness(part), number, at)
            for number, gpu in enumerate(gpus)
            for at, part in enumerate(gpu.parts)
            if part.row is not None
            and (model in part.promised or len(part.promised) < self.patterns.tables.most_models)
        ]
        for _, number, at in sorted(used):
            tried = gpus[number].copy()
            promised = tried.parts[at].promised
            promised[model] = promised.get(model, 0.0) + take
            if self._settled(tried, at):
                return number, tried
        return None

    def _apply(self, number: int, tried: Gpu, left: Floats, gpus: list[Gpu]) -> None:
        """Let a GPU promise what was tried; `left` changes by what it takes and gives up."""
        left += self._promised(gpus[number]) - self._promised(tried)
        gpus[number] = tried

    def _promised(self, gpu: Gpu) -> Floats:
        """[model] what the parts of a GPU promise (requests/s)."""
        found = np.zeros(len(self.alone))
        for part in gpu.parts:
            for model, rate in part.promised.items():
                found[model] += rate
        return found

    def _fullness(self, part: Part) -> float:
        """Share of its time that a part needs for what it promises."""
        options, row = self.patterns.options[part.share], part.row or 0
        busy_us = 0.0
        for at, model in enumerate(options.model[row].tolist()):
            if model >= 0:
                turn_us, batch = float(options.turn_us[row, at]), int(options.batch[row, at])
                busy_us += part.promised[model] * turn_us / batch
        return busy_us

    def _felt(self, gpu: Gpu, at: int) -> float | None:
        """The pressure on part `at`; None if it is alone on the GPU."""
        others = [p for i, p in enumerate(gpu.parts) if i != at and p.row is not None]
        if not others:
            return None
        return float(sum(self.patterns.options[p.share].pressure[p.row] for p in others))

    def _speeds(self, share: int, rows: Ints, felt: float | None) -> Floats:
        options = self.patterns.options[share]
        if felt is None:
            return options.speed(rows, options.turn_us[rows])
        inflation = self.patterns.table.inflation
        return options.speed(rows, options.turns_us(rows, np.full(len(rows), felt), inflation))

    def _able(self, gpu: Gpu, at: int, model: int) -> float:
        """The highest rate that a model alone on a part reaches beside its neighbours."""
        share = gpu.parts[at].share
        rows = self.rows.get((share, (model,)))
        if rows is None:
            return 0.0
        batches = self.patterns.options[share].batch[rows, 0]
        return float((batches * self._speeds(share, rows, self._felt(gpu, at))).max())

    def _carried(self, gpu: Gpu, at: int) -> tuple[Ints, Floats, Floats] | None:
        """Rows that a part may do; of each, rounds per second and the part of its promises."""
        part = gpu.parts[at]
        models = tuple(sorted(part.promised))
        rows = self.rows.get((part.share, models))
        if rows is None:
            return None
        speeds = self._speeds(part.share, rows, self._felt(gpu, at))
        batches = self.patterns.options[part.share].batch[rows, : len(models)]
        promised = np.array([part.promised[m] for m in models])
        return rows, speeds, (batches * speeds[:, None] / promised).min(axis=1)

    def _chosen(self, gpu: Gpu, at: int, *, yielding: bool) -> int | None:
        """The row of the shortest round that carries what a part promises beside its neighbours.

        A part that yields promises the largest fraction of it that a row carries, if none does.
        """
        carried = self._carried(gpu, at)
        if carried is None:
            return None
        rows, speeds, parts = carried
        fits = parts >= 1 - ROUNDING
        if fits.any():
            return int(rows[fits][np.argmax(speeds[fits])])
        best = int(np.argmax(parts))
        if not yielding or not parts[best]:
            return None
        promised = gpu.parts[at].promised
        gpu.parts[at].promised = {m: rate * float(parts[best]) for m, rate in promised.items()}
        return int(rows[best])

    def _settled(self, gpu: Gpu, at: int, *, yielding: bool = False) -> bool:
        """Choose batches of a part again, then its neighbours', then its own.

        Whether all promises hold; those of parts that yield become lower first.
        """
        others = [i for i, part in enumerate(gpu.parts) if i != at and part.row is not None]
        for number in (at, *others, at, *others):
            row = self._chosen(gpu, number, yielding=yielding)
            if row is None:
                return False
            gpu.parts[number].row = row
        carried = self.pattern(gpu).rates_rps
        return bool((carried >= self._promised(gpu) * (1 - 10 * ROUNDING)).all())

    def pattern(self, gpu: Gpu) -> Pattern:
        """The work of a GPU as a pattern."""
        used: Parts = tuple((p.share, p.row) for p in gpu.parts if p.row is not None)
        partition = tuple(share for share, _ in used)
        return self.patterns.pattern(partition, np.array([row for _, row in used]))


def plan(rule: Rule, inputs: Inputs) -> Outcome:
    """A plan by a rule: the rates asked for, or the highest multiple of the weights that it places.

    Raises:
        InputError: the cluster has several classes, or an option is not for this planner.
        InfeasibleError: a model misses its SLO everywhere, or the rule does not place the rates.
    """
    options = inputs.options
    used = [c for c in inputs.cluster.gpu_classes if inputs.cluster.gpus(c.name)]
    if len(used) != 1:
        raise InputError("option planner", f"{options.planner} is defined for one GPU class")
    if used[0].most_vgpus > 2 and options.planner != "sbp":  # noqa: PLR2004 - as the paper has it
        reason = f"{options.planner} cuts GPUs in two; max_vgpus_per_gpu is {used[0].most_vgpus}"
        raise InputError("option planner", reason)
    watch = Stopwatch()
    settled = {"max_models_per_vgpu": 1, "interference": "off"} if rule.fitting else {}
    inputs = inputs.asking(own={**options.own, **settled})
    master = Master(read_tables(inputs), inputs.watch)
    if rule.whole and WHOLE_GPU not in master.patterns[0].options:
        raise InputError(f"gpu_classes.{used[0].name}", "sbp needs whole GPUs, 100 % is not listed")
    greedy = Greedy(master.patterns[0], rule)
    demands = inputs.workload.models
    asked = np.array([d.normaliser(options.objective) for d in demands])
    count = master.tables.classes[greedy.patterns.number].gpus
    if options.objective == "throughput":
        score, gpus = highest(greedy, asked, count)
        promised = asked * score
        if not gpus:
            raise InfeasibleError("cluster", f"{options.planner} serves not all models at once")
    else:
        found = fewest(greedy, asked, count)
        if found is None:
            reason = f"{options.planner} does not place the rates on {count} GPUs; others may"
            raise InfeasibleError("cluster", reason)
        gpus, promised = found, asked
        score = -float(sum(any(p.row is not None for p in gpu.parts) for gpu in gpus))
        score *= float(master.tables.prices[greedy.patterns.number])
    counts: dict[tuple[int, Parts], tuple[Pattern, int]] = {}
    for gpu in gpus:
        if any(part.row is not None for part in gpu.parts):
            pattern = greedy.pattern(gpu)
            counts[pattern.key] = (pattern, counts.get(pattern.key, (pattern, 0))[1] + 1)
    trace = Trace(status="heuristic")
    trace.seconds["solve"] = watch.seconds()
    answer = Answer(chosen=list(counts.values()), score=score, bound=score, trace=trace)
    return replace(outcome_of(master, inputs, answer, promised), settled=settled)


def placed(greedy: Greedy, rates: Floats, count: int) -> list[Gpu] | None:
    """GPUs that carry the rates; None where the rule does not manage."""
    for gpus in _starts(greedy, count):
        if greedy.place(rates, gpus):
            return gpus
    return None


def highest(greedy: Greedy, weights: Floats, count: int) -> tuple[float, list[Gpu]]:
    """The highest multiple of weights known that the rule places, and its GPUs.

    A rule may fail at a multiple and place a higher one: some above the one found by halving are
    tried too.
    """

    def places(at: float) -> bool:
        return placed(greedy, weights * at, count) is not None

    most = float(count * (greedy.alone.max(axis=1) / weights).min()) * 2 * len(greedy.shares)
    level, _ = halved(places, 0.0, most, close=SOLVED)
    above = (level * STEP**k for k in range(STEPS, 0, -1))
    level = next((at for at in above if at > 0 and places(at)), level)
    return level, (placed(greedy, weights * level, count) if level > 0 else None) or []


def fewest(greedy: Greedy, rates: Floats, count: int) -> list[Gpu] | None:
    """The fewest GPUs on which the rule places the rates."""
    for used in range(1, count + 1):
        found = placed(greedy, rates, used)
        if found is not None:
            return found
    return None


def _starts(greedy: Greedy, count: int) -> Iterator[list[Gpu]]:
    """GPUs as they are before: uncut, or in every choice of cuts."""
    if greedy.rule.cut or greedy.rule.whole:
        yield [Gpu([Part(WHOLE_GPU)]) for _ in range(count)]
        return
    cuts = static_cuts(greedy.patterns.table.partitions)
    for chosen in combinations_with_replacement(cuts, count):
        yield [Gpu([Part(share) for share in cut]) for cut in chosen]


def static_cuts(partitions: Iterable[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Cuts that use a GPU up, the largest part first."""
    return [tuple(sorted(cut, reverse=True)) for cut in partitions if sum(cut) == WHOLE_GPU]


RULES: Mapping[str, Rule] = {
    "gpulets-greedy": Rule(),
    "sbp": Rule(whole=True),
    "best-fit": Rule(fitting=True),
    "ideal-static": Rule(cut=False),
}
