"""Jobs: requests of applications, as tasks that queues treat like requests.

    part of a module:

    AWAITS --its last parent closed--> READY --its rows are tasks--> OPEN
                                         |                             |
                 no rows, or skipped ----+----> ENDED <--its last task-+
                                                  |
                                                  +--next ones released--> CLOSED

What is READY or ENDED stands in one list, first in, first out. `release` works it off, which is the
only place where tasks are made and modules end; it stops where slots or rows of `out` are short and
goes on later. What ends in batches, or is dropped by a policy, only joins the list.

    job:   free --new_job--> LIVE --all parts closed--> OVER --its last task--> free
                               '----a task dropped----> DEAD --its last task--> free

A queue that was given tasks, or lost some, is *touched*: the caller settles it. Here: what
becomes of jobs. Not here: what is decided for queues (`policies`), plans that change (`handover`).
"""

from triton_backend.contract.decisions import FIRST_TASK
from triton_backend.scheduler.compiled import FAR, NONE, inlined, kernel
from triton_backend.scheduler.queues import (
    drop,
    enqueue,
    free_request,
    measure_gap,
    new_request,
    remove,
)
from triton_backend.scheduler.tables import (
    AWAITS,
    CANCELLED,
    CLOSED,
    DEAD,
    DEADLINE,
    ENDED,
    JOB_DONE,
    JOB_DROPPED,
    LIVE,
    MODULE_SKIPPED,
    NEEDS_ROOM,
    OPEN,
    OVER,
    READY,
    ROWS_DIFFER,
    SETTLED,
    SLOT_BITS,
    TASK_EMITTED,
    TASK_LIMIT,
    TASK_MODULE,
    TASK_NEXT,
    TASK_PREVIOUS,
    TASK_READY,
    TASK_ROW,
    TOO_LARGE,
    Tables,
    add_decision,
    count_time,
    jobs_of,
)
from triton_backend.scheduler.topology import pipelines_of


@kernel
def new_job(tables: Tables, job_id: int, first_module: int, deadline_us: int, samples: int) -> int:
    """A job came; a job slot must be free.

    Lists the modules that come after none; returns its slot.
    """
    known = jobs_of(tables)
    counts = tables.counts[0]
    slot = counts["free_job"]
    job = known.jobs[slot]
    counts["free_job"] = job["next"]
    counts["jobs"] += 1
    job["id"] = job_id
    job["state"] = LIVE
    job["arrival_us"] = counts["now_us"]
    job["deadline_us"] = deadline_us
    job["samples"] = samples
    job["first_module"] = first_module
    job["modules_left"] = known.modules[first_module]["modules"]
    job["open"] = job["listed"] = 0
    job["first_task"] = NONE
    too_large = False
    for place in range(known.parts.shape[1]):
        part = known.parts[slot, place]
        part["rows"] = part["cut"] = part["open"] = 0
        part["skipped"] = NONE
        part["state"] = AWAITS
    for place in range(job["modules_left"]):
        module = known.modules[first_module + place]
        part = known.parts[slot, place]
        part["parents_left"] = module["parents"]
        part["rows"] = NONE if module["rows"] == NONE else module["rows"] * samples
        if module["parents"] == 0:
            _list(tables, slot, place, READY)
            too_large |= samples > tables.topology.queues[module["queue"]]["largest"]
    if too_large:
        add_decision(tables, JOB_DROPPED, slot, TOO_LARGE, FAR, 0)
        end_job(tables, slot)
    return slot


@kernel
def cancel_job(tables: Tables, slot: int) -> None:
    """The client of a live job gave up."""
    add_decision(tables, JOB_DROPPED, slot, CANCELLED, FAR, 0)
    end_job(tables, slot)


