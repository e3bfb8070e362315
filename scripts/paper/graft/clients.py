"""Attainment of clients of the Graft paper.

Fleets in shared batches, and clients that move their cuts, simulated. `shared batches`: fleets of
20 clients as `fleets.py` draws them, planned by `graft` and exactly, at planned rates (each client
at equal gaps, phases drawn) and as Poisson at 0.9 of them; how full shared batches are. Beside it
what the pools of the same plan would attain if each took what waits by deadline, without
reservations and promises (plans of one stage each).

`closed-loop`: 20 clients that follow the 5G traces, each with its own second to begin at, while
plans follow them. What is counted as feasible, at the instant of each decision:

* *possible*: with hindsight. By the trace as it goes on, with what waits for the link already and
  every cut that is open on the server, some cut leaves the server twice its least tail (or the
  device meets the SLO).
* *decided*: as the client believes, from past uploads.
* the *oracle* decides with that hindsight, by least latency, for one request at a time; what the
  server refuses it is the server's doing. It sends nothing that leaves less than twice the least
  tail; clients that try more can be served more than it.
* `static-plus` is planned for the clients that have a cut at the mean rate of their link, all the
  time. What it serves of the same clients is run too, since it serves fewer.

Traces shorter than the run are left out. What a plan holds counts from the start of its workers.
"""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from flows.operations.steering.policy import Steering, entries_of, planner_of, with_entries
from flows.operations.steering.simulated import SteeredRun, SteerTimes, steer_simulated
from flows.planning import PlanOptions, make_plan
from flows.planning.entries import AS_LISTED
from flows.planning.registry import Inputs
from scripts.benchmarks.figures import Figure
from scripts.paper.graft.fleets import (
    FLEETS,
    FRAMES,
    INPUT_BYTES,
    SLO,
    fleet,
    inputs_of,
    models,
    traces,
)
from scripts.paper.graft.mean_rates import at_mean_rates, static_plus
from triton_backend.client.link import Trace
from triton_backend.contract.arrivals import StatedRequests
from triton_backend.contract.entries import Entry
from triton_backend.contract.plan import Pipeline, Plan
from triton_backend.contract.units import US_PER_S
from triton_backend.contract.workload import LEAST_RPS, ModelDemand
from triton_backend.simulator.clients.client import ClientSpec, Missed
from triton_backend.simulator.clients.closed_loop import percents
from triton_backend.simulator.offered import POISSON, Arrivals, Stated
from triton_backend.simulator.results import SimResult
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions

PLANNED, LOADED, AT_LOAD = 0.995, 0.99, 0.9
ATTAINED, OVER_STATIC = 0.99, 0.9
NAMED, FULL, ENTRIES = "Res", 1.5, 2.0  # shared batches of a named case
GPUS = 400


# Shared batches


def shared_batches(
    data: Path,
    draws: int,
    seconds: float,
    names: Sequence[str],
    *,
    headroom: float = 1.0,
    phases: str = "even",
) -> tuple[list[Figure], dict[str, Any]]:
    """Attainment of fleets at planned rates and as Poisson at 0.9; how full shared batches are."""
    figures: list[Figure] = []
    for planner in ("gslice-plus", "graft", "pool"):
        own: dict[str, Any] = {"headroom": headroom}
        own["phases"] = phases if planner == "pool" else "even"
        for name in names:
            random = np.random.default_rng(0)
            percents: list[float] = []
            found: dict[str, list[SimResult]] = {"planned rates": [], "Poisson at 0.9": []}
            ideal: dict[str, list[float | None]] = {load: [] for load in found}
            for draw in range(draws):
                entries, _ = fleet(data, name, FLEETS["homogeneous"][1], random)
                plan = planned(inputs_of(data, name, entries), planner, **own)
                percents.append(plan.objective.value)
                frames = Stated(requests=at_equal_gaps(entries, seconds, random))
                loads: tuple[tuple[Arrivals, float], ...] = (frames, 1.0), (POISSON, AT_LOAD)
                for results, (arrivals, load) in zip(found.values(), loads, strict=True):
                    how = SimOptions(
                        arrivals=arrivals,
                        load_factor=load,
                        duration_s=seconds,
                        seed=draw,
                        keep_uses=False,
                    )
                    results.append(simulate(plan, how))
                for load, results in found.items():
                    ideal[load].append(by_deadline(plan, results[-1]))
            for (load, results), least in zip(found.items(), (PLANNED, LOADED), strict=True):
                note = _ideally(ideal[load])
                figures += _of_shared_batches(f"{name}, {planner}, {load}", results, least, note)
            held = float(np.mean(percents))
            figures.append(Figure(name=f"{name}, {planner}: held", value=held, unit="%"))
    return figures, {}


