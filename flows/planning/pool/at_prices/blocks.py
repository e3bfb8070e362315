"""Models as blocks: what serving a rate costs at prices of GPUs, each model by itself.

An allocation is a set of configurations with vGPUs; its vector counts whole GPUs per class. Cheap
allocations are made of *items*: one configuration with whole numbers of vGPUs on GPUs of its own.
What a model costs at least is

    floor     the rate, at what the relaxation pays for it
    step 0    the integer program of the model alone, GPUs per class and divisor whole, vGPUs not
    step 1    the same with whole vGPUs, which is exact

over the configurations that the screen leaves open below the cost known.
"""

from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import gcd, lcm
from typing import NamedTuple

import numpy as np

from flows.planning.inputs import Problem
from flows.planning.pool.at_prices.covering import cheapest
from flows.planning.pool.bound import MULTIPLES, Bound, Goal, least_loss
from flows.planning.pool.columns import Allocation, Columns, best_of_each
from flows.planning.pool.integer import counts_of, delivered_rps, gpus_in_use, integer_program
from flows.planning.solver.arrays import FAR, Floats, Ints
from flows.planning.solver.program import Program, ProgramBuilder
from flows.planning.solver.solve import (
    FEW_NODES,
    PROOF_GAP,
    SEARCH_NODES,
    Limits,
    Solution,
    solve_integer,
)
from flows.planning.solver.tolerances import EXACT, ROUNDING, SOLVED
from flows.planning.watch import Watch
from triton_backend.scheduler.compiled import entry, kernel

_MOST_GPUS = 16  # of an item
_NEAR = 1.6  # times the cost of the cheapest item of a rate: dearer ones are left out
_GRID, _PER_DOUBLING = 96, 6  # rates of items on a logarithmic grid
_ROOM = 1 << 18  # items of a first attempt
_AHEAD = 1.1  # times the rates asked for: what items may reach
_PARTS = 1000  # largest denominator of prices that are counted as multiples of one
_MOST_STEPS = 100_000  # of a cost; above, prices count as any numbers
_WHOLE = 1e-4  # a cost this close to a multiple is that multiple


Least = tuple[float, int, Allocation | None]
"""The proven least cost of a model, the solver's iterations, and an allocation that is cheaper than
the known one, if found."""


