"""Sets of machines.

The paper's worked examples, and the cheapest one against every set there is.
"""

from itertools import product
from math import inf, isclose

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flows.planning.applications.machines import (
    Machine,
    begun,
    cheapest,
    even,
    padded,
    ranked,
)
from tests.flows.planning.applications.paper import TABLES

M1, SLO_US = TABLES["M1"], 2e6


def test_the_papers_example_costs_less_step_by_step() -> None:
    existing, left = begun(M1, 285, SLO_US, "2d", 2)
    assert left == 0
    several, left = begun(M1, 285, SLO_US)
    assert left == pytest.approx(0, abs=1e-9)
    assert existing.cost == pytest.approx(3.7)
    assert several.cost == pytest.approx(3.1)
    assert [(g.machine.batch, round(g.machines, 9)) for g in several.groups] == [
        (100, 2),
        (20, 1),
        (5, 0.1),
    ]
    full = padded(M1, several, 285, SLO_US)
    assert full.cost == pytest.approx(3.0)
    assert full.dummy_rps == pytest.approx(15)


def test_a_third_machine_of_the_largest_batch_would_be_late() -> None:
    assert M1[0].latency_us("tc", 85, 85) == pytest.approx(2.17647e6, rel=1e-5)


def test_theorem_1_read_literally_is_cheaper_than_the_paper() -> None:
    shared = even(M1, 285, SLO_US, dummies=True)
    assert shared is not None
    assert shared.cost == pytest.approx(2.85)
    assert shared.latency_us == pytest.approx(1.350877e6, rel=1e-6)
    whole = cheapest(M1, 285, SLO_US, dummies=True, whole=True)
    assert whole is not None
    assert whole.cost == 3


def test_latencies_of_figure_3() -> None:
    a = Machine(batch=6, duration_us=2e6, rate_rps=3, price=1)
    c = Machine(batch=2, duration_us=1e6, rate_rps=2, price=1)
    assert a.latency_us("tc", 8, 3) == pytest.approx(2.75e6)
    assert c.latency_us("tc", 2, 2) == pytest.approx(2e6)
    assert a.latency_us("2d", 8, 3) == pytest.approx(4e6)
    assert a.latency_us("dt", 8, 3) == pytest.approx(4e6)


def test_rates_too_small_for_any_batch_need_dummies() -> None:
    assert begun(M1, 0.1, SLO_US)[1] == 0.1
    assert cheapest(M1, 0.1, SLO_US, dummies=False) is None
    padding = cheapest(M1, 0.1, SLO_US, dummies=True)
    assert padding is not None
    assert padding.dummy_rps > 0
    assert even(M1, 0.1, SLO_US, dummies=False) is None


Row = tuple[int, float, float, float]
"""Batch, seconds, rows/s, price."""


def _in_time(table: list[Row], counts: tuple[int, ...], served: float, budget: float) -> bool:
    """True if full machines gather in time where `served` rows/s come in all."""
    left = served
    for n, (b, d, t, _) in zip(counts, table, strict=True):
        if n and d + b / left > budget * (1 + 1e-7):
            return False
        left -= n * t
    return True


def _padding(table: list[Row], counts: tuple[int, ...], rate: float, budget: float) -> float:
    """Rows/s beside clients' that full machines need to gather in time."""
    needed, left = 0.0, rate
    for n, (b, d, t, _) in zip(counts, table, strict=True):
        if n:
            needed = max(needed, inf if d >= budget else b / (budget - d) - left)
        left -= n * t
    return needed


def _least_cost(
    table: list[Row], rate: float, budget: float, *, dummies: bool, whole: bool
) -> float:
    """Every count of full machines of every rank, then nothing or one partial machine."""
    best = inf
    most = [int(max(rate, 0 if d >= budget else b / (budget - d)) / t) + 2 for b, d, t, _ in table]
    for counts in product(*(range(m + 1) for m in most)):
        full = sum(n * t for n, (_, _, t, _) in zip(counts, table, strict=True))
        price = sum(n * p for n, (_, _, _, p) in zip(counts, table, strict=True))
        enough = isclose(full, rate, rel_tol=1e-9) or ((dummies or whole) and full >= rate)
        if enough and _in_time(table, counts, full, budget):
            best = min(best, price)
        if whole or (full >= rate * (1 - 1e-12) and not dummies):
            continue
        first = max((k for k, n in enumerate(counts) if n), default=0)
        for b, d, t, p in table[first:]:
            own = rate - full
            if dummies and d < budget:
                own += max(0.0, _padding(table, counts, rate, budget))
                own = max(own, b / (budget - d))
            fits = 0 < own <= t * (1 + 1e-9) and d + b / max(own, 1e-12) <= budget * (1 + 1e-7)
            if fits and _in_time(table, counts, full + own, budget):
                best = min(best, price + p * own / t)
    return best


ROWS = st.tuples(
    st.sampled_from([1, 2, 4, 8]), st.integers(1, 12), st.sampled_from([1.0, 1.5, 4.0])
)


def test_a_second_machine_may_run_dummies_alone() -> None:
    large = Machine(batch=8, duration_us=1.2e6, rate_rps=8 / 1.2, price=1.5)
    small = Machine(batch=1, duration_us=6e5, rate_rps=1 / 0.6, price=1.0)
    found = cheapest(ranked([small, large]), 4, 2.2e6, dummies=False, whole=True)
    assert found is not None
    assert [(g.machine, g.machines) for g in found.groups] == [(large, 1), (small, 1)]
    assert found.dummy_rps == pytest.approx(8 / 1.2 + 1 / 0.6 - 4)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(ROWS, min_size=1, max_size=3, unique=True),
    st.integers(1, 40),
    st.integers(2, 40),
    st.booleans(),
    st.booleans(),
)
def test_the_cheapest_set_is_the_cheapest_of_all(
    rows: list[tuple[int, int, float]], rate: int, budget: int, dummies: bool, whole: bool
) -> None:
    machines = ranked(
        [Machine(batch=b, duration_us=d * 1e5, rate_rps=b / (d / 10), price=p) for b, d, p in rows]
    )
    table = [(m.batch, m.duration_us / 1e6, m.rate_rps, m.price) for m in machines]
    expected = _least_cost(table, rate, budget / 10, dummies=dummies, whole=whole)
    found = cheapest(machines, rate, budget * 1e5, dummies=dummies, whole=whole)
    assert (inf if found is None else found.cost) == pytest.approx(expected, rel=1e-6)
    if found is not None:
        assert found.latency_us <= budget * 1e5 * (1 + 1e-6)
        served = sum(group.rate_rps for group in found.groups)
        assert served == pytest.approx(rate + found.dummy_rps)
