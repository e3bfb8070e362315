"""Simulate a plan: options in, a result out, and the search for goodput."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from triton_backend.core.compiled import FAR, Integers
from triton_backend.core.errors import InputError
from triton_backend.core.plan import Plan
from triton_backend.core.policies import policy_number
from triton_backend.core.tables import new_tables, with_room
from triton_backend.core.topology import build_topology
from triton_backend.core.units import s_to_us
from triton_backend.sim.arrivals import POISSON, Arrivals, Offer, offered_requests
from triton_backend.sim.cluster import NOISE_ONE
from triton_backend.sim.loop import FULL, run
from triton_backend.sim.results import (
    DecisionCost,
    Goodput,
    SimResult,
    model_results,
    utilisation,
)
from triton_backend.sim.world import World, fit, new_world

GRID = tuple(step / 20 for step in range(20, 0, -1))  # 1.00, 0.95 .. 0.05
FACTORS = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class SimOptions:
    """What to simulate.

    Attributes:
        policy: name of the dispatch policy.
        arrivals: the process, or a trace.
        load_factor: share of the reference plan's throughput that is offered.
        rate_rps: requests/s over all models instead, shared as the reference plan's throughput.
        reference: whose throughput that is; None = the plan simulated.
        models: names of the models that get load; None = all.
        nic: "shared" or "isolated".
        latency_noise_cv: coefficient of variation of a stage's run time around the table.
        keep_uses: record every use of a vGPU.
    """

    policy: str = "reservation"
    arrivals: Arrivals = POISSON
    load_factor: float = 1.0
    rate_rps: float | None = None
    reference: Plan | None = None
    models: tuple[str, ...] | None = None
    nic: str = "shared"
    count_io: bool = False
    duration_s: float = 30.0
    seed: int = 0
    latency_noise_cv: float = 0.0
    keep_uses: bool = True


def simulate(
    plan: Plan, options: SimOptions | None = None, *, clock_ns: Callable[[], int] | None = None
) -> SimResult:
    """Run a plan against offered load.

    Args:
        plan: what serves.
        options: what is offered and how.
        clock_ns: a monotonic clock in nanoseconds, where `wall_seconds` is wanted.

    Raises:
        InputError: an option does not fit the plan.
    """
    options = options or SimOptions()
    world = _prepare(plan, options)
    world.cursor[0]["stop_us"] = 0
    run(world)
    world.cursor[0]["stop_us"] = FAR
    start_ns = clock_ns() if clock_ns else 0
    world = run_on(world)
    wall_seconds = (clock_ns() - start_ns) / 1e9 if clock_ns else None
    return _result(plan, options, world, wall_seconds)


def run_on(world: World) -> World:
    """Run until the end or `stop_us`, making room where needed; returns the world that goes on."""
    while run(world) == FULL:
        tables = world.tables
        counts = tables.counts[0]
        batches, requests = len(tables.batches), len(tables.requests)
        tables = with_room(
            tables,
            batches=2 * batches if counts["free_batch"] < 0 else batches,
            requests=2 * requests if counts["free_request"] < 0 else requests,
        )
        world = fit(world._replace(tables=tables))
    return world


def rates_of(plan: Plan, options: SimOptions) -> dict[str, float]:
    """Requests/s offered to every model of the plan."""
    reference = options.reference or plan
    chosen = options.models if options.models is not None else [m.name for m in plan.models]
    rates = {name: reference.model(name).throughput_rps for name in chosen}
    for name in chosen:
        plan.model(name)
    if options.rate_rps is None:
        return {name: rate * options.load_factor for name, rate in rates.items()}
    total = sum(rates.values())
    if total <= 0:
        raise InputError("rate", "the reference plan serves nothing, its models share no rate")
    return {name: options.rate_rps * rate / total for name, rate in rates.items()}


def _prepare(plan: Plan, options: SimOptions) -> World:
    if options.duration_s <= 0:
        raise InputError("duration", f"{options.duration_s} s is not positive")
    topology = build_topology(plan, options.nic, count_io=options.count_io)
    requests = offered_requests(
        plan,
        Offer(
            arrivals=options.arrivals,
            rates_rps=rates_of(plan, options),
            duration_us=s_to_us(options.duration_s),
            seed=options.seed,
        ),
    )
    tables = new_tables(topology, policy_number(options.policy))
    factors = _factors(options.latency_noise_cv, options.seed)
    return new_world(tables, requests, factors, keep_uses=options.keep_uses)


def _factors(cv: float, seed: int) -> Integers:
    """Lognormal factors with mean 1 and the given CV, as multiples of 1 / NOISE_ONE."""
    if cv < 0:
        raise InputError("noise", f"a coefficient of variation of {cv} is negative")
    if cv == 0:
        return np.full(1, NOISE_ONE, dtype=np.int64)
    sigma = np.sqrt(np.log1p(cv * cv))
    draws = np.random.default_rng([seed, 1 << 20]).lognormal(-sigma * sigma / 2, sigma, FACTORS)
    return np.rint(draws * NOISE_ONE).astype(np.int64)


def _result(plan: Plan, options: SimOptions, world: World, wall_seconds: float | None) -> SimResult:
    cursor, counts = world.cursor[0], world.tables.counts[0]
    span_us = max(s_to_us(options.duration_s), int(counts["now_us"]))
    links = world.busy_us[len(world.tables.topology.vgpu_stage) :]
    batches = int(counts["batches"])
    return SimResult(
        plan=plan,
        policy=options.policy,
        seed=options.seed,
        duration_s=options.duration_s,
        requests=world.requests,
        uses=world.uses[: int(cursor["uses"])],
        models=model_results(plan, world.requests),
        utilisation=utilisation(plan, world.busy_us, span_us),
        link_utilisation=tuple((links[links > 0] / span_us).tolist()),
        decisions=DecisionCost(
            count=int(cursor["decisions"]),
            mean_us=None,
            p99_us=None,
            probes_per_dispatch=float(counts["probes"]) / batches if batches else None,
        ),
        steps=int(cursor["steps"]),
        wall_seconds=wall_seconds,
    )


def find_goodput(plan: Plan, options: SimOptions, attainment: float = 0.99) -> Goodput:
    """Highest load factor on the grid 0.05 .. 1.00 at which every loaded model attains.

    Searched from above; 0 where none does. Load factors are shares of the reference plan's rate.
    """
    for load_factor in GRID:
        at = replace(options, load_factor=load_factor, rate_rps=None, keep_uses=False)
        result = simulate(plan, at)
        if min(model.attainment for model in result.models) >= attainment:
            return Goodput(load_factor=load_factor, rps=sum(rates_of(plan, at).values()))
    return Goodput(load_factor=0.0, rps=0.0)


def find_all_goodputs(
    plan: Plan, options: SimOptions, attainment: float = 0.99
) -> dict[str, Goodput | dict[str, Goodput]]:
    """Goodput jointly (all models loaded at once) and of each model alone."""
    alone = {
        model.name: find_goodput(plan, replace(options, models=(model.name,)), attainment)
        for model in plan.models
    }
    return {"joint": find_goodput(plan, options, attainment), "models": alone}