@kernel
def release(tables: Tables) -> int:
    """Work off the list.

    Make tasks of modules that may run, release what comes after those that ended. Returns
    `NEEDS_ROOM` where it broke off: make room and call again.
    """
    known = jobs_of(tables)
    counts = tables.counts[0]
    width = known.parts.shape[1]
    while counts["first_listed"] != NONE:
        if counts["out"] == len(tables.out):
            return NEEDS_ROOM
        number = counts["first_listed"]
        slot, place = number // width, number % width
        part = known.parts[slot, place]
        if known.jobs[slot]["state"] != LIVE:
            _unlist_first(tables)
            _free_if_over(tables, slot)
        elif part["state"] == ENDED:
            _unlist_first(tables)
            _close(tables, slot, place)
        elif part["skipped"] != NONE or part["rows"] == 0:
            add_decision(tables, MODULE_SKIPPED, number, part["skipped"], FAR, 0)
            part["state"] = ENDED
        elif counts["free_request"] == NONE:
            return NEEDS_ROOM
        else:
            _new_task(tables, slot, place)
            if part["cut"] == part["rows"]:
                _unlist_first(tables)
                part["state"] = OPEN
    return SETTLED


@inlined
def _new_task(tables: Tables, slot: int, place: int) -> None:
    """The next rows of a module become a task and enter its queue, in the order of their aims."""
    known = jobs_of(tables)
    counts = tables.counts[0]
    job = known.jobs[slot]
    part = known.parts[slot, place]
    module = known.modules[job["first_module"] + place]
    has_us = job["deadline_us"] - job["arrival_us"]
    aim = job["deadline_us"] - module["tail_us"] * has_us // module["slo_us"]
    rows = min(module["piece"], part["rows"] - part["cut"])
    request_id = FIRST_TASK + (counts["tasks"] << SLOT_BITS) + counts["free_request"]
    counts["tasks"] += 1
    request = new_request(tables, module["queue"], request_id, aim, rows)
    tables.requests[request]["job"] = slot
    usual_us = min(has_us, module["slo_us"])
    usual_us -= module["tail_us"] * usual_us // module["slo_us"]
    tables.requests[request]["gather_by_us"] = job["arrival_us"] + usual_us
    task = known.tasks[request]
    task[TASK_MODULE] = place
    task[TASK_ROW] = part["cut"]
    task[TASK_LIMIT] = max(aim, job["deadline_us"] - module["least_tail_us"])
    task[TASK_NEXT] = job["first_task"]
    task[TASK_PREVIOUS] = NONE
    task[TASK_EMITTED:] = NONE
    if job["first_task"] != NONE:
        known.tasks[job["first_task"], TASK_PREVIOUS] = request
    job["first_task"] = request
    job["open"] += 1
    part["open"] += 1
    add_decision(
        tables, TASK_READY, request_id, slot * known.parts.shape[1] + place, part["cut"], rows
    )
    part["cut"] += rows
    enqueue(tables, request)
    measure_gap(tables, module["queue"], rows)
    touch(tables, module["queue"])


@inlined
def _close(tables: Tables, slot: int, place: int) -> None:
    """A module has ended: release those after it that wait for no other.

    The last one ends the job.
    """
    known = jobs_of(tables)
    job = known.jobs[slot]
    part = known.parts[slot, place]
    module = known.modules[job["first_module"] + place]
    part["state"] = CLOSED
    differ = False
    for e in range(module["first_edge"], module["end_edge"]):
        edge = known.edges[e]
        child = known.parts[slot, edge["child"]]
        after = known.modules[job["first_module"] + edge["child"]]
        if part["skipped"] != NONE:
            child["skipped"] = part["skipped"]
        elif edge["gives_rows"] == 1 and after["rows"] == NONE:
            rows = min(known.parts[slot, edge["part"]]["rows"], after["max_rows"] * job["samples"])
            if child["rows"] != NONE and child["rows"] != rows:
                child["skipped"] = ROWS_DIFFER
                differ |= after["optional"] == 0
            child["rows"] = rows
        child["parents_left"] -= 1
        if child["parents_left"] == 0:
            _list(tables, slot, edge["child"], READY)
    job["modules_left"] -= 1
    if differ:
        add_decision(tables, JOB_DROPPED, slot, ROWS_DIFFER, FAR, 0)
        end_job(tables, slot)
    elif job["modules_left"] == 0:
        add_decision(tables, JOB_DONE, job["id"], 0, FAR, 0)
        tables.counts[0]["jobs_done"] += 1
        job["state"] = OVER
        _free_if_over(tables, slot)