def planned(inputs: Inputs, planner: str, **own: Any) -> Plan:
    """A plan with half of every budget kept for waiting."""
    options = PlanOptions(planner=planner, objective="share", slo_margin=0.5, own=own)
    return make_plan(inputs.profiles, inputs.cluster, inputs.workload, options)


def at_equal_gaps(
    entries: Sequence[Entry], seconds: float, random: np.random.Generator
) -> StatedRequests:
    """Every entry at equal gaps from a phase of its own."""
    times = [
        np.arange(
            random.uniform(0, US_PER_S / e.rate_rps), seconds * US_PER_S, US_PER_S / e.rate_rps
        )
        for e in entries
    ]
    count = sum(map(len, times))
    return StatedRequests(
        arrival_us=np.concatenate(times).astype(np.int64),
        deadline_us=np.full(count, -1),
        samples=np.ones(count, dtype=np.int64),
        models=("",) * count,
        entries=tuple(e.name for e, own in zip(entries, times, strict=True) for _ in own),
    )


def by_deadline(plan: Plan, result: SimResult) -> float | None:
    """Share in time if every pool runs its queue by deadline; None for two stages.

    As soon as a vGPU is free it takes as many as the plan's batch that all end by the tightest
    deadline of them.
    """
    (model,) = plan.models
    if any(len(pipeline.stages) > 1 for pipeline in model.pipelines):
        return None
    rows, served = result.requests, 0
    pools: dict[str, list[Pipeline]] = {}
    for pipeline in model.pipelines:
        pools.setdefault(pipeline.stages[0].pool, []).append(pipeline)
    names = [entry.name for entry in model.entries]
    if len(names) != sum(map(len, pools.values())):
        return None
    for own in pools.values():
        stage = own[0].stages[0]
        mine = np.isin(rows["queue"], [names.index(str(pipeline.entry)) for pipeline in own])
        coming = sorted(
            zip(rows["arrival_us"][mine].tolist(), rows["deadline_us"][mine].tolist(), strict=True)
        )
        lasts_us = stage.latency_us_by_batch[: stage.batch or own[0].batch]
        served += _in_time(coming, lasts_us, plan.pool_of(stage).vgpus)
    return served / len(rows)


def _in_time(coming: Sequence[tuple[int, int]], lasts_us: Sequence[int], vgpus: int) -> int:
    """How many of (arrival, deadline), by arrival, a pool runs in time."""
    free, waiting, served, next_one = [0] * vgpus, list[int](), 0, 0
    while next_one < len(coming) or waiting:
        now = heapq.heappop(free)
        if not waiting:
            now = max(now, coming[next_one][0])
        while next_one < len(coming) and coming[next_one][0] <= now:
            heapq.heappush(waiting, coming[next_one][1])
            next_one += 1
        while waiting and waiting[0] < now + lasts_us[0]:
            heapq.heappop(waiting)
        size = min(len(lasts_us), len(waiting))
        while size and waiting[0] < now + lasts_us[size - 1]:
            size -= 1
        for _ in range(size):
            heapq.heappop(waiting)
        served += size
        heapq.heappush(free, now + lasts_us[size - 1] if size else now)
    return served


def _ideally(shares: Sequence[float | None]) -> str:
    known = [share for share in shares if share is not None]
    return f"by deadline {100 * float(np.mean(known)):.2f} %" if known else ""


