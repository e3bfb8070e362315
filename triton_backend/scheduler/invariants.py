"""Invariants of the scheduler's tables, checked after every core test and when idle.

Plain Python over the arrays: slow, and independent of the kernels it checks.
"""

from collections.abc import Iterator, Mapping

import numpy as np

from triton_backend.contract.errors import InvariantError
from triton_backend.scheduler.compiled import FAR, NONE, Record
from triton_backend.scheduler.policies.late import WAITING
from triton_backend.scheduler.tables import (
    CLOSED,
    DOWNLINK,
    KINDS,
    LIVE,
    OPEN,
    READY,
    TASK_MODULE,
    TASK_NEXT,
    UPLINK,
    VGPU,
    JobTables,
    Tables,
    unpack,
)
from triton_backend.scheduler.topology import BLOCK


def check_invariants(tables: Tables) -> None:
    """Check all of them.

    Raises:
        InvariantError: with every contradiction, one per line.
    """
    found = [
        *_timelines(tables),
        *_index(tables),
        *_queues(tables),
        *_candidates(tables),
        *_batches(tables),
        *_shared_batches(tables),
        *_free_slots(tables),
        *_conservation(tables),
        *_jobs(tables),
        *_counters(tables),
    ]
    if found:
        raise InvariantError("\n".join(found))


def _chain(records: Record, first: int, link: str = "next") -> list[int]:
    """Slots of a chain in order; a chain longer than its records would go round for ever."""
    following = records[link].item  # whole records would be made to read one field of each
    slots: list[int] = []
    slot, most = int(first), len(records)
    while slot != NONE and len(slots) <= most:
        slots.append(slot)
        slot = following(slot)
    return slots


def _timelines(tables: Tables) -> Iterator[str]:
    """Intervals of a resource: in order, apart, of positive length, linked both ways."""
    linked = 0
    for number, resource in enumerate(tables.resources):
        chain = _chain(tables.intervals, resource["first"])
        linked += len(chain)
        before = NONE
        for i in chain:
            row = tables.intervals[i]
            if row["resource"] != number or row["previous"] != before:
                yield f"interval {i} is chained to resource {number} but says {row}"
            if row["start_us"] >= row["end_us"]:
                yield f"interval {i} lasts from {row['start_us']} to {row['end_us']}"
            if before != NONE and tables.intervals[before]["end_us"] > row["start_us"]:
                yield f"intervals {before} and {i} overlap on resource {number}"
            before = i
        if resource["last"] != before:
            yield f"resource {number} ends at interval {resource['last']}, not {before}"
        if resource["lost"] and chain:
            yield f"lost vGPU {number} has reservations {chain}"
    reserved = int((tables.intervals["resource"] != NONE).sum())
    if linked != reserved:
        yield f"{reserved} intervals say they are reserved, {linked} are chained"
    if tables.intervals["pending"].any():
        yield "a delay was left half done"


def _index(tables: Tables) -> Iterator[str]:
    """No vGPU of a pool can start a job before the index says."""
    topology = tables.topology
    now = int(tables.counts[0]["now_us"])
    for row in topology.pools:
        first, end = int(row["first_vgpu"]), int(row["end_vgpu"])
        at = now + int(row["ahead_us"])
        for vgpu in range(first, end):
            says = int(tables.free_from_us[vgpu])
            lost = bool(tables.resources[vgpu]["lost"])
            true = _first_gap(tables, vgpu, at, int(row["least_us"]))
            if lost != (says == FAR) or (not lost and says > true):
                yield f"vGPU {vgpu} is free from {true} (lost: {lost}), the index says {says}"
        for k, begin in enumerate(range(first, end, BLOCK)):
            block = int(row["first_block"]) + k
            least = tables.free_from_us[begin : min(begin + BLOCK, end)].min()
            if tables.block_from_us[block] != least:
                yield f"block {block} says {tables.block_from_us[block]}, its least is {least}"


def _first_gap(tables: Tables, resource: int, at_us: int, length_us: int) -> int:
    at_us = max(at_us, int(tables.resources[resource]["idle_us"]))
    for i in _chain(tables.intervals, tables.resources[resource]["first"]):
        row = tables.intervals[i]
        if row["start_us"] - at_us >= length_us:
            break
        at_us = max(at_us, int(row["end_us"]))
    return at_us


