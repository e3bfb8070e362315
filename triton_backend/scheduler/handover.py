"""From one plan's tables to the next.

A waiting request keeps its place, what is in flight ends as reserved. Requests that wait go to the
queue of the same model and entry in the new plan. Batches in flight go on as *former batches*: they
keep number, slot, path and every reserved instant, and what they use is counted in the new tables:

    old resource                              new resource
    vGPU that both plans have            -->  that vGPU, under its new number
    link of a node that both plans use   -->  that link
    anything else a former batch uses     -->  one past the new plan's own, until the next change

Shared batches go on as former batches too: their members keep their rows, no batch boards any more.
Jobs go on where the new plan has an application of the same name and the same modules (other mean
rows are no difference); others are dropped, and their tasks leave the old tables. So new batches
and former batches never meet on a vGPU or a link. Requests of a model that the new plan does not
have end as former batches too; where one comes back, because its batch was lost, it joins the queue
of orphans (`topology.with_orphans`) and is dropped. A second change before the former batches of
the first have ended does the same once more.

Not here: when a plan changes, which vGPUs go on (`contract.transition`), what is decided then.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from triton_backend.contract.applications import ApplicationPlan
from triton_backend.contract.decisions import DropReason
from triton_backend.contract.entries import covering
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan, slot_table
from triton_backend.scheduler.compiled import NONE, Integers, Records
from triton_backend.scheduler.jobs import end_job
from triton_backend.scheduler.plan_rows import edge_rows, module_rows, with_orphans
from triton_backend.scheduler.tables import (
    KINDS,
    LIVE,
    TASK_MODULE,
    Tables,
    new_tables,
    pack,
    unpack,
)
from triton_backend.scheduler.topology import Lead, Topology, first_low, resource_count

Link = tuple[str, str]  # "uplink" or "downlink", and the node's name
SIDES = ("uplink", "downlink")


class LeftOut(NamedTuple):
    """A request the new plan cannot serve: its slot in the old tables, and why."""

    slot: int
    reason: DropReason


class Earlier(NamedTuple):
    """The remains of an earlier plan.

    [its vGPU] the resource now or NONE, and its last batch + 1.
    """

    vgpus: Integers
    end_batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbering:
    """The meaning of resource numbers in the tables.

    Attributes:
        plan: in force.
        number: plans before it in this scheduler's life.
        links: resources of shared links, those included that only former batches use.
        earlier: by number of a plan, as long as batches of it (or of an older one) are in flight.
    """

    plan: Plan
    number: int
    links: Mapping[Link, int]
    earlier: Mapping[int, Earlier]

    def resource_of(self, vgpu: int, plan: int | None = None) -> int | None:
        """The resource of a vGPU of plan number `plan` (None: in force); None where none is left.

        Raises:
            InputError: there is no such plan or vGPU.
        """
        if plan is not None and not 0 <= plan <= self.number:
            raise InputError(f"plan number {plan}", f"the one in force is number {self.number}")
        earlier = None if plan is None else self.earlier.get(plan)
        if plan in (None, self.number):
            vgpus = sum(pool.vgpus for pool in self.plan.pools)
        elif earlier is None:
            return None
        else:
            vgpus = len(earlier.vgpus)
        if not 0 <= vgpu < vgpus:
            raise InputError(f"vGPU {vgpu}", f"the plan has {vgpus}")
        resource = vgpu if earlier is None else int(earlier.vgpus[vgpu])
        return None if resource == NONE else resource


class HandOver(NamedTuple):
    """The mapping of one plan's tables.

    Attributes:
        tables: of the new plan, with all that goes on.
        numbering: of those tables.
        left_out: requests that waited and do not go on, by order of arrival.
        jobs_left_out: jobs that do not, by their slots.
        resources: [old resource] its new number, NONE where nothing uses it.
    """

    tables: Tables
    numbering: Numbering
    left_out: list[LeftOut]
    jobs_left_out: list[LeftOut]
    resources: Integers


def first_numbering(plan: Plan, topology: Topology, nic: str) -> Numbering:
    """Of the first plan's tables."""
    return Numbering(plan=plan, number=0, links=_links_of(plan, topology, nic), earlier={})