def _of_shared_batches(
    where: str, results: Sequence[SimResult], least: float, note: str
) -> list[Figure]:
    offered = sum(r.models[0].offered for r in results)
    served = sum(r.models[0].served for r in results)
    late = sum(r.models[0].outcome.late for r in results)
    fills = [
        fill
        for result in results
        for entry in result.entries[result.models[0].name].values()
        if (fill := entry.shared_batch_fill) is not None
    ]
    joint = sum(fill.shared_batches for fill in fills)
    samples = sum(fill.shared_batches * fill.samples for fill in fills) / joint if joint else None
    joined = sum(fill.shared_batches * fill.entries for fill in fills) / joint if joint else None
    named = where.startswith(NAMED) and "graft" in where and "planned" in where
    return [
        Figure(
            name=f"{where}: attainment",
            value=100 * served / offered,
            unit="%",
            least=100 * least,
            note=note,
        ),
        Figure(name=f"{where}: accepted and late", value=late, most=0),
        Figure(
            name=f"{where}: samples in a shared batch", value=samples, least=FULL if named else None
        ),
        Figure(
            name=f"{where}: entries in a shared batch",
            value=joined,
            least=ENTRIES if named else None,
        ),
    ]


# The closed loop


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """How a closed loop is run.

    Attributes:
        planner: of the plans that follow.
        shadow: rate of the shadow pool over that of all clients.
        devices: of the clients.
        seconds: how long, with which seed.
        plan_s: what planning takes in simulated time; None: as it took.
    """

    planner: str = "graft"
    shadow: float = 0.05
    devices: tuple[str, ...] = FLEETS["homogeneous"][1]
    seconds: float = 600.0
    seed: int = 0
    plan_s: float | None = 0.2


def clients_of(data: Path, name: str, how: Loop) -> list[ClientSpec]:
    """Clients one after the other through the traces, each from a second drawn at random."""
    model = models(data)[name]
    random = np.random.default_rng(how.seed)
    runs = [run for run in traces(data).values() if len(run) > how.seconds]
    found: list[ClientSpec] = []
    for number, device in enumerate(how.devices):
        run = runs[number % len(runs)]
        begin = int(random.integers(len(run) - int(how.seconds)))
        rates = run[begin : begin + int(how.seconds) + 1]
        own = model.device_us[device]
        found.append(
            ClientSpec(
                name=f"c{number}",
                model=name,
                fps=FRAMES.get(name, 30.0),
                slo_us=int(SLO * sum(own)),
                heads_us=tuple(int(sum(own[:block])) for block in range(model.blocks + 1)),
                upload_bytes=(INPUT_BYTES, *model.profile.boundary_bytes),
                trace=Trace([(float(at), float(rate)) for at, rate in enumerate(rates)]),
            )
        )
    return found


def first_plan(
    inputs: Inputs, clients: Sequence[ClientSpec], how: Loop
) -> tuple[Plan, PlanOptions]:
    """Planned for where every client would cut at its link's mean rate.

    How the next ones are planned.
    """
    total_rps = sum(spec.fps for spec in clients)
    options = PlanOptions(
        planner=how.planner,
        objective="share",
        slo_margin=0.5,
        own=AS_LISTED | {"shadow_rps": how.shadow * total_rps},
    )
    idle = make_plan(inputs.profiles, inputs.cluster, inputs.workload, options)
    entries = entries_of(at_mean_rates(clients, idle, how.seconds))
    wanted = with_entries(inputs.workload, entries)
    return make_plan(inputs.profiles, inputs.cluster, wanted, options), options