def _queues(tables: Tables) -> Iterator[str]:
    """A queue is in the order of deadlines, counts what it holds, and all of it is queued."""
    for model, queue in enumerate(tables.queues):
        chain = _chain(tables.requests, queue["first"])
        rows = [tables.requests[slot] for slot in chain]
        keys = [(int(row["deadline_us"]), int(row["sequence"])) for row in rows]
        if keys != sorted(keys):
            yield f"queue of model {model} is out of order: {keys}"
        if len(rows) != queue["requests"] or sum(r["samples"] for r in rows) != queue["samples"]:
            yield f"queue of model {model} counts {queue}, holds {len(rows)} requests"
        if any(row["queue"] != model or row["batch"] != NONE for row in rows):
            yield f"queue of model {model} holds a request of another model or in a batch"
        if queue["last"] != (chain[-1] if chain else NONE):
            yield f"queue of model {model} ends at {queue['last']}"


def _candidates(tables: Tables) -> Iterator[str]:
    """Pools know which of their candidates wait, and until when each of these stays as it is."""
    for pipeline, row in enumerate(tables.topology.pipelines):
        candidate = tables.candidates[pipeline]
        says = int(tables.waiting_keep_us[row["place"]])
        true = int(candidate["keep_us"]) if candidate["state"] == WAITING else FAR
        if says != true:
            yield f"candidate of pipeline {pipeline} waits until {true}, its pool says {says}"


def _batches(tables: Tables) -> Iterator[str]:
    """A batch holds what it counts, and each step of its path follows the one before."""
    used = np.flatnonzero((tables.batches["number"] != NONE) & (tables.batches["capacity"] <= 0))
    for slot in used.tolist():
        batch = tables.batches[slot]
        rows = [tables.requests[r] for r in _chain(tables.requests, batch["first"])]
        if len(rows) != batch["requests"] or sum(r["samples"] for r in rows) != batch["samples"]:
            yield f"batch {batch['number']} counts {batch['samples']}, holds {len(rows)} requests"
        if any(row["batch"] != slot for row in rows):
            yield f"batch {batch['number']} holds a request of another batch"
        yield from _path(tables, slot)
    if len(used) != tables.counts[0]["in_flight"]:
        yield f"{len(used)} batches in flight, counted {tables.counts[0]['in_flight']}"


def _path(tables: Tables, slot: int) -> Iterator[str]:
    at = NONE
    now = int(tables.counts[0]["now_us"])
    hops = tables.offers.shape[1]
    stages = int(tables.batches[slot]["stages"])
    for hop in range(hops):
        base = (slot * hops + hop) * KINDS
        vgpu = int(tables.paths[slot, hop])
        if tables.intervals[base + VGPU]["resource"] not in (
            {NONE, vgpu} if hop < stages else {NONE}
        ):
            yield f"batch slot {slot} runs at hop {hop} elsewhere than on vGPU {vgpu}"
        moves = [tables.intervals[base + kind] for kind in (UPLINK, DOWNLINK)]
        moves = [row for row in moves if row["resource"] != NONE]
        if len({(int(row["start_us"]), int(row["end_us"])) for row in moves}) > 1:
            yield f"batch slot {slot} moves at two times into hop {hop}: {moves}"
        for row in (*moves[:1], tables.intervals[base + VGPU]):
            if row["resource"] == NONE:
                if row["shared_batch"] != NONE:
                    joint = tables.intervals[int(row["shared_batch"]) * hops * KINDS + VGPU]
                    # It is put off, and with it what follows, once a late member is there.
                    waits = row["previous"] == 0 and joint["start_us"] < now
                    at = int(joint["end_us"]) if waits else max(at, int(joint["end_us"]))
                continue
            if row["start_us"] < at:
                yield f"batch slot {slot} goes on at {row['start_us']}, before {at} (hop {hop})"
            at = int(row["end_us"])


