"""Headroom for Poisson arrivals: the least factor that holds, stated in the plan."""

import pytest

from tests.flows.planning.entries.entry_cases import case, planned
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.simulator.offered import POISSON
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions


def attained(plan: Plan) -> float:
    how = SimOptions(arrivals=POISSON, load_factor=0.9, duration_s=20, seed=0, keep_uses=False)
    return simulate(plan, how).least_attainment


def test_the_least_factor_that_holds_is_stated() -> None:
    problem = case(0, 16, rates=(40.0, 90.0), blocks=1, loose=3)
    own = {"phases": "even"}
    plan = planned(problem, own=own | {"headroom": "poisson99"})
    factor = float(plan.options["headroom"])
    assert attained(plan) >= 0.99
    assert factor > 1
    for step in range(20, round(factor * 20)):
        less = planned(problem, own=own | {"headroom": f"{step / 20:g}"})
        assert attained(less) < 0.99


def test_what_is_no_headroom_is_refused() -> None:
    problem = case(0, 3)
    for given in ("much", "0.5", "nan"):
        with pytest.raises(InputError, match="option headroom"):
            planned(problem, own={"headroom": given})
    with pytest.raises(InputError, match="needs rates"):
        planned(problem, objective="throughput", own={"headroom": "poisson99"})
