"""Arrivals of a simulation: one row per request, in the order of arrival.

Here: the choice of a process, files of traces, rates of a plan. Not here: the processes themselves
and the text of traces (`contract.arrivals`), which the load generator shares.
"""

import gzip
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from triton_backend.contract import arrivals
from triton_backend.contract.applications import Application, Module
from triton_backend.contract.arrivals import (
    ANY_MODEL,
    StatedRequests,
    is_intervals,
    parse_counts,
    parse_intervals,
    parse_requests,
    parse_stated,
)
from triton_backend.contract.entries import ShareTurns, demand_name, shares_of
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import ModelPlan, Plan
from triton_backend.contract.units import US_PER_S
from triton_backend.scheduler.compiled import NONE, Records
from triton_backend.scheduler.plan_rows import build_topology, edge_rows, module_rows
from triton_backend.scheduler.topology import part_count
from triton_backend.simulator.world import REQUEST_RECORD

Instants = NDArray[np.int64]
JOBS = 1 << 21  # separates what jobs draw from what models draw
LOWS = 1 << 22  # and what low requests draw
ROWS = ("poisson", "fixed")
_EVENLY = (5**0.5 - 1) / 2  # multiples of it modulo 1 lie as evenly as can be


@dataclass(frozen=True, slots=True, kw_only=True)
class Gamma:
    """Gamma-distributed gaps; shape 1 is Poisson, below 1 is burstier."""

    shape: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Deterministic:
    """Equal gaps, the first request at 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instant:
    """Stated instants (µs) per model or entry (`demand_name`), whatever the rate.

    Models and entries not named get no request.
    """

    by_model: Mapping[str, Instants]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A trace of instants (µs) per model, stretched to the rate; key "" is for any other model.

    The last instant is no request: there the trace starts over.
    """

    by_model: Mapping[str, Instants]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Requests per interval and model, scaled to the rate; key "" is for any other model."""

    by_model: Mapping[str, NDArray[np.float64]]
    interval_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stated:
    """Requests with instants of their own, whatever the rate, equal ones in the order stated."""

    requests: StatedRequests


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """Requests of an earlier draw for the same models, entries and applications, by arrival."""

    requests: Records


Arrivals = Gamma | Deterministic | Instant | Replay | Counts | Stated | Drawn
POISSON = Gamma()


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFormat:
    """How a trace file is to be read (see INTERFACE, "Traces").

    Attributes:
        time_column: column with seconds, of one row per request.
        model_column: column that says which model a request is for.
        names: trace's name of a model or series to the plan's name.
        interval_us: length of a row where rows hold counts; None = one row per request.
        as_is: one row per request, at the instants of the file.
    """

    time_column: str = "arrival_s"
    model_column: str | None = None
    names: Mapping[str, str] | None = None
    interval_us: int | None = None
    as_is: bool = False

    def __post_init__(self) -> None:
        if self.as_is and self.interval_us is not None:
            raise InputError("trace", "taken as it is, it has a row per request, not counts")


def read_arrivals(path: Path, trace: TraceFormat | None = None) -> Arrivals:
    """Arrivals from a CSV file, also `.gz`.

    Raises:
        InputError: the file cannot be read or does not have the stated columns.
    """
    trace = trace or TraceFormat()
    lines = text_lines(path)
    try:
        if trace.as_is:
            stated = parse_stated(
                lines,
                time_column=trace.time_column,
                model_column=trace.model_column,
                names=trace.names,
            )
            return Stated(requests=stated)
        if lines and is_intervals(lines[0]):
            # the first gap lies between the first request, at 0, and the second
            gaps = np.concatenate([[0.0], parse_intervals(lines)])
            return Replay(by_model={ANY_MODEL: np.cumsum(gaps).astype(np.int64)})
        if trace.interval_us is not None:
            counts = parse_counts(lines, names=trace.names)
            return Counts(by_model=counts, interval_us=trace.interval_us)
        instants = parse_requests(
            lines,
            time_column=trace.time_column,
            model_column=trace.model_column,
            names=trace.names,
        )
    except InputError as error:
        raise InputError(str(path), str(error)) from error
    return Replay(by_model={name: arrivals.with_end(one) for name, one in instants.items()})


def text_lines(path: Path) -> list[str]:
    """Lines of a text file, or of a compressed one (`.gz`).

    Raises:
        InputError: the file cannot be read, or is neither.
    """
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8-sig", newline="") as file:
            return list(file)
    except FileNotFoundError as error:
        raise InputError(str(path), "no such file") from error
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(str(path), f"cannot be read: {_why(error)}") from error
    except UnicodeDecodeError as error:
        raise InputError(str(path), "is not a text file") from error


def _why(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """How much of what is offered for how long; rates in requests/s per model of the plan.

    Those of low requests are on top.
    """

    arrivals: Arrivals = POISSON
    rates_rps: Mapping[str, float] = field(default_factory=dict[str, float])
    low_rates_rps: Mapping[str, float] = field(default_factory=dict[str, float])
    duration_us: int = 30 * US_PER_S
    seed: int = 0


def offered_requests(plan: Plan, offer: Offer) -> Records:
    """All requests of a run by arrival; equal instants in the order of the plan's queues.

    Every queue draws from a generator of its own, so that leaving models out changes no other's. A
    model's rate is shared among its entries as the plan's is; where these state shares, its
    requests are those of a model without entries, in turns.

    Raises:
        InputError: the arrivals do not fit the plan or its rates.
    """
    if isinstance(offer.arrivals, Drawn):
        return offer.arrivals.requests
    if isinstance(offer.arrivals, Stated):
        return _stated_requests(plan, offer, offer.arrivals.requests)
    parts = _job_requests(plan, offer)
    parts += _model_requests(plan, offer, low=False)
    if offer.low_rates_rps:
        parts += _model_requests(plan, offer, low=True)
    merged = np.concatenate(parts)
    return merged[np.argsort(merged["arrival_us"], kind="stable")]


def _model_requests(plan: Plan, offer: Offer, *, low: bool) -> list[Records]:
    """Requests of every queue of one priority."""
    parts: list[Records] = []
    rates_rps = offer.low_rates_rps if low else offer.rates_rps
    boards = any(s.boards for m in plan.models for p in m.pipelines for s in p.stages)
    queue = 0
    for number, model in enumerate(plan.models):
        series = _instants_by_queue(offer, model, number, rates_rps.get(model.name, 0.0), low=low)
        for entry, times in zip(model.queues, series, strict=True):
            rows = _new_requests(len(times))
            rows["model"] = number
            rows["queue"] = queue
            rows["samples"] = 1
            rows["low"] = low and not boards
            rows["arrival_us"] = times
            rows["deadline_us"] = times + entry.budget_us
            parts.append(rows)
            queue += 1
    return parts


def _instants_by_queue(
    offer: Offer, model: ModelPlan, number: int, rate_rps: float, *, low: bool
) -> list[Instants]:
    """Instants of every queue of a model, which is number `number` of its plan."""
    priority = [LOWS] if low else []
    shares = shares_of(model.entries)
    if shares:
        rng = np.random.default_rng([offer.seed, number, *priority])
        times = instants(offer.arrivals, model.name, rate_rps, offer.duration_us, rng)
        turns = ShareTurns(shares)
        chosen = np.asarray([turns.choose(shares) for _ in times], dtype=np.int64)
        return [times[chosen == k] for k in shares]
    found: list[Instants] = []
    for k, share in enumerate(_entry_shares(model)):
        own = [k + 1] if model.entries else []
        rng = np.random.default_rng([offer.seed, number, *own, *priority])
        name = _series(offer.arrivals, model, k)
        found.append(instants(offer.arrivals, name, rate_rps * share, offer.duration_us, rng))
    return found


def _series(spec: Arrivals, model: ModelPlan, number: int) -> str:
    """The name under which a process knows the arrivals of a queue of a model.

    Raises:
        InputError: instants are of a model that lists several entries.
    """
    if not isinstance(spec, Instant) or not model.entries:
        return model.name
    if model.name not in spec.by_model:
        return demand_name(model.name, model.entries[number].name)
    if len(model.entries) > 1:
        raise InputError(f"model {model.name!r}", "instants do not say which entry they are for")
    return model.name


def _new_requests(count: int) -> Records:
    rows = np.zeros(count, dtype=REQUEST_RECORD)
    rows["dispatch_us"] = rows["batch_id"] = rows["application"] = NONE
    return rows


def _job_requests(plan: Plan, offer: Offer) -> list[Records]:
    """Requests of every application that gets load."""
    parts: list[Records] = []
    for number, planned in enumerate(plan.applications):
        rng = np.random.default_rng([offer.seed, JOBS, number])
        rate_rps = offer.rates_rps.get(planned.name, 0.0)
        times = instants(offer.arrivals, planned.name, rate_rps, offer.duration_us, rng)
        rows = _new_requests(len(times))
        rows["model"] = rows["queue"] = NONE
        rows["application"] = number
        rows["samples"] = 1
        rows["arrival_us"] = times
        rows["deadline_us"] = times + planned.application.slo_us
        parts.append(rows)
    return parts


def drawn_rows(
    plan: Plan, names: Sequence[str], requests: Records, draw: str, seed: int
) -> NDArray[np.int64]:
    """[request, part] rows that go over every edge of its application, see `Tables.parts`.

    A module with r rows per request after one that has s runs a Poisson number with mean r / s per
    row of that one (`poisson`), or so many that the mean over jobs holds (`fixed`); at most
    `max_rows`. Where both are equal rows pair up, and so do those that modules give to one that
    reads several.

    Args:
        plan: in force.
        names: of the applications that requests number.
        requests: `REQUEST_RECORD` rows.
        draw: one of `ROWS`.
        seed: of the run.
    """
    modules, edges = module_rows(plan, build_topology(plan)), edge_rows(plan)
    drawn = np.zeros((len(requests), part_count(modules, edges)), dtype=np.int64)
    known = [planned.name for planned in plan.applications]
    for number, name in enumerate(names):
        mine = np.flatnonzero(requests["application"] == number)
        if name not in known or not len(mine):
            continue
        application = plan.applications[known.index(name)].application
        rng = np.random.default_rng([seed, JOBS, number, 1])
        rows = _rows_of_modules(application, requests["samples"][mine].astype(np.int64), draw, rng)
        first = next(r for r in modules if r["application"] == known.index(name))
        at = int(first["first_edge"])
        for module in application.modules:
            for child in application.modules:
                if module.name in child.parents:
                    drawn[mine, edges[at]["part"]] = rows[child.name]
                    at += 1
    return drawn


def _rows_of_modules(
    application: Application, samples: NDArray[np.int64], draw: str, rng: np.random.Generator
) -> dict[str, NDArray[np.int64]]:
    """By module, [job] rows that it runs."""
    rows: dict[str, NDArray[np.int64]] = {}
    alike: dict[str, str] = {}  # modules that feed one together, to the first of them
    for module in application.modules:
        if application.rows_vary(module):
            givers = application.givers(module)
            alike |= {giver: alike.get(givers[0], givers[0]) for giver in givers}
    for module in application.ordered():
        mean, most = module.rows_per_request, module.max_rows or 1
        if module.size_of is not None:
            if module.name not in rows:
                rows |= _rows_of_sizes(application, module, rows, draw, rng)
            continue
        if not application.rows_vary(module):
            rows[module.name] = round(mean) * samples
            continue
        parent = application.module(application.givers(module)[0])
        before = rows[parent.name]
        twin = alike.get(module.name, module.name)
        if (parent.rows_per_request, parent.max_rows) == (mean, most):
            found = before
        elif twin in rows:
            found = rows[twin]
        elif draw == "poisson":
            found = rng.poisson(before * (mean / parent.rows_per_request))
        else:
            ends = np.floor(np.arange(len(samples) + 1) * mean + 0.5).astype(np.int64)
            found = np.where(before > 0, np.diff(ends) * samples, 0)
        rows[module.name] = np.minimum(found, most * samples)
    return rows


def _rows_of_sizes(
    application: Application,
    module: Module,
    rows: Mapping[str, NDArray[np.int64]],
    draw: str,
    rng: np.random.Generator,
) -> dict[str, NDArray[np.int64]]:
    """By size of a module's model, [job] of its chooser's rows: each row has one, by the shares."""
    sizes = application.makers(module.read_as)
    given = rows[application.givers(module)[0]]
    shares = np.array([size.rows_per_request for size in sizes])
    shares /= shares.sum()
    if draw == "poisson":
        parts = rng.multinomial(given, shares)
    else:
        places = (np.arange(given.sum()) + 0.5) * _EVENLY % 1.0
        size_of = np.searchsorted(np.cumsum(shares)[:-1], places, side="right")
        parts = np.zeros((len(given), len(sizes)), np.int64)
        np.add.at(parts, (np.repeat(np.arange(len(given)), given), size_of), 1)
    return {size.name: parts[:, n] for n, size in enumerate(sizes)}


def _entry_shares(model: ModelPlan) -> list[float]:
    """Share of a model's planned rate that each of its queues is planned for."""
    names = [entry.name if model.entries else None for entry in model.queues]
    planned = [sum(p.throughput_rps for p in model.pipelines if p.entry == name) for name in names]
    if not sum(planned):
        planned = [1.0] * len(planned)
    return [rate / sum(planned) for rate in planned]


