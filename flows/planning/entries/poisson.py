"""Headroom of entries for Poisson arrivals: the least factor that holds in the simulator."""

from collections.abc import Callable
from dataclasses import replace

from flows.planning.registry import PlanOptions
from triton_backend.contract.errors import InfeasibleError, InputError
from triton_backend.contract.plan import Plan
from triton_backend.simulator.offered import POISSON as ARRIVALS
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions

POISSON, NO_HEADROOM = "poisson99", "none"
ATTAINED, LOAD = 0.99, 0.9
_GRID, _MOST = 20, 4  # factors are multiples of 1 / 20
_SECONDS = 20.0


def factor_of(given: str) -> float:
    """Times the listed rates that pools carry.

    Raises:
        InputError: the text is no factor of 1 or more.
    """
    where = "option headroom"
    if given in (NO_HEADROOM, POISSON):
        return 1.0
    try:
        factor = float(given)
    except ValueError as error:
        reason = f"{given!r} is neither {NO_HEADROOM}, {POISSON} nor a factor"
        raise InputError(where, reason) from error
    if not 1 <= factor < float("inf"):
        raise InputError(where, f"{given} is below 1 or no number")
    return factor


def plan_for_poisson(made: Callable[[PlanOptions], Plan], options: PlanOptions) -> Plan:
    """The plan of the least factor that attains; its options state the factor.

    It attains if every model answers 99 % in time of Poisson arrivals at 0.9 of its rates.

    Raises:
        InputError: there are no rates under this objective.
        InfeasibleError: no factor up to 4 attains, or the cluster is too small for one that does.
    """
    if options.objective == "throughput":
        reason = f"{POISSON} needs rates; throughput plans weights"
        raise InputError("option headroom", reason)
    for step in range(_GRID, _MOST * _GRID + 1):
        factor = f"{step / _GRID:g}"
        plan = made(replace(options, own={**options.own, "headroom": factor}))
        how = SimOptions(
            arrivals=ARRIVALS, load_factor=LOAD, duration_s=_SECONDS, seed=0, keep_uses=False
        )
        if simulate(plan, how).least_attainment >= ATTAINED:
            return plan
    reason = f"no factor up to {_MOST} holds {ATTAINED:.0%} of Poisson arrivals at {LOAD:g}"
    raise InfeasibleError("option headroom", reason)