@kernel
def end_tasks(tables: Tables, batch: int) -> None:
    """A batch left its last stage: the tasks in it have ended.

    Their slots are the caller's to free.
    """
    known = jobs_of(tables)
    request = tables.batches[batch]["first"]
    while request != NONE:
        slot = tables.requests[request]["job"]
        if slot != NONE:
            job = known.jobs[slot]
            task = known.tasks[request]
            part = known.parts[slot, task[TASK_MODULE]]
            _leave_job(tables, request)
            if job["state"] == LIVE and part["skipped"] == NONE:
                module = known.modules[job["first_module"] + task[TASK_MODULE]]
                took_us = tables.counts[0]["now_us"] - tables.requests[request]["arrival_us"]
                count_time(module, took_us)
                for e in range(module["first_edge"], module["end_edge"]):
                    given = task[TASK_EMITTED + e - module["first_edge"]]
                    if given == NONE:
                        given = tables.requests[request]["samples"]
                    known.parts[slot, known.edges[e]["part"]]["rows"] += given
                if part["open"] == 0 and part["state"] == OPEN:
                    _list(tables, slot, task[TASK_MODULE], ENDED)
            _free_if_over(tables, slot)
        request = tables.requests[request]["next"]


@kernel
def drop_request(tables: Tables, request: int, reason: int, finish_us: int) -> None:
    """Take a queued request out for a reason; of a task, do what that means for its job.

    A task that misses its aim is not dropped: it goes back to its queue with its limit for a
    deadline.
    """
    row = tables.requests[request]
    slot = row["job"]
    if slot == NONE:
        drop(tables, request, reason, finish_us)
        return
    known = jobs_of(tables)
    task = known.tasks[request]
    if reason == DEADLINE and row["deadline_us"] < task[TASK_LIMIT]:
        remove(tables, request)
        row["gather_by_us"] += task[TASK_LIMIT] - row["deadline_us"]
        row["deadline_us"] = task[TASK_LIMIT]
        enqueue(tables, request)
        return
    drop(tables, request, reason, finish_us)
    _leave_job(tables, request)
    job = known.jobs[slot]
    place = task[TASK_MODULE]
    if known.modules[job["first_module"] + place]["optional"] == 0:
        end_job(tables, slot)
        return
    part = known.parts[slot, place]
    part["skipped"] = tables.out[tables.counts[0]["out"] - 1, 2]  # `drop` may have found another
    _take_out(tables, slot, place)
    if part["state"] == OPEN:
        _list(tables, slot, place, ENDED)
    part["state"] = ENDED


@kernel
def queue_again(tables: Tables, request: int) -> bool:
    """A task's batch was lost: it is queued again, or forgotten if it is not wanted; then False.

    What the batch emitted is forgotten too. Its slot is free where it is forgotten.
    """
    known = jobs_of(tables)
    slot = tables.requests[request]["job"]
    task = known.tasks[request]
    task[TASK_EMITTED:] = NONE
    part = known.parts[slot, task[TASK_MODULE]]
    if known.jobs[slot]["state"] == LIVE and part["skipped"] == NONE:
        return True
    _leave_job(tables, request)
    _free_if_over(tables, slot)
    tables.counts[0]["dropped"] += 1
    free_request(tables, request)
    return False