@cache
def looped(data: Path, name: str, how: Loop, *, foresight: bool = False) -> dict[str, Any]:
    """A run of `simulate --clients --steer --json`, and its shares over those of `static-plus`."""
    clients = clients_of(data, name, how)
    last = models(data)[name].blocks - 1
    idle = Entry(name="idle", block=last, budget_us=clients[0].slo_us, rate_rps=LEAST_RPS)
    inputs = inputs_of(data, name, (idle,), GPUS)
    demand = ModelDemand(name=name, slo_us=clients[0].slo_us, entries=(idle,))
    inputs = replace(inputs, workload=replace(inputs.workload, models=(demand,)))
    plan, options = first_plan(inputs, clients, how)
    steering = Steering(planner=planner_of(inputs.profiles, inputs.cluster, options), in_force=plan)
    simulated = SimOptions(duration_s=how.seconds, seed=how.seed)
    loop, changes, unsteered = steer_simulated(
        plan,
        clients,
        simulated,
        steering,
        SteerTimes(plan_s=how.plan_s),
        lambda _: None,
        foresight=foresight,
    )
    run = SteeredRun(loop=loop, steering=steering, changes=changes, unsteered=unsteered)
    found = run.to_dict()
    static = static_plus(inputs.profiles, plan, clients, how.seconds)
    held = 0.0 if static is None else percents(static)
    found["over_static_plus"] = found["mean_percent"] / held if held else None
    if static is not None and not foresight:
        fixed, _, _ = steer_simulated(
            static, clients, simulated, None, SteerTimes(), lambda _: None
        )
        found["static_plus"] = {
            "served": sum(counts.served for counts in fixed.client_counts),
            "percent": fixed.mean_percent(),
        }
    return found


def closed_loop(data: Path, how: Loop, names: Sequence[str]) -> tuple[list[Figure], dict[str, Any]]:
    """Every model: what is attained of what was possible, why not, what is held."""
    figures: list[Figure] = []
    raw: dict[str, Any] = {}
    ratios: list[float] = []
    per_request: list[float] = []
    for name in names:
        found, oracle = looped(data, name, how), looped(data, name, how, foresight=True)
        raw[f"closed loop, {name}"] = {"clients": found, "oracle": oracle}
        figures += _of_loop(f"{name}, closed loop", found, oracle)
        if found["over_static_plus"] is not None:
            ratios.append(found["over_static_plus"])
            per_request.append(_per_request(found))
    if ratios:
        figures += [
            Figure(
                name="closed loop: mean shares over static-plus",
                value=float(np.mean(ratios)),
                most=OVER_STATIC,
            ),
            Figure(
                name="closed loop: mean shares per request in time over static-plus",
                value=float(np.mean(per_request)),
            ),
        ]
    return figures, raw


def _per_request(found: Mapping[str, Any]) -> float:
    """Percents held per request in time, beside those of a permanent `static-plus` plan."""
    static = found["static_plus"]
    own = found["mean_percent"] / max(found["attainment"] * found["offered"], 1)
    return own / (static["percent"] / max(static["served"], 1))


def _of_loop(where: str, found: Mapping[str, Any], oracle: Mapping[str, Any]) -> list[Figure]:
    offered, possible = found["offered"], found["possible"]
    figures = [
        Figure(
            name=f"{where}: served of what was possible",
            value=100 * found["attainment_possible"],
            unit="%",
            least=100 * ATTAINED,
            note=f"{possible} of {offered} were; the oracle "
            f"{100 * oracle['attainment_possible']:.2f} %",
        ),
        Figure(
            name=f"{where}: served of what clients decided to be feasible",
            value=100 * found["attainment_feasible"],
            unit="%",
            least=100 * ATTAINED,
            note=f"{found['feasible']} of {offered}",
        ),
        Figure(
            name=f"{where}: served of all offered",
            value=100 * found["attainment"],
            unit="%",
            note=f"the oracle {100 * oracle['attainment']:.2f} %",
        ),
    ]
    figures += [
        Figure(
            name=f"{where}: {why}",
            value=100 * found["missed"].get(why, 0) / max(possible, 1),
            unit="%",
            note="of what was possible; the oracle "
            f"{100 * oracle['missed'].get(why, 0) / max(oracle['possible'], 1):.2f} %",
        )
        for why in Missed
    ]
    figures += [
        Figure(name=f"{where}: accepted and late", value=found["accepted_and_late"], most=0),
        Figure(
            name=f"{where}: shares over static-plus",
            value=found["over_static_plus"],
            note=f"{found['mean_percent']:.0f} % of a GPU in the mean; {found['changes']} changes",
        ),
        Figure(
            name=f"{where}: shares per request in time over static-plus",
            value=_per_request(found) if "static_plus" in found else None,
        ),
        Figure(name=f"{where}: planning p50", value=found["plan_ms"]["p50"], unit="ms", most=500.0),
    ]
    return figures