def _stated_requests(plan: Plan, offer: Offer, stated: StatedRequests) -> Records:
    """The requests that a file states within the duration, of the models that get load."""
    queues: dict[tuple[str, str], tuple[int, int, int]] = {}  # model, queue, budget
    for number, model in enumerate(plan.models):
        for entry in model.queues:
            place = (number, len(queues), entry.budget_us)
            queues[model.name, entry.name if model.entries else ""] = place
    found = {key: _queue_named(plan, key, queues) for key in dict.fromkeys(_names(stated))}
    places = np.asarray([found[key] for key in _names(stated)], dtype=np.int64)
    loaded = [n for n, model in enumerate(plan.models) if model.name in offer.rates_rps]
    chosen = (stated.arrival_us < offer.duration_us) & np.isin(places[:, 0], loaded)
    order = np.flatnonzero(chosen)
    order = order[np.argsort(stated.arrival_us[order], kind="stable")]
    rows = _new_requests(len(order))
    deadline_us = np.where(stated.deadline_us < 0, places[:, 2], stated.deadline_us)
    rows["model"] = places[order, 0]
    rows["queue"] = places[order, 1]
    rows["samples"] = stated.samples[order]
    rows["arrival_us"] = stated.arrival_us[order]
    rows["deadline_us"] = rows["arrival_us"] + deadline_us[order]
    return rows


