"""The simulator decides as `Scheduler.handle` does: the same events, compared decision by decision.

The simulator runs instant by instant. Before each, its heap, its timers and the next arrivals say
which events are about to happen; afterwards its records say what was decided. The same events
handed to a `Scheduler` must have led to the same decisions.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.fakes.plans import Own, make_plan
from triton_backend.contract.decisions import Abort, Decision, Dispatch, Drop
from triton_backend.contract.events import (
    Arrival,
    Event,
    StageDone,
    Timer,
    TransferDone,
    WorkerBack,
    WorkerLost,
)
from triton_backend.contract.plan import Plan
from triton_backend.scheduler.compiled import FAR
from triton_backend.scheduler.kernel_api import next_timer
from triton_backend.scheduler.policies.registry import POLICIES
from triton_backend.scheduler.scheduler import Scheduler
from triton_backend.simulator import heap
from triton_backend.simulator.failures import Failure
from triton_backend.simulator.run import prepare, run_on
from triton_backend.simulator.scenario import SimOptions
from triton_backend.simulator.world import DROPPED, World

Outcome = tuple[Any, ...]
# Turns need pipelines of one stage.
COMPARED = [name for name in POLICIES if not name.startswith("turns")]


def busy_plan() -> Plan:
    """Two models of two pipelines, one of them with transfers; batches of up to 3."""
    first = Own(latency_us=(4_000, 6_000, 7_500), gpus=4, gpus_per_node=2, bytes_out=800_000)
    second = Own(latency_us=(1_500, 2_600, 3_600), gpus=2, gpus_per_node=2)
    whole = Own(latency_us=(5_000, 7_000), gpus=2)
    return make_plan([[first, second], [whole]], [[first, second]], slo_us=40_000)


def ends(world: World, at_us: int) -> Iterator[Event]:
    """Ends and failures that the simulator's heap holds for an instant, in their order."""
    rows = np.sort(world.heap[: int(world.cursor[0]["events"])], order=["kind", "sequence"])
    for row in rows[rows["at_us"] == at_us]:
        kind, subject = int(row["kind"]), int(row["subject"])
        if kind == heap.WORKER_LOST:
            yield WorkerLost(now_us=at_us, vgpu=subject)
        elif kind == heap.WORKER_BACK:
            yield WorkerBack(now_us=at_us, vgpu=subject)
        elif kind in {heap.STAGE_DONE, heap.TRANSFER_DONE}:
            run = world.runs[subject]
            if run["number"] == row["number"]:
                yield (StageDone if kind == heap.STAGE_DONE else TransferDone)(
                    now_us=at_us,
                    batch_id=int(run["number"]),
                    stage=int(run["stage"]),
                    start_us=int(run["since_us"]),
                    end_us=at_us,
                )


def arrivals(world: World, at_us: int) -> Iterator[Arrival]:
    """Requests of an instant; the number of a request is its row."""
    number = int(world.cursor[0]["arrival"])
    while number < len(world.requests) and world.requests[number]["arrival_us"] == at_us:
        row = world.requests[number]
        yield Arrival(
            now_us=at_us,
            request_id=number,
            model=int(row["model"]),
            deadline_us=int(row["deadline_us"]),
            low=int(row["low"]),
        )
        number += 1


def next_instant(world: World) -> int:
    """When something happens next."""
    cursor = world.cursor[0]
    instants = [int(next_timer(world.tables))]
    if cursor["events"]:
        instants.append(int(world.heap[0]["at_us"]))
    if cursor["arrival"] < len(world.requests):
        instants.append(int(world.requests[int(cursor["arrival"])]["arrival_us"]))
    return min(instants)


def simulated(world: World, plan: Plan, at_us: int) -> tuple[World, set[Outcome]]:
    """Let an instant pass; returns what the simulator decided in it."""
    before = world.requests[["batch_id", "outcome"]].copy()
    world.cursor[0]["stop_us"] = at_us + 1
    world = run_on(world, plan)
    decided: set[Outcome] = set()
    changed = np.flatnonzero(before != world.requests[["batch_id", "outcome"]])
    for number in changed.tolist():
        row = world.requests[number]
        if row["outcome"] == DROPPED:
            decided.add(("drop", number, int(row["reason"])))
    dispatched = {int(b) for b in world.requests["batch_id"][changed]} - {-1}
    for slot in np.flatnonzero(np.isin(world.runs["number"], list(dispatched))).tolist():
        run = world.runs[slot]
        members = np.flatnonzero(world.requests["batch_id"] == run["number"]).tolist()
        if world.tables.batches[slot]["dispatch_us"] == at_us:
            hops = world.hops[slot, : int(run["stages"])][["vgpu", "start_us", "end_us"]]
            decided.add(("dispatch", int(run["number"]), tuple(members), *hops.tolist()))
    return world, decided


def outcomes(decided: list[Decision]) -> set[Outcome]:
    """Effects of an instant's decisions in the simulator's records."""
    aborted = {decision.batch_id for decision in decided if isinstance(decision, Abort)}
    made: set[Outcome] = set()
    for decision in decided:
        if isinstance(decision, Drop):
            made.add(("drop", decision.request_id, int(decision.reason)))
        elif isinstance(decision, Dispatch) and decision.batch_id not in aborted:
            hops = [(hop.vgpu, hop.start_us, hop.end_us) for hop in decision.hops]
            made.add(("dispatch", decision.batch_id, tuple(sorted(decision.request_ids)), *hops))
    return made


FAILURES = (Failure(start_s=0.1, end_s=0.2, vgpu=0), Failure(start_s=0.15, vgpu=5))


@pytest.mark.long
@pytest.mark.parametrize("policy", COMPARED)
@pytest.mark.parametrize(
    "options",
    [
        SimOptions(duration_s=0.3, load_factor=1.3),
        SimOptions(duration_s=0.3, load_factor=0.9, latency_noise_cv=0.2, nic="isolated"),
        SimOptions(duration_s=0.3, load_factor=1.0, latency_noise_cv=0.1, failures=FAILURES),
        SimOptions(
            duration_s=0.3,
            load_factor=0.6,
            low_load_factor=0.6,
            latency_noise_cv=0.1,
            failures=FAILURES,
        ),
    ],
    ids=["exact", "noise", "failures", "low"],
)
def test_the_same_events_lead_to_the_same_decisions(policy: str, options: SimOptions) -> None:
    plan = busy_plan()
    world = prepare(plan, replace(options, policy=policy))
    scheduler = Scheduler(plan, policy=policy, nic=options.nic)
    compared = 0
    while (at_us := next_instant(world)) < FAR:
        timer_us = int(next_timer(world.tables))
        timers = [Timer(now_us=at_us)] if timer_us == at_us else []
        events = [*ends(world, at_us), *timers, *arrivals(world, at_us)]
        decided = [decision for event in events for decision in scheduler.handle(event)]
        world, found = simulated(world, plan, at_us)
        assert found == outcomes(decided)
        compared += len(found)
        queued = world.tables.queues["requests"].reshape(2, -1)  # and low ones
        waiting = tuple(queued.sum(axis=0).tolist())
        assert (waiting, int(world.tables.counts[0]["in_flight"])) == (
            scheduler.queue_lengths(),
            scheduler.in_flight(),
        )
    assert compared > 100
    scheduler.check_invariants()
