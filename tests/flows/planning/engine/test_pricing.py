"""Prices, and the promises of the toy pricer that the engine's tests rest on."""

from itertools import product

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from flows.planning.engine.pricing import Duals
from tests.flows.planning.engine.problems import NOISE, some, some_duals


def test_between_and_scaled_prices() -> None:
    low = Duals(demand=np.array([0.0, 2.0]), resource=np.array([4.0]))
    high = Duals(demand=np.array([4.0, 2.0]), resource=np.array([0.0]))
    quarter = low.between(high, 0.25)
    assert quarter.rows.tolist() == [1.0, 2.0, -3.0]
    assert low.scaled(0.5).rows.tolist() == [0.0, 1.0, -2.0]
    assert Duals.zero(2, 1).rows.tolist() == [0.0, 0.0, 0.0]


def test_the_toy_pricer_knows_every_column() -> None:
    pricer = some(0).pricer
    weight, room = pricer.weight[0].tolist(), int(pricer.room[0])
    copies = range(pricer.copies + 1)
    fit = {
        held
        for held in product(copies, repeat=len(weight))
        if sum(k * w for k, w in zip(held, weight, strict=True)) <= room
    }
    assert {held for _, held in pricer.all().source} == fit


@settings(deadline=None)
@given(st.integers(0, 39), st.integers(0, 10**6))
def test_the_toy_pricer_keeps_what_a_pricer_promises(number: int, seed: int) -> None:
    problem = some(number)
    cover, pricer, duals = problem.cover, problem.pricer, some_duals(problem, seed)
    every = pricer.all()
    reduced = duals.reduced(every.capped(cover.caps))
    priced = pricer.price(duals, cover.cap)
    slack = priced.least + 0.5
    within = pricer.within(duals, cover.cap, slack, 40)
    found = set(within.columns.source)
    floor = pricer.floor(duals)
    for g in range(len(pricer.room)):
        own = every.group == g
        assert abs(reduced[own].min() - priced.least[g]) <= NOISE
        assert floor[g] <= duals.reduced(every)[own].min() + NOISE
        left = [r for n, r in enumerate(reduced) if own[n] and every.source[n] not in found]
        assert min(left, default=np.inf) >= within.least[g] - NOISE
