"""Schedules: the instants of every request of a run, fixed before the first is sent.

Here: rates and an arrival process (or a trace) become one sorted schedule. Every model draws from
a generator of its own, seeded by (seed, its number in the plan), so that a model sees the same
instants whether it is loaded alone or with others.
Not here: sending (`drive`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from triton_backend.contract import arrivals
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import ModelPlan, Plan
from triton_backend.contract.units import s_to_us
from triton_backend.runtimes.stage_tensors import asked_as, served_model, served_models
from triton_backend.serving.loadgen.series import TraceFile, read_series

PROCESSES = ("poisson", "gamma", "deterministic")
GAMMA_SHAPE = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Request i is meant to leave at `intended_us[i]` for `models[model[i]]`; in order of time."""

    models: tuple[str, ...]
    intended_us: NDArray[np.int64]
    model: NDArray[np.int16] = field(repr=False)

    def __len__(self) -> int:
        return len(self.intended_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """The load to offer.

    Attributes:
        rates_rps: requests/s per model, in plan order; with a trace they scale it.
        numbers: number of each of those models in the plan (seeds their generators).
        arrivals: one of `PROCESSES` or a trace.
        as_recorded: play a trace at its own rates; `rates_rps` then only deals out a trace that
            names no models (scaled, each model replays such a trace at its own rate).
    """

    rates_rps: Mapping[str, float]
    numbers: tuple[int, ...]
    arrivals: str | TraceFile = "poisson"
    shape: float = GAMMA_SHAPE
    as_recorded: bool = False


def rates_of(
    plan: Plan,
    models: list[str] | None = None,
    *,
    load_factor: float | None = None,
    rate_rps: float | None = None,
) -> dict[str, float]:
    """Planned rates of named models and applications (None: all), times a factor or to a total.

    Of a model beside applications that use it, what they leave: as the simulator offers it.

    Raises:
        InputError: a model is not in the plan, or the rates cannot be offered.
    """
    chosen = [one for name in models or () for one in _models_of(plan, name)]
    chosen = chosen or [*served_models(plan)]
    chosen = [one for one in chosen if one.name not in plan.workload.variant_of]
    models_of_plan = {model.name for model in plan.models}
    planned = {
        one.name: plan.own_rate_rps(one.name) if one.name in models_of_plan else one.throughput_rps
        for one in chosen
    }
    factor = 1.0 if load_factor is None else load_factor
    if rate_rps is not None:
        total = sum(planned.values())
        if total <= 0:
            raise InputError("rate", "the plan serves nothing, its models share no rate")
        factor = rate_rps / total
    if not 0 < factor < float("inf"):
        raise InputError("load", f"{factor} times the planned rates cannot be offered")
    return {name: rate * factor for name, rate in planned.items()}


def _models_of(plan: Plan, name: str) -> list[ModelPlan]:
    """The served model of a name, or all sizes or versions of which clients ask by it."""
    sizes = [one for one in served_models(plan) if asked_as(plan, one.name) == name]
    return sizes or [served_model(plan, name)]


def make_schedule(offer: Offer, *, duration_s: float, seed: int) -> Schedule:
    """Draw the whole run.

    Raises:
        InputError: the trace cannot be read or used, or nothing would be offered.
    """
    duration_us = s_to_us(duration_s)
    generators = [np.random.default_rng([seed, number]) for number in offer.numbers]
    rated = zip(offer.rates_rps.items(), generators, strict=True)
    if isinstance(offer.arrivals, TraceFile):
        drawn = _from_trace(offer, offer.arrivals, duration_us, generators)
    elif offer.arrivals == "poisson":
        drawn = [arrivals.poisson_us(rate, duration_us, rng) for (_, rate), rng in rated]
    elif offer.arrivals == "gamma":
        drawn = [arrivals.gamma_us(rate, duration_us, offer.shape, rng) for (_, rate), rng in rated]
    else:
        drawn = [arrivals.deterministic_us(rate, duration_us) for (_, rate), _ in rated]
    return _merged(tuple(offer.rates_rps), drawn)


def _from_trace(
    offer: Offer, trace: TraceFile, duration_us: int, generators: list[np.random.Generator]
) -> list[NDArray[np.int64]]:
    series = read_series(trace)
    common = series.get(arrivals.ANY_MODEL)
    if common is not None and offer.as_recorded:
        shares = np.asarray(list(offer.rates_rps.values()))
        instants = common.play(None, duration_us, generators[0])
        whose = generators[0].choice(len(shares), size=len(instants), p=shares / shares.sum())
        return [instants[whose == i] for i in range(len(shares))]
    missing = [] if common else sorted(set(offer.rates_rps) - set(series))
    if missing:
        raise InputError(
            str(trace.path), f"no series for {missing[0]!r}; it has {', '.join(series)}"
        )
    return [
        (common or series[name]).play(None if offer.as_recorded else rate, duration_us, rng)
        for (name, rate), rng in zip(offer.rates_rps.items(), generators, strict=True)
    ]


def _merged(models: tuple[str, ...], drawn: list[NDArray[np.int64]]) -> Schedule:
    """One order over all models: by instant, then by the models' order."""
    intended_us = np.concatenate(drawn)
    if len(intended_us) == 0:
        raise InputError("load", "no request falls into the duration; raise it or the rate")
    model = np.repeat(np.arange(len(models)), [len(instants) for instants in drawn])
    order = np.argsort(intended_us, kind="stable")
    return Schedule(
        models=models, intended_us=intended_us[order], model=model[order].astype(np.int16)
    )