def matching_queues(before: Plan, after: Plan) -> list[int | None]:
    """Number in a new plan of every queue of an old one, by names of model and entry; None: gone.

    Queues are numbered as `topology` numbers them. A model without entries has one, named as
    itself, at block 0. Where an entry is gone, another one at the same block takes over
    (`contract.entries.covering`).
    """
    queues = [(model, entry) for model in after.models for entry in model.queues]
    numbers = {(model.name, entry.name): number for number, (model, entry) in enumerate(queues)}
    at_block: dict[tuple[str, int], dict[int, int]] = {}
    for number, (model, entry) in enumerate(queues):
        at_block.setdefault((model.name, entry.block), {})[number] = entry.budget_us
    found: list[int | None] = []
    for model in before.models:
        for entry in model.queues:
            number = numbers.get((model.name, entry.name))
            others = at_block.get((model.name, entry.block))
            if number is None and others:
                number = covering(others, entry.budget_us)
            found.append(number)
    return found


def check_inherited(before: Plan, after: Plan, inherited: Sequence[tuple[int, int]]) -> None:
    """Pairs of a vGPU of one plan and one of the next, none of them twice.

    Raises:
        InputError: they are not.
    """
    for side, plan in enumerate((before, after)):
        numbers = [pair[side] for pair in inherited]
        vgpus = sum(pool.vgpus for pool in plan.pools)
        where = f"plan change, inherited vGPUs of plan {plan.plan_id}"
        for number in numbers:
            if not 0 <= number < vgpus:
                raise InputError(where, f"no vGPU {number}, it has {vgpus}")
        if len(set(numbers)) < len(numbers):
            raise InputError(where, f"one is named twice in {numbers}")


def hand_over(
    old: Tables,
    before: Numbering,
    new: tuple[Plan, Topology],
    inherited: Sequence[tuple[int, int]],
    nic: str = "shared",
) -> HandOver:
    """Move all that waits and all that is in flight into the tables of a new plan.

    Args:
        old: tables of the old plan; only jobs that do not go on leave them.
        before: their numbering.
        new: the new plan and its arrays.
        inherited: old and new number of every vGPU that goes on.
        nic: "shared" or "isolated" links.
    """
    plan, topology = new
    rows = module_rows(plan, topology), edge_rows(plan)
    modules, jobs_left_out = _leave_out_jobs(old, before.plan, plan, topology, rows[0])
    flying = np.flatnonzero(old.batches["number"] != NONE)
    links = _links_of(plan, topology, nic)
    to = _continued(old, before, topology, links, inherited)
    used = _used_by(old, flying)
    others = used[to[used] == NONE]
    to[others] = np.arange(len(others)) + resource_count(topology)
    queues = _queue_numbers(old, before.plan, plan)
    if (queues[_queues_in_flight(old) % len(queues)] == NONE).any():
        topology = with_orphans(topology)
    # where batches board shared ones low requests join the others, as those that come do
    boards = topology.pipelines["boards"].max(initial=0) > 0
    low = np.where(queues == NONE, NONE, queues + (0 if boards else first_low(topology)))
    queues = np.concatenate([queues, low])
    counts = old.counts[0]
    tables = new_tables(
        topology,
        Lead(int(counts["lead_us"]), int(counts["lead_us_per_sample"])),
        rows,
        batches=len(old.batches),
        requests=len(old.requests),
        hops=int(old.batches["stages"][flying].max(initial=0)) + 1,
        others=len(others),
    )
    free_job = int(tables.counts[0]["free_job"])
    own = {name: tables.counts[0][name] for name in ("early", "boards")}
    tables.counts[0] = counts
    for name, number in own.items():
        tables.counts[0][name] = number
    for name in ("out", "paused", "timers", "unsettled", "touched_late"):
        tables.counts[0][name] = 0
    if len(old.job_memory):
        tables = _with_jobs(old, tables, modules)
    else:
        tables.counts[0]["free_job"] = free_job
    left_out = _move_requests(old, tables, queues)
    _move_turns(old, tables, queues, to)
    _move_batches(old, tables, flying, to)
    goes_on = to != NONE
    tables.resources["idle_us"][to[goes_on]] = old.resources["idle_us"][goes_on]
    return HandOver(tables, _renumbered(old, before, plan, links, to), left_out, jobs_left_out, to)