@kernel
def end_job(tables: Tables, slot: int) -> None:
    """A live job is dropped: its queued tasks leave at once, those in batches end with them."""
    known = jobs_of(tables)
    known.jobs[slot]["state"] = DEAD
    tables.counts[0]["jobs_dropped"] += 1
    _take_out(tables, slot, NONE)
    _free_if_over(tables, slot)


@inlined
def _take_out(tables: Tables, slot: int, place: int) -> None:
    """Take the queued tasks of a module (NONE: of all) out of their queues.

    A late queue's candidates may count on them: they are made too old to be sent, so that they are
    formed again, and wait no more for another pool's match to look at.
    """
    known = jobs_of(tables)
    topology = tables.topology
    request = known.jobs[slot]["first_task"]
    while request != NONE:
        following = known.tasks[request, TASK_NEXT]
        row = tables.requests[request]
        mine = place == NONE or known.tasks[request, TASK_MODULE] == place
        if mine and row["batch"] == NONE:
            remove(tables, request)
            tables.queues[row["queue"]]["timer_us"] = FAR
            for pipeline in pipelines_of(topology, row["queue"]):
                tables.candidates[pipeline]["keep_us"] = NONE
                tables.waiting_keep_us[topology.pipelines[pipeline]["place"]] = FAR
            touch(tables, row["queue"])
            _leave_job(tables, request)
            tables.counts[0]["dropped"] += 1
            free_request(tables, request)
        request = following


@inlined
def _leave_job(tables: Tables, request: int) -> None:
    """A task belongs to its job no more."""
    known = jobs_of(tables)
    slot = tables.requests[request]["job"]
    before, after = known.tasks[request, TASK_PREVIOUS], known.tasks[request, TASK_NEXT]
    if before == NONE:
        known.jobs[slot]["first_task"] = after
    else:
        known.tasks[before, TASK_NEXT] = after
    if after != NONE:
        known.tasks[after, TASK_PREVIOUS] = before
    known.jobs[slot]["open"] -= 1
    known.parts[slot, known.tasks[request, TASK_MODULE]]["open"] -= 1


@inlined
def _free_if_over(tables: Tables, slot: int) -> None:
    """Give the slot of a job back that has ended and of which nothing is left."""
    known = jobs_of(tables)
    job = known.jobs[slot]
    if job["state"] > LIVE and job["open"] == 0 and job["listed"] == 0:
        job["state"] = NONE
        job["next"] = tables.counts[0]["free_job"]
        tables.counts[0]["free_job"] = slot


@inlined
def touch(tables: Tables, queue: int) -> None:
    """A queue is to be settled."""
    if tables.queues[queue]["touched"] == 0:
        tables.queues[queue]["touched"] = 1
        tables.counts[0]["unsettled"] += 1
        tables.counts[0]["touched_late"] += tables.topology.queues[queue]["late"]


@inlined
def _list(tables: Tables, slot: int, place: int, state: int) -> None:
    """Put a part at the end of the list, in the state that says what is to be done."""
    known = jobs_of(tables)
    counts = tables.counts[0]
    width = known.parts.shape[1]
    number = slot * width + place
    known.parts[slot, place]["state"] = state
    known.parts[slot, place]["next"] = NONE
    last = counts["last_listed"]
    if last == NONE:
        counts["first_listed"] = number
    else:
        known.parts[last // width, last % width]["next"] = number
    counts["last_listed"] = number
    counts["unsettled"] += 1
    known.jobs[slot]["listed"] += 1


@inlined
def _unlist_first(tables: Tables) -> None:
    """Take the first part out of the list."""
    known = jobs_of(tables)
    counts = tables.counts[0]
    width = known.parts.shape[1]
    number = counts["first_listed"]
    counts["first_listed"] = known.parts[number // width, number % width]["next"]
    if counts["first_listed"] == NONE:
        counts["last_listed"] = NONE
    counts["unsettled"] -= 1
    known.jobs[number // width]["listed"] -= 1