@dataclass(slots=True)
class ModelBlocks:
    """Every model of a problem, over its configurations, sorted by model.

    Attributes:
        steps: how many programs `least` has, each closer than the one before, the last one exact.
    """

    problem: Problem
    columns: Columns
    watch: Watch
    steps: int = 2
    _start: Ints = field(init=False)
    _items: "_Items" = field(init=False)
    _items_start: Ints = field(init=False)

    def __post_init__(self) -> None:
        models = np.arange(len(self.problem.models) + 1)
        self._start = np.searchsorted(self.columns.model, models)

    def focus(self, price: Floats, most: Floats) -> None:
        """Make the items near the cheapest ones at some prices, up to some rates."""
        columns, problem = self.columns, self.problem
        models, classes = len(problem.models), len(problem.gpus)
        forms = _Forms(columns.model, columns.types, columns.rate_rps, columns.stages)
        room = np.zeros(len(problem.types), np.int64), np.zeros(classes, np.int64)
        kinds = _Kinds(problem.type_class, problem.type_divisor, problem.gpus, price, *room)
        most, front = most * _AHEAD, np.full((models, _GRID), FAR)
        stages = columns.types.shape[1]
        _make_items(forms, kinds, most, front, _items_of(0, classes, stages))
        front = np.minimum.accumulate(front[:, ::-1], axis=1)[:, ::-1] * _NEAR
        front = np.ascontiguousarray(front)
        out = _items_of(_ROOM, classes, stages)
        count = _make_items(forms, kinds, most, front, out)
        if count > len(out.row):
            out = _items_of(count, classes, stages)
            _make_items(forms, kinds, most, front, out)
        model, rate = columns.model[out.row[:count]], out.rate[:count]
        kept = best_of_each([model, *out.vector[:count].T], -rate)
        kept = kept[np.lexsort((-rate[kept], model[kept]))]
        self._items = _Items(out.row[kept], out.vector[kept], rate[kept], out.vgpus[kept])
        self._items_start = np.searchsorted(model[kept], np.arange(models + 1))

    def propose(self, price: Floats, rate: Floats) -> list[Ints]:
        """By model cheap items that deliver rates [models] at prices [C]; none out of reach."""
        items = self._items
        return cheapest(self._items_start, items.vector @ price, items.rate, rate)

    def allocation(self, parts: Ints) -> Allocation:
        """Items as configurations and vGPUs."""
        return self._items.row[parts], self._items.vgpus[parts]

    def total(self, parts: Ints) -> tuple[Ints, float]:
        """The GPUs [C] of items, each on GPUs of its own, and the rate that they serve."""
        return self._items.vector[parts].sum(axis=0), float(self._items.rate[parts].sum())

    def served(self, allocation: Allocation) -> tuple[Ints, float]:
        """The GPUs [C] that an allocation takes, and the rate that it serves."""
        rows, vgpus = allocation
        columns = self.columns.take(rows)
        return gpus_in_use(self.problem, columns, vgpus), float(delivered_rps(columns, vgpus).sum())

    def floor(self, price: Floats, rate: Floats) -> Floats:
        """[models] what the relaxation pays for rates."""
        paid = self.columns.usage @ price
        return np.minimum.reduceat(paid, self._start[:-1]) * rate

    def least(self, block: int, price: Floats, rate: float, cutoff: float, step: int) -> Least:
        """The least cost of a model, or `cutoff` if nothing is cheaper."""
        own = np.arange(self._start[block], self._start[block + 1])
        columns = self.columns.take(own)
        columns = replace(columns, model=np.zeros_like(columns.model))
        worth = float((columns.usage @ price).min())
        relaxed = Bound(score=-worth * rate, gpu_price=price, rate_price=np.array([worth]))
        loss = least_loss(self.problem, columns, relaxed)
        open_rows = np.flatnonzero(loss < cutoff - worth * rate)
        if not len(open_rows):
            return cutoff, 1, None
        columns = columns.take(open_rows)
        if step + 1 < self.steps:
            return self._least_gpus(columns, price, rate, cutoff)
        return self._exact(block, columns, own[open_rows], price, rate, cutoff)

    def _least_gpus(self, columns: Columns, price: Floats, rate: float, cutoff: float) -> Least:
        """Whole GPUs per vGPU type, and rates x_c that take parts of them.

        Cost in units of `_scale`.

            minimise     Σ_t price · n_t
            subject to   Σ_c x_c ≥ rate,   Σ_c x_c Σ_{s of type t} 1 / rate_cs ≤ v_t n_t
        """
        problem, count = self.problem, len(columns)
        kinds = len(problem.types)
        scale = _scale(price, cutoff)
        each = price[problem.type_class] / scale.unit
        build = ProgramBuilder()
        gpus = build.variables(
            "n",
            kinds,
            upper=np.minimum(problem.gpus[problem.type_class], _room(cutoff, price, problem)),
            cost=-each,
            whole=True,
        )
        rates = build.variables("x", count, upper=1.0)
        build.entries(build.rows("share", 1, upper=-1.0), rates, -1.0)
        fit = build.rows("fit", kinds, upper=0.0)
        build.entries(fit, rates[:, None], rate * columns.usage_of_types(kinds))
        build.entries(fit, gpus, -problem.type_divisor)
        answer = self._solved(build.build(), scale, FEW_NODES)
        return scale.least(answer.bound, cutoff), 1 + answer.iterations, None

    def _exact(
        self, block: int, columns: Columns, rows: Ints, price: Floats, rate: float, cutoff: float
    ) -> Least:
        """The integer program of a model alone, its cost in units of `_scale`."""
        scale = _scale(price, cutoff)
        problem = replace(self.problem, models=(self.problem.models[block],))
        room = np.full(len(problem.gpus), problem.gpus.max())
        np.minimum.at(room, problem.type_class, _room(cutoff, price, problem))
        problem = replace(problem, gpus=np.minimum(problem.gpus, room))
        goal = Goal(
            weight=np.array([rate]), minimum_rps=np.zeros(1), price=price / scale.unit, fixed=True
        )
        program, layout = integer_program(problem, columns, goal, -np.inf)
        answer = self._solved(program, scale, SEARCH_NODES)
        cost = scale.least(answer.bound, cutoff)
        if answer.values is None:
            return cost, 1 + answer.iterations, None
        vgpus = counts_of(layout, columns, answer.values)
        used = np.flatnonzero(vgpus.any(axis=1))
        return cost, 1 + answer.iterations, (rows[used], vgpus[used])

    def _solved(self, program: Program, scale: "_Scale", nodes: int) -> Solution:
        """A program of one model, for solutions that cost little enough to be of interest."""
        seconds, most = self.watch.left_s(), -scale.most
        limits = Limits(relative_gap=PROOF_GAP, nodes=nodes, seconds=seconds, cutoff=most)
        return solve_integer(program, limits)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scale:
    """The unit of costs, and the largest cost of interest.

    Attributes:
        unit: of cost.
        step: what costs are multiples of, in units; 0 where nothing is known of that.
        most: what solutions cost at most to be of interest, in units.
    """

    unit: float
    step: float
    most: float

    def least(self, bound: float, cutoff: float) -> float:
        """The least cost of anything, from the bound on its negative."""
        if bound < -self.most:
            return cutoff
        least = -bound if not self.step else np.ceil(-bound - _WHOLE)
        return min(cutoff, float(least) * self.unit)