def _links_of(plan: Plan, topology: Topology, nic: str) -> dict[Link, int]:
    """Resources of a plan's shared links; isolated ones belong to pipelines and have no names."""
    if nic == "isolated":
        return {}
    tables = [slot_table(pool.placement) for pool in plan.pools]
    if not tables:
        return {}
    nodes, first_vgpus = np.unique(np.concatenate(tables)[:, 0], return_index=True)
    return {
        (side, plan.cluster.node_name(node)): number
        for side in SIDES
        for node, number in zip(
            nodes.tolist(), topology.vgpus[side][first_vgpus].tolist(), strict=True
        )
    }


def _continued(
    old: Tables,
    before: Numbering,
    topology: Topology,
    links: Mapping[Link, int],
    inherited: Sequence[tuple[int, int]],
) -> Integers:
    """[old resource] the new plan's own resource that it goes on as, NONE where there is none.

    No two go on as one: what was reserved side by side would overlap. An isolated link goes on with
    the first vGPU inherited that uses it.
    """
    to = np.full(len(old.resources), NONE, dtype=np.int64)
    for link, number in before.links.items():
        to[number] = links.get(link, NONE)
    pairs = np.asarray(inherited, dtype=np.int64).reshape(-1, 2)
    to[pairs[:, 0]] = pairs[:, 1]
    if links:
        return to
    taken: set[int] = set()
    for side in SIDES:
        mine, theirs = old.topology.vgpus[side].tolist(), topology.vgpus[side].tolist()
        for one, other in inherited:
            was, now = mine[one], theirs[other]
            if to[was] == NONE and now not in taken:
                to[was] = now
                taken.add(now)
    return to


def _used_by(tables: Tables, flying: Integers) -> Integers:
    """Resources that batches in flight have reserved or run on, by number."""
    hops = tables.offers.shape[1]
    reserved = tables.intervals["resource"].reshape(-1, hops, KINDS)[flying]
    used = np.unique(np.concatenate([reserved.ravel(), _paths(tables, flying).ravel()]))
    return used[used != NONE]


def _paths(tables: Tables, flying: Integers) -> Integers:
    """Paths of batches in flight; what an earlier batch left behind their ends is NONE."""
    hops = np.arange(tables.paths.shape[1])
    ends = tables.batches["stages"][flying]
    return np.where(hops < ends[:, np.newaxis], tables.paths[flying], NONE)


def _queue_numbers(old: Tables, before: Plan, after: Plan) -> Integers:
    """[old queue, without low ones] its new number, NONE where it is gone, as orphans' is."""
    numbers = np.full(first_low(old.topology), NONE, dtype=np.int64)
    for queue, number in enumerate(matching_queues(before, after)):
        numbers[queue] = NONE if number is None else number
    return numbers


def _queues_in_flight(tables: Tables) -> Integers:
    """Queues that requests in flight came by."""
    rows = tables.requests
    return rows["queue"][(rows["sequence"] != NONE) & (rows["batch"] != NONE)]


def _leave_out_jobs(
    old: Tables, before: Plan, after: Plan, topology: Topology, then: Records
) -> tuple[Integers, list[LeftOut]]:
    """[old module] its new number, NONE where it has none.

    Jobs that do not go on, which have left.
    """
    known = unpack(old.job_memory)
    rows = known.modules
    places = [row["place"] == 0 for row in then]
    begins = dict(zip((a.name for a in after.applications), np.flatnonzero(places), strict=True))
    shapes = {planned.name: _shape(planned) for planned in after.applications}
    numbers = np.full(len(rows), NONE, dtype=np.int64)
    for n, planned in enumerate(before.applications):
        if shapes.get(planned.name) == _shape(planned):
            mine = np.flatnonzero(rows["application"] == n)
            numbers[mine] = begins[planned.name] + np.arange(len(mine))
    left_out: list[LeftOut] = []
    for slot in np.flatnonzero(known.jobs["state"] == LIVE).tolist():
        first = numbers[known.jobs[slot]["first_module"]]
        tasks = np.flatnonzero((old.requests["job"] == slot) & (old.requests["sequence"] != NONE))
        tasks = tasks[old.requests["batch"][tasks] == NONE]
        queues = then["queue"][first + known.tasks[tasks, TASK_MODULE]] if first != NONE else tasks
        if first == NONE:
            left_out.append(LeftOut(slot, DropReason.MODEL_REMOVED))
        elif (old.requests["samples"][tasks] > topology.queues["largest"][queues]).any():
            left_out.append(LeftOut(slot, DropReason.TOO_LARGE))
    for slot, _ in left_out:
        end_job(old, slot)
    return numbers, left_out


