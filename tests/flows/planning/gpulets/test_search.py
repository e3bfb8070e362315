"""The search for patterns at prices, against all patterns."""

from itertools import product
from typing import Any

import numpy as np
import pytest

from flows.planning.engine.pricing import Duals
from flows.planning.gpulets import patterns as asking
from flows.planning.gpulets import search as kernels
from flows.planning.gpulets.master import Master, PatternPricer
from flows.planning.gpulets.parts import Options
from flows.planning.gpulets.patterns import Pattern, Patterns
from flows.planning.gpulets.search import Worths
from flows.planning.gpulets.tables import read_tables
from flows.planning.registry import Inputs, PlanOptions
from flows.planning.solver.arrays import Floats, Ints
from flows.planning.watch import Watch
from tests.flows.planning.gpulets.cases import MODEL, Held, case

CASES = (
    (5, 3, 2, 2),
    (6, 2, 3, 2),
    (7, 3, 3, 2),
    (8, 2, 2, 3),
)  # seed, models, batches, parts; case 5 has a share that one model may use


def every(patterns: Patterns) -> list[Pattern]:
    """Every pattern that carries something."""
    found = [
        patterns.pattern(cut, np.array(rows))
        for cut in patterns.table.partitions
        for rows in product(*(range(patterns.options[share].number) for share in cut))
    ]
    return [pattern for pattern in found if pattern.rates_rps.any()]


def worth_of(worth: Worths, rates: Floats) -> Floats:
    """[n] what rates [n, model] are worth."""
    carried = rates > 0
    full = carried & (rates >= worth.cap * (1 - 1e-9))
    value = worth.rate * np.minimum(rates, worth.cap) + worth.at_all * (carried + 1.0 * full) / 2
    return value.sum(axis=1)


@pytest.mark.parametrize("interference", [False, True])
@pytest.mark.parametrize(("seed", "models", "batches", "parts"), CASES)
def test_patterns_are_found_at_any_prices(
    seed: int, models: int, batches: int, parts: int, *, interference: bool
) -> None:
    asked = case(seed, models, 1, batches=batches, most_vgpus=parts)
    inputs = Inputs(
        profiles=asked.profiles,
        cluster=asked.cluster,
        workload=asked.workload,
        options=PlanOptions(planner="gpulets", own={"max_models_per_vgpu": 2}),
        interference={"G": MODEL} if interference else {},
    )
    patterns = Patterns(read_tables(inputs), 0)
    known = every(patterns)
    rates, keys = np.array([p.rates_rps for p in known]), [p.key for p in known]
    random = np.random.default_rng(seed)
    for number in range(60):
        capped = number % 3 > 0
        caps = random.uniform(50, 400, models) if capped else np.full(models, np.inf)
        price = random.uniform(0, 0.005, models) * (random.uniform(size=models) < 0.8)
        at_all = random.uniform(0, 1, models) * (random.uniform(size=models) < 0.5) * capped
        worth = Worths.of(price, at_all, caps)
        values = worth_of(worth, rates)
        found, whole = patterns.best(worth, Watch())
        best = max((value for value, _ in found), default=0.0)
        assert whole
        assert best == pytest.approx(values.max(), abs=1e-12)
        least = float(np.quantile(values, 0.9)) * (1 + 1e-6)  # many are worth just the same
        over, left_out = patterns.above(worth, least, 100_000, Watch())
        assert left_out == least
        dear = np.minimum(rates[values > least], caps)
        kept = np.minimum(np.array([p.rates_rps for p in over]).reshape(-1, models), caps)
        assert {p.key for p in over} <= {keys[i] for i in np.flatnonzero(values > least).tolist()}
        for row in dear:
            assert (kept >= row - 1e-9).all(axis=1).any()
        for i, row in enumerate(kept):
            assert not (np.delete(kept, i, axis=0) >= row).all(axis=1).any()


def inputs_of(seed: int, models: int, batches: int, parts: int) -> Inputs:
    asked = case(seed, models, 1, batches=batches, most_vgpus=parts)
    return Inputs(
        profiles=asked.profiles,
        cluster=asked.cluster,
        workload=asked.workload,
        options=PlanOptions(planner="gpulets", own={"max_models_per_vgpu": 2}),
        interference={"G": MODEL},
    )


def searched_by_moves(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The search as plain Python, which returns after each three moves; what calls returned."""
    returned: list[int] = []

    def plain(*arguments: Any) -> int:
        found: int = getattr(kernels.search, "py_func", kernels.search)(*arguments)
        returned.append(found)
        return found

    monkeypatch.setattr(kernels, "MOVES", 3)
    monkeypatch.setattr(asking, "search", plain)
    return returned


def test_a_search_that_is_called_again_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    models = 3
    own = Patterns(read_tables(inputs_of(5, models, 2, 2)), 0)
    random = np.random.default_rng(1)
    prices = [
        Worths.of(random.uniform(0, 0.005, models), np.zeros(models), np.full(models, 200.0))
        for _ in range(5)
    ]
    at_once = [(own.best(w, Watch()), own.above(w, 0.1, 10_000, Watch())) for w in prices]
    calls = searched_by_moves(monkeypatch)
    for worth, (best, above) in zip(prices, at_once, strict=True):
        (found, whole), (near, least) = (
            own.best(worth, Watch()),
            own.above(worth, 0.1, 10**4, Watch()),
        )
        assert whole
        assert [(v, p.key) for v, p in found] == [(v, p.key) for v, p in best[0]]
        assert ([p.key for p in near], least) == ([p.key for p in above[0]], above[1])
    assert len(calls) > 50 * len(prices)


def test_the_time_bounds_how_closely_options_are_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A search over options that fewer levels of pressure tell apart finds the same patterns."""
    tables, clock = read_tables(inputs_of(6, 3, 2, 3)), Held()
    worth = Worths.of(np.full(3, 0.004), np.zeros(3), np.full(3, 200.0))
    (value, best), *_ = Patterns(tables, 0).best(worth, Watch())[0]
    turns_us = Options.turns_us

    def slow(own: Options, rows: Ints, felt: Floats | float, inflation: float) -> Floats:
        clock.now_s += len(rows) == own.number  # a level of all options
        return turns_us(own, rows, felt, inflation)

    monkeypatch.setattr(Options, "turns_us", slow)
    short = Patterns(tables, 0, Watch(limit_s=3.0, _clock=clock))
    found, whole = short.best(worth, Watch())
    assert clock.now_s == 3.0
    assert whole
    assert [(v, p.key) for v, p in found][:1] == [(value, best.key)]


def test_prices_prove_nothing_where_the_time_ends_a_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searched_by_moves(monkeypatch)
    inputs = inputs_of(5, 3, 2, 2)
    master, count, over = Master(read_tables(inputs)), 3, Watch()
    over.stop()
    (own,) = master.patterns
    duals = Duals(demand=np.full(count, 1e-3), resource=np.zeros(1))
    pricer = PatternPricer(
        patterns=master.patterns,
        most=np.ones(1),
        cheapest=np.ones(1),
        unit=np.ones(count),
        watch=over,
    )
    worth = pricer.worth(duals, np.full(count, np.inf))
    found, whole = own.best(worth, over)
    assert not whole
    best, _ = own.best(worth, Watch())
    assert max((value for value, _ in found), default=0.0) <= max(value for value, _ in best)
    priced = pricer.price(duals, np.full(count, np.inf))
    assert (priced.least.tolist(), priced.feasible) == ([-np.inf], None)