def _scale(price: Floats, cutoff: float) -> _Scale:
    """The least step below the cutoff, where all prices are multiples of one number."""
    step = step_of(price)
    if not step or cutoff > step * _MOST_STEPS:
        return _Scale(unit=cutoff, step=0.0, most=1.0)
    return _Scale(unit=step, step=1.0, most=cutoff / step - 1 + _WHOLE)


def step_of(price: Floats) -> float:
    """The largest number that all prices are multiples of; 0 where there is none worth the name."""
    parts = [Fraction(float(p)).limit_denominator(_PARTS) for p in price]
    below = lcm(*(part.denominator for part in parts))
    step = gcd(*(int(part * below) for part in parts)) / below
    exact = step > 0 and bool(np.all(np.abs(price / step - np.round(price / step)) < ROUNDING))
    return step if exact else 0.0


def _room(cutoff: float, price: Floats, problem: Problem) -> Ints:
    """[types] GPUs that a cost below the cutoff can pay for; all there are, where they are free."""
    each = np.maximum(price[problem.type_class], cutoff / (1 + problem.gpus.max()))
    return np.floor(cutoff / each * (1 + 1e-9)).astype(np.int64)


class _Forms(NamedTuple):
    """Configurations: model [n], vGPU types [n, S], rates [n, S] and stages [n] as in `Columns`."""

    model: Ints
    types: Ints
    rate_rps: Floats
    stages: Ints


class _Kinds(NamedTuple):
    """vGPU types, and room to count in.

    Class [types] and divisor [types]; GPUs [C] that exist and their prices [C]; vGPUs per type
    [types], zeros; GPUs per class [C].
    """

    type_class: Ints
    type_divisor: Ints
    gpus: Ints
    price: Floats
    slots: Ints
    vector: Ints


class _Items(NamedTuple):
    """Items: configuration [n], GPUs [n, C], rate [n], vGPUs [n, S]."""

    row: Ints
    vector: Ints
    rate: Floats
    vgpus: Ints


def _items_of(room: int, classes: int, stages: int) -> _Items:
    return _Items(
        np.empty(room, np.int64),
        np.empty((room, classes), np.int64),
        np.empty(room),
        np.zeros((room, stages), np.int64),
    )


@entry
def _make_items(forms: _Forms, kinds: _Kinds, most: Floats, front: Floats, out: _Items) -> int:
    """Every configuration with whole vGPUs for every multiple of a stage's rate.

    Without room in `out`, `front` is lowered to the cheapest item of every rate; else items that
    are not dearer than `front` are written, as far as there is room. Returns how many there are in
    all.

    Args:
        forms: configurations.
        kinds: vGPU types and GPUs, and room to count in.
        most: [models] rates that need not be exceeded.
        front: [models, grid] cost by rate: the last place is the rate `most`, places before it are
            lower by a factor of 2^(1/6) each.
        out: what is written.
    """
    room, grid, count = len(out.row), front.shape[1], 0
    for c in range(len(forms.model)):
        m, wide = forms.model[c], forms.stages[c]
        lowest = _lowest(forms.rate_rps[c])
        for s in range(wide):
            for multiple in range(1, MULTIPLES + 1):
                x = forms.rate_rps[c, s] * multiple
                if x < lowest * (1 - EXACT):
                    continue
                rate = _rate_of(c, x, forms, kinds.slots)
                cost = _cost_of(c, forms, kinds)
                if cost >= FAR:
                    break
                below = np.floor(np.log2(min(rate / most[m], 1.0)) * _PER_DOUBLING)
                place = max(0, grid - 1 + int(below))
                if room == 0:
                    front[m, place] = min(front[m, place], cost)
                elif cost <= front[m, place]:
                    if count < room:
                        out.row[count], out.rate[count] = c, rate
                        _write(count, x, forms, kinds.vector, out)
                    count += 1
                if x >= most[m]:
                    break
    return count