def _shape(planned: ApplicationPlan) -> object:
    """The key that must stay the same for a job to go on.

    Not how many rows are foreseen, where requests have their own: but which modules run as many as
        which.
    """
    application = planned.application
    modules = application.modules
    # Sizes have the rows that clients send, and never as many as another module.
    rows = [m.name if m.size_of else (m.rows_per_request, m.max_rows) for m in modules]
    as_many = [[one == other for other in rows] for one in rows]
    kept = [
        (replace(m, batch_building_rate_rps=None, rows_per_request=1.0), None)
        if application.rows_vary(m)
        else (replace(m, batch_building_rate_rps=None), m.rows_per_request)
        for m in modules
    ]
    return kept, as_many, application.outputs


def _with_jobs(old: Tables, new: Tables, modules: Integers) -> Tables:
    """All jobs at the same slots; parts and tasks are as wide as the wider plan needs."""
    before, after = unpack(old.job_memory), unpack(new.job_memory)
    jobs = before.jobs.copy()
    if len(modules):
        jobs["first_module"] = np.clip(modules[jobs["first_module"]], 0, None)
    else:
        jobs["first_module"] = 0  # none is live
    width = max(before.parts.shape[1], after.parts.shape[1])
    parts = np.zeros((len(jobs), width), dtype=before.parts.dtype)
    parts[:, : before.parts.shape[1]] = before.parts
    columns = max(before.tasks.shape[1], after.tasks.shape[1])
    tasks = np.full((len(old.requests), columns), NONE, dtype=np.int64)
    tasks[:, : before.tasks.shape[1]] = before.tasks
    kept = after._replace(jobs=jobs, parts=parts, tasks=tasks)
    return new._replace(job_memory=pack(kept))


def _move_requests(old: Tables, new: Tables, queues: Integers) -> list[LeftOut]:
    """Copy all requests to the same slots, under their new queues; chain those that wait."""
    rows = new.requests
    rows[:] = old.requests
    here = rows["sequence"] != NONE
    waits = here & (rows["batch"] == NONE)
    goes_to = np.full(len(rows), NONE, dtype=np.int64)
    goes_to[here] = queues[rows["queue"][here]]
    known = unpack(new.job_memory)
    for task in np.flatnonzero(here & (rows["job"] != NONE)):
        job = known.jobs[rows["job"][task]]
        if job["state"] == LIVE:
            module = job["first_module"] + known.tasks[task, TASK_MODULE]
            goes_to[task] = known.modules[module]["queue"]
    removed = waits & (goes_to == NONE)
    too_large = waits & ~removed & (rows["samples"] > new.topology.queues["largest"][goes_to])
    orphans = first_low(new.topology) - 1  # where a batch in flight has any
    rows["queue"][here] = np.where(goes_to == NONE, orphans, goes_to)[here]

    left = np.flatnonzero(removed | too_large)
    left = left[np.argsort(rows["sequence"][left])]
    rows["sequence"][left] = NONE
    rows["next"][left] = [*left[1:], new.counts[0]["free_request"]][: len(left)]
    if len(left):
        new.counts[0]["free_request"] = left[0]
        new.counts[0]["dropped"] += len(left)

    stay = np.flatnonzero(waits & ~removed & ~too_large)
    keys = (rows["sequence"][stay], rows["deadline_us"][stay], rows["queue"][stay])
    stay = stay[np.lexsort(keys)]
    _chain(rows, stay, rows["queue"][stay], new.queues)
    np.add.at(new.queues["requests"], rows["queue"][stay], 1)
    np.add.at(new.queues["samples"], rows["queue"][stay], rows["samples"][stay])
    reasons = (DropReason.MODEL_REMOVED, DropReason.TOO_LARGE)
    return [LeftOut(slot, reasons[int(too_large[slot])]) for slot in left.tolist()]