def _names(stated: StatedRequests) -> Iterator[tuple[str, str]]:
    """Model and entry that every request names."""
    return zip(stated.models, stated.entries, strict=True)


def _queue_named(
    plan: Plan, key: tuple[str, str], queues: Mapping[tuple[str, str], tuple[int, int, int]]
) -> tuple[int, int, int]:
    """Model, queue and budget that a request is for; one model or entry need not be named."""
    name, entry = key
    if name == ANY_MODEL:
        if len(plan.models) != 1:
            listed = ", ".join(model.name for model in plan.models)
            raise InputError("trace", f"a request names no model; the plan has {listed}")
        name = plan.models[0].name
    model = plan.model(name)
    entries = [known.name for known in model.entries]
    if not entry and len(entries) == 1:
        entry = entries[0]
    if (name, entry) not in queues:
        listed = ", ".join(entries) or "none"
        said = f"no entry {entry!r}" if entry else "a request names no entry"
        raise InputError(f"trace, model {name!r}", f"{said}; it lists {listed}")
    return queues[name, entry]


def instants(
    spec: Arrivals, model: str, rate_rps: float, duration_us: int, rng: np.random.Generator
) -> Instants:
    """Sorted instants (µs) of one model's requests.

    Raises:
        InputError: the trace has no series for the model, or cannot be offered at that rate.
    """
    if isinstance(spec, Stated | Drawn):
        raise InputError("arrivals", "stated requests are of all models together")
    if isinstance(spec, Instant):
        return np.sort(np.asarray(spec.by_model.get(model, []), dtype=np.int64))
    if rate_rps == 0:
        return np.zeros(0, dtype=np.int64)
    if isinstance(spec, Gamma):
        return arrivals.gamma_us(rate_rps, duration_us, spec.shape, rng)
    if isinstance(spec, Deterministic):
        return arrivals.deterministic_us(rate_rps, duration_us)
    if model not in spec.by_model and ANY_MODEL not in spec.by_model:
        known = ", ".join(spec.by_model)
        raise InputError("trace", f"no series for model {model!r}; it has {known}")
    return _of_trace(
        spec, model if model in spec.by_model else ANY_MODEL, rate_rps, duration_us, rng
    )


def _of_trace(
    spec: Replay | Counts, series: str, rate_rps: float, duration_us: int, rng: np.random.Generator
) -> Instants:
    if isinstance(spec, Replay):
        return arrivals.replay_us(spec.by_model[series], rate_rps, duration_us)
    counts = arrivals.scaled_counts(spec.by_model[series], spec.interval_us, rate_rps)
    return arrivals.counts_us(counts, spec.interval_us, duration_us, rng)