@kernel
def _lowest(rates: Floats) -> float:
    """The lowest rate of a configuration's stages [S]; those that it lacks are infinite."""
    lowest = rates[0]
    for rate in rates:
        lowest = min(lowest, rate)
    return lowest


@kernel
def _write(at: int, x: float, forms: _Forms, vector: Ints, out: _Items) -> None:
    """The GPUs and vGPUs of an item that delivers x."""
    for k in range(len(vector)):
        out.vector[at, k] = vector[k]
    c = out.row[at]
    for q in range(forms.stages[c]):
        out.vgpus[at, q] = _vgpus(x, forms.rate_rps[c, q])


@kernel
def _vgpus(x: float, rate: float) -> int:
    """The fewest vGPUs of a stage that deliver x."""
    return int(np.ceil(x / rate * (1 - EXACT)))


@kernel
def _rate_of(c: int, x: float, forms: _Forms, slots: Ints) -> float:
    """Add the vGPUs that x takes to their types; what they deliver."""
    rate = FAR
    for q in range(forms.stages[c]):
        vgpus = _vgpus(x, forms.rate_rps[c, q])
        slots[forms.types[c, q]] += vgpus
        rate = min(rate, float(vgpus * forms.rate_rps[c, q]))
    return rate


@kernel
def _cost_of(c: int, forms: _Forms, kinds: _Kinds) -> float:
    """Turn vGPUs per type into GPUs per class, and zero the types; far where that is too many."""
    for k in range(len(kinds.gpus)):
        kinds.vector[k] = 0
    cost, total = 0.0, 0
    for q in range(forms.stages[c]):
        t = forms.types[c, q]
        whole = -(-kinds.slots[t] // kinds.type_divisor[t])
        kinds.slots[t] = 0
        kinds.vector[kinds.type_class[t]] += whole
        cost += float(whole * kinds.price[kinds.type_class[t]])
        total += whole
    for k in range(len(kinds.gpus)):
        if kinds.vector[k] > kinds.gpus[k]:
            return FAR
    return cost if total <= _MOST_GPUS else FAR


# Few GPUs: which models find a place at all


def placeable(problem: Problem, columns: Columns) -> tuple[Ints, list[int], bool]:
    """A plan [n, S] of one configuration for as many models as possible, and those left out.

    And whether it is proven that no more can be.

    A model that serves anything runs some configuration with a vGPU per stage. So no plan serves
    more models than these, found by a program of one variable per model and vector of whole GPUs:

        maximise Σ_j placed_j   subject to   Σ_{j of m} placed_j ≤ 1,   Σ_j a_jk placed_j ≤ N_k
    """
    count, classes = len(columns), len(problem.gpus)
    once = np.isfinite(columns.rate_rps).astype(np.int64)
    slots = np.zeros((count, len(problem.types)), dtype=np.int64)
    row, s = np.nonzero(once)
    np.add.at(slots, (row, columns.types[row, s]), 1)
    gpus = np.zeros((count, classes), dtype=np.int64)
    np.add.at(gpus.T, problem.type_class, -(-slots // problem.type_divisor).T)
    rows = best_of_each([columns.model, *gpus.T], -columns.rate_rps.min(axis=1))
    build = ProgramBuilder()
    placed = build.variables("placed", len(rows), upper=1.0, cost=1.0, whole=True)
    one = build.rows("one", len(problem.models), upper=1.0)
    build.entries(one[columns.model[rows]], placed, 1.0)
    capacity = build.rows("capacity", classes, upper=problem.gpus)
    build.entries(capacity, placed[:, None], gpus[rows])
    answer = solve_integer(build.build(), Limits(relative_gap=0.0, nodes=SEARCH_NODES))
    vgpus = np.zeros(columns.types.shape, dtype=np.int64)
    if answer.values is not None:
        taken = rows[answer.values > 1 / 2]
        vgpus[taken] = once[taken]
    served = set(columns.model[vgpus.any(axis=1)].tolist())
    out = [number for number in range(len(problem.models)) if number not in served]
    return vgpus, out, answer.bound < len(served) + 1 - SOLVED