def _shared_batches(tables: Tables) -> Iterator[str]:
    """A shared batch holds one interval and its members.

    Places apart, counted, none planned to come too late.
    """
    listed = _chain(tables.batches, tables.counts[0]["first_shared_batch"], "next_shared_batch")
    shared_batches = np.flatnonzero(
        (tables.batches["number"] != NONE) & (tables.batches["capacity"] > 0)
    )
    if sorted(listed) != shared_batches.tolist():
        yield f"shared batches {shared_batches} are in flight, {listed} are listed"
    for slot in shared_batches.tolist():
        yield from _shared_batch(tables, slot)
    places = tables.intervals["shared_batch"]
    sitting = sum(
        len(_chain(tables.intervals, tables.batches[slot]["aboard"])) for slot in shared_batches
    )
    if (places != NONE).sum() != sitting or not set(places[places != NONE]) <= set(
        shared_batches.tolist()
    ):
        yield f"{(places != NONE).sum()} runs say they are rows, shared batches have {sitting}"


def _shared_batch(tables: Tables, slot: int) -> Iterator[str]:
    hops = tables.offers.shape[1]
    shared_batch, run = tables.batches[slot], tables.intervals[slot * hops * KINDS + VGPU]
    name = f"shared batch {shared_batch['number']}"
    members = _chain(tables.intervals, shared_batch["aboard"])
    places = [tables.intervals[m] for m in members]
    batches = [m // (hops * KINDS) for m in members]
    rows = [
        int(place["row"]) + k
        for place, batch in zip(places, batches, strict=True)
        for k in range(tables.batches[batch]["samples"])
    ]
    if (
        not rows
        or len(set(rows)) != len(rows)
        or not set(rows) <= set(range(shared_batch["capacity"]))
    ):
        yield f"{name} of {shared_batch['capacity']} rows has members at rows {rows}"
    missing = sum(int(place["previous"]) == 0 for place in places)
    if (len(rows), missing) != (shared_batch["samples"], shared_batch["missing"]):
        yield f"{name} has {len(rows)} places taken, {missing} members missing"
        yield f"{name} says {shared_batch}"
    if run["resource"] == NONE or run["resource"] != tables.paths[slot, 0]:
        yield f"{name} runs on {run['resource']}, its path is {tables.paths[slot, 0]}"
    if run["start_us"] < shared_batch["arrival_us"]:
        yield f"{name} starts at {run['start_us']}, a member comes at {shared_batch['arrival_us']}"
    for m, place, batch in zip(members, places, batches, strict=True):
        path = tables.paths[batch, m // KINDS % hops]
        if place["shared_batch"] != slot or place["resource"] != NONE or path != run["resource"]:
            yield f"{name} chains {place} of batch slot {batch}, which comes by vGPU {path}"
        if tables.batches[batch]["number"] == NONE:
            yield f"{name} has a member in batch slot {batch}, which is free"


def _free_slots(tables: Tables) -> Iterator[str]:
    """Every slot is in use or in the list of free ones."""
    counts = tables.counts[0]
    for name, records, mark, link in (
        ("batch", tables.batches, "number", "next_free"),
        ("request", tables.requests, "sequence", "next"),
        ("job", unpack(tables.job_memory).jobs, "state", "next"),
    ):
        free = _chain(records, counts[f"free_{name}"], link)
        is_free = records[mark] == NONE
        unused = int(is_free.sum())
        if len(free) != unused or not is_free[np.array(free, np.int64)].all():
            yield f"{unused} {name} slots are unused, {len(free)} are listed as free"


def _conservation(tables: Tables) -> Iterator[str]:
    """Requests taken in = served + dropped + waiting + in flight."""
    counts = tables.counts[0]
    waiting = int(tables.queues["requests"].sum())
    used = tables.batches["number"] != NONE
    in_flight = int(tables.batches["requests"][used].sum())
    total = int(counts["served"]) + int(counts["dropped"]) + waiting + in_flight
    if total != counts["requests"]:
        yield (
            f"{counts['requests']} requests came; {counts['served']} served, "
            f"{counts['dropped']} dropped, {waiting} waiting, {in_flight} in flight"
        )


def _jobs(tables: Tables) -> Iterator[str]:
    """A job counts what is open of it, its tasks are its own, and no live one waits for nothing."""
    known, counts = unpack(tables.job_memory), tables.counts[0]
    rows = known.jobs
    requests = tables.requests
    for slot in np.flatnonzero(rows["state"] != NONE).tolist():
        job, name = rows[slot], f"job {rows[slot]['id']}"
        mine = np.flatnonzero((requests["sequence"] != NONE) & (requests["job"] == slot)).tolist()
        chain: list[int] = []
        task = int(job["first_task"])
        while task != NONE and len(chain) <= len(requests):
            chain.append(task)
            task = int(known.tasks[task, TASK_NEXT])
        if sorted(chain) != mine or len(mine) != job["open"]:
            yield f"{name} counts {job['open']} tasks, chains {chain}, owns {mine}"
        if job["state"] != LIVE:
            if any(requests[task]["batch"] == NONE for task in mine):
                yield f"{name} has ended, but a task of it waits"
            if not mine:
                yield f"{name} has ended and nothing of it is left"
        else:
            yield from _parts(tables, known, slot, mine)
    live = int((rows["state"] == LIVE).sum())
    if live + counts["jobs_done"] + counts["jobs_dropped"] != counts["jobs"]:
        yield (
            f"{counts['jobs']} jobs came; {counts['jobs_done']} done, "
            f"{counts['jobs_dropped']} dropped, {live} in hand"
        )
    if counts["unsettled"] or tables.queues["touched"].any():
        yield "a queue that was touched was left as it is"


def _counters(tables: Tables) -> Iterator[str]:
    """A counter that kernels loop by is the sum of the flags that it counts."""
    topology, counts, heaps = tables.topology, tables.counts[0], tables.heaps
    known = unpack(tables.job_memory)
    touched, late = tables.queues["touched"] == 1, topology.queues["late"] == 1
    listed = _listed(counts, known)
    pipelines, timers = len(tables.candidates), len(tables.candidates) + len(topology.pools)
    yield from _differences(
        counts,
        {
            "touched_late": (touched & late).sum(),
            "unsettled": touched.sum() + len(listed),
            "timers": (heaps["place"][:timers] != NONE).sum(),
            "early": (topology.queues["late"] == 0).sum(),
            "boards": topology.pipelines["boards"].max(initial=0),
        },
        "the tables",
    )
    jobs = np.array(listed, np.int64) // max(1, known.parts.shape[1])
    for slot in np.flatnonzero(known.jobs["state"] != NONE).tolist():
        counted = {"listed": (jobs == slot).sum()}
        yield from _differences(known.jobs[slot], counted, f"job slot {slot}")
    ready = heaps["place"][timers : timers + pipelines] != NONE
    waiting = tables.candidates["state"] == WAITING
    for pool in range(len(topology.pools)):
        mine = topology.pipelines["pool"] == pool
        counted = {"ready_count": (ready & mine).sum(), "waiting_count": (waiting & mine).sum()}
        yield from _differences(heaps[pool], counted, f"pool {pool}")


def _differences(row: Record, counted: Mapping[str, int], owner: str) -> Iterator[str]:
    for name, number in counted.items():
        if row[name] != number:
            yield f"{owner} say {row[name]} for {name}, counted are {number}"


def _listed(counts: Record, known: JobTables) -> list[int]:
    """Parts in the list of those to be looked at, numbered through all jobs."""
    return _chain(known.parts.reshape(-1), counts["first_listed"])


def _parts(tables: Tables, known: JobTables, slot: int, mine: list[int]) -> Iterator[str]:
    """Modules of a live job whose tasks are in the request slots `mine`."""
    requests, job = tables.requests, known.jobs[slot]
    name = f"job {job['id']}"
    modules = int(known.modules[job["first_module"]]["modules"])
    parts = known.parts[slot, :modules]
    if not mine and not (parts["state"] == READY).any():
        yield f"{name} lives, and no task of it is open"
    if (parts["state"] != CLOSED).sum() != job["modules_left"]:
        yield f"{name} counts {job['modules_left']} modules left, its parts say {parts['state']}"
    for place, part in enumerate(parts):
        own = [task for task in mine if known.tasks[task, TASK_MODULE] == place]
        rows_open = sum(int(requests[task]["samples"]) for task in own)
        if len(own) != part["open"] or rows_open > part["cut"]:
            yield f"{name}, module {place}: {part['open']} tasks open, it has {own}"
        if part["skipped"] == NONE and part["state"] == OPEN and not own:
            yield f"{name}, module {place} is open without a task"