def _move_turns(old: Tables, new: Tables, queues: Integers, to: Integers) -> None:
    """A queue's pipeline on a pool that stays, known by its first vGPU, keeps its last turn."""
    pools = old.topology.pools["first_vgpu"][old.topology.pipelines["pool"]]
    rows = zip(queues[old.topology.pipelines["queue"]].tolist(), to[pools].tolist(), strict=True)
    turns = dict(zip(rows, old.candidates["served"].tolist(), strict=True))
    pools = new.topology.pools["first_vgpu"][new.topology.pipelines["pool"]]
    rows = zip(new.topology.pipelines["queue"].tolist(), pools.tolist(), strict=True)
    new.candidates["served"] = [turns.get(row, NONE) for row in rows]


def _move_batches(old: Tables, new: Tables, flying: Integers, to: Integers) -> None:
    """Copy batches in flight to the same slots; map reservations and paths to new resources."""
    new.batches[:] = old.batches
    new.batches["pipeline"][flying] = NONE
    before, after = old.offers.shape[1], new.offers.shape[1]
    hops = min(before, after)
    source = old.intervals.reshape(-1, before, KINDS)
    target = new.intervals.reshape(-1, after, KINDS)
    target[flying, :hops] = source[flying, :hops]
    reserved = np.flatnonzero(new.intervals["resource"] != NONE)
    resources = to[new.intervals["resource"][reserved]]
    new.intervals["resource"][reserved] = resources
    order = np.lexsort((new.intervals["start_us"][reserved], resources))
    _chain(new.intervals, reserved[order], resources[order], new.resources)
    for records, link, rows in (
        (new.intervals, "next", np.flatnonzero(new.intervals["shared_batch"] != NONE)),
        (new.batches, "aboard", flying[old.batches["capacity"][flying] > 0]),
    ):
        at = records[link][rows]
        moved = at // (before * KINDS) * (after * KINDS) + at % (before * KINDS)
        records[link][rows] = np.where(at == NONE, NONE, moved)
    new.batches["pool"][flying] = NONE  # a shared batch goes on with its members
    paths = _paths(old, flying)[:, :hops]
    new.paths[flying, :hops] = np.where(paths == NONE, NONE, to[paths])


def _chain(records: Records, order: Integers, groups: Integers, owners: Records) -> None:
    """Link rows in the order given, those of one group among each other; groups stand together."""
    if not len(order):
        return
    ends = np.append(groups[1:] != groups[:-1], values=True)
    begins = np.append(True, ends[:-1])
    records["previous"][order] = np.where(begins, NONE, np.roll(order, 1))
    records["next"][order] = np.where(ends, NONE, np.roll(order, -1))
    owners["first"][groups[begins]] = order[begins]
    owners["last"][groups[ends]] = order[ends]


def _renumbered(
    old: Tables, before: Numbering, plan: Plan, links: Mapping[Link, int], to: Integers
) -> Numbering:
    """The numbering after a change that put every resource where `to` says."""
    numbers = old.batches["number"]
    oldest = min(numbers[numbers != NONE].tolist(), default=int(old.counts[0]["batches"]))
    own = np.arange(len(old.topology.vgpus))
    known = {**before.earlier, before.number: Earlier(own, int(old.counts[0]["batches"]))}
    return Numbering(
        plan=plan,
        number=before.number + 1,
        links={name: int(to[link]) for name, link in before.links.items() if to[link] != NONE}
        | dict(links),
        earlier={
            number: earlier._replace(vgpus=np.where(earlier.vgpus == NONE, NONE, to[earlier.vgpus]))
            for number, earlier in known.items()
            if oldest < earlier.end_batch
        },
    )
