"""Requests as the lines of the gateway's event files tell of them.

Here: which line belongs to which request, and for how long a request is remembered. Not here: files
(`reading`), spans (`spans`).
"""

import json
import re
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from triton_backend.contract.decisions import DropReason
from triton_backend.contract.plan import Plan
from triton_backend.contract.units import US_PER_S

# A front numbers its requests in so many bits; in event files its own number stands above them.
LOCALS = 1 << 40
KEPT_US = 10 * US_PER_S  # after its end: the front's line of a request is there by then
GIVE_UP_US = 600 * US_PER_S  # after its deadline: its end is in no file
FORGET_LINES = 4096
SERVED, FAILED, LOST = "served", "failed", "lost"

_KINDS = (
    "Plan Arrival JobArrival Dispatch StageDone TransferDone SharedBatch SharedBatchDone Drop Abort"
    " TaskReady ModuleSkipped JobDone JobDropped"
)
_KIND = re.compile(rb'\{"t": ?"(%s)"' % _KINDS.replace(" ", "|").encode())
_NOW = re.compile(rb'"now_us": ?(\d+)')

Key = tuple[str, int]
"""Name of a model or application, and the number that its front gave a request."""


class Header(NamedTuple):
    """The plan that the lines after it belong to, and the wall clock at the host's instant 0."""

    plan_id: str
    generation: int
    boot_wall_us: int


class Place(NamedTuple):
    """The vGPU of a stage, in the words of its plan."""

    node: str
    gpu: int
    slot: int
    pool: str
    gpu_class: str


@dataclass(slots=True, eq=False, kw_only=True)
class Batch:
    """A batch on its way.

    Attributes:
        stages: by number, begin and end in µs, and the shared batch if it ran with other batches.
        links: by the stage that a transfer led to, begin and end in µs.
    """

    number: int
    model: str
    pipeline: int
    samples: int
    dispatched_us: int
    places: tuple[Place, ...]
    stages: dict[int, tuple[int, int, int | None]] = field(
        default_factory=dict[int, tuple[int, int, int | None]]
    )
    links: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])
    aborted_us: int | None = None


@dataclass(slots=True, eq=False)
class Queued:
    """One place in a queue: a request, or a piece of a module of a job."""

    arrival_us: int
    samples: int
    batches: list[Batch] = field(default_factory=list[Batch])


@dataclass(slots=True, eq=False, kw_only=True)
class Request:
    """A client's request.

    Attributes:
        arrival_us: when the scheduler had it.
        work: its place in the queue under no name; of a job, its pieces by module.
        skipped: modules that did not run: when, and why.
        end_us: of its last stage, or when it was dropped; 0 before.
        outcome: `served`, `failed`, the reason of a drop, or `lost` with a gateway.
        traced: true once a trace of it was made.
        numbers: the scheduler's, its own and those of its pieces.
    """

    key: Key
    header: Header
    arrival_us: int
    deadline_us: int
    samples: int
    work: dict[str, list[Queued]] = field(default_factory=dict[str, list[Queued]])
    skipped: dict[str, tuple[int, str]] = field(default_factory=dict[str, tuple[int, str]])
    end_us: int = 0
    outcome: str = ""
    traced: bool = False
    numbers: list[int] = field(default_factory=list[int])


class History:
    """Requests that are under way or ended a short while ago, over the lives of gateways.

    Attributes:
        skipped: lines that could not be used: torn ones, and those of an unknown plan.
        now_us: the instant of the last event.
    """

    def __init__(self, find_plan: Callable[[Header], Plan | None]) -> None:
        self._find_plan = find_plan
        self._plan: Plan | None = None
        self._places: tuple[Place, ...] = ()
        self.header = Header("", 0, 0)
        self.now_us = 0
        self.skipped = 0
        self._lines = 0
        # Of this life of the scheduler, by its own numbers.
        self._open: dict[int, Request] = {}
        self._queued: dict[int, Queued] = {}
        self._batches: dict[int, tuple[Batch, list[int]]] = {}
        self._shared_batches: dict[int, list[list[int]]] = {}
        self._done: deque[tuple[int, int]] = deque()  # batches, and when they were
        # Of all.
        self._by_key: dict[Key, list[Request]] = {}
        self._ended: deque[Request] = deque()
        self.settled: list[Request] = []
        self._takes: Mapping[str, Callable[[Mapping[str, Any], Plan], None]] = {
            "Arrival": self._arrival,
            "JobArrival": self._job_arrival,
            "Dispatch": self._dispatch,
            "StageDone": self._stage_done,
            "TransferDone": self._transfer_done,
            "SharedBatch": self._shared_batch,
            "SharedBatchDone": self._shared_batch_done,
            "Drop": self._dropped,
            "Abort": self._abort,
            "TaskReady": self._task,
            "ModuleSkipped": self._skipped,
            "JobDone": self._job_done,
            "JobDropped": self._job_dropped,
        }

    def begin(self, header: Header) -> None:
        """Lines of a life follow; the header holds until they bring one."""
        self.header = header
        self._plan = self._find_plan(header)
        self._places = () if self._plan is None else _places(self._plan)
        self._new_life()

    def requests(self, key: Key, *, from_us: int, to_us: int) -> list[Request]:
        """All that is known of a request that a front held from one instant to another.

        More than one where a scheduler died meanwhile: its successor heard of it again.
        """
        found = self._by_key.get(key, ())
        return [request for request in found if from_us <= request.arrival_us <= to_us]

    @property
    def kept(self) -> int:
        """Requests that are remembered."""
        return sum(map(len, self._by_key.values()))

    def take(self, line: bytes) -> None:
        """One whole line of an event file."""
        if not _KIND.match(line):
            now = _NOW.search(line) if line.startswith(b'{"t":') else None
            if now is not None:
                self.now_us = int(now[1])
            elif not line.startswith(b'{"t":'):
                self.skipped += 1
            return
        try:
            self._take(json.loads(line))
        except (ValueError, LookupError, TypeError, AttributeError):
            self.skipped += 1  # torn by a crash
        self._lines += 1
        if self._lines % FORGET_LINES == 0:
            self.forget()

    def forget(self, *, everything: bool = False) -> None:
        """Move requests that ended long enough ago to `settled`, where they are taken out."""
        before_us = self.now_us if everything else self.now_us - KEPT_US
        while self._ended and (everything or not before_us < self._ended[0].end_us <= self.now_us):
            request = self._ended.popleft()
            self._leave(request)
            self.settled.append(request)
        while self._done and not before_us < self._done[0][0] <= self.now_us:
            self._batches.pop(self._done.popleft()[1], None)
        for request in list(self._open.values()):  # the oldest first
            if request.deadline_us + GIVE_UP_US > self.now_us:
                break
            self._end(request, self.now_us, LOST)

    def _leave(self, request: Request) -> None:
        same = self._by_key[request.key]
        same.remove(request)
        if not same:
            del self._by_key[request.key]

    def _take(self, item: Mapping[str, Any]) -> None:
        self.now_us = item.get("now_us", self.now_us)
        kind = item["t"]
        if kind == "Plan":
            self._header(item)
        elif self._plan is None:
            self.skipped += 1
        else:
            self._takes[kind](item, self._plan)

    def _header(self, item: Mapping[str, Any]) -> None:
        wall_us = item["wall_us"] - item["now_us"]
        self.header = Header(item["plan_id"], item["generation"], wall_us)
        self._plan = self._find_plan(self.header)
        self._places = () if self._plan is None else _places(self._plan)
        if not item["rollout"]:
            self._new_life()

    def _new_life(self) -> None:
        """A new scheduler begins: numbers of requests and batches are its own."""
        for request in list(self._open.values()):
            self._end(request, self.now_us, LOST)
        for numbers in (self._batches, self._shared_batches, self._done):
            numbers.clear()

    # Kinds of lines

    def _arrival(self, item: Mapping[str, Any], plan: Plan) -> None:
        number = item["request_id"]
        if number in self._queued:
            return
        request = self._request(number, plan.models[item["model"]].name, item)
        self._queued[number] = queued = Queued(item["now_us"], item["samples"])
        request.work.setdefault("", []).append(queued)

    def _job_arrival(self, item: Mapping[str, Any], plan: Plan) -> None:
        self._request(item["job_id"], plan.applications[item["application"]].name, item)

    def _request(self, number: int, name: str, item: Mapping[str, Any]) -> Request:
        """A request arrived, or one that was begun again."""
        known = self._open.get(number)
        if known is not None:
            return known
        request = Request(
            key=(name, number % LOCALS),
            header=self.header,
            arrival_us=item["now_us"],
            deadline_us=item["deadline_us"],
            samples=item["samples"],
        )
        self._open[number] = request
        request.numbers.append(number)
        self._by_key.setdefault(request.key, []).append(request)
        return request

    def _dispatch(self, item: Mapping[str, Any], plan: Plan) -> None:
        batch = Batch(
            number=item["batch_id"],
            model=plan.models[item["model"]].name,
            pipeline=item["pipeline"],
            samples=item["samples"],
            dispatched_us=self.now_us,
            places=tuple(self._places[hop["vgpu"]] for hop in item["hops"]),
        )
        self._batches[batch.number] = batch, item["request_ids"]
        for number in item["request_ids"]:
            if number in self._queued:
                self._queued[number].batches.append(batch)

    def _stage_done(
        self, item: Mapping[str, Any], _plan: Plan, shared_batch: int | None = None
    ) -> None:
        known = self._batches.get(item["batch_id"])
        if known is None:
            return
        batch, numbers = known
        batch.stages[item["stage"]] = item["start_us"], item["end_us"], shared_batch
        if item["stage"] < len(batch.places) - 1:
            return
        self._done.append((self.now_us, batch.number))
        outcome = SERVED if item["end_us"] > item["start_us"] else FAILED
        for number in numbers:
            request = self._open.get(number)
            if request is not None:  # a piece of a job is none
                self._end(request, item["end_us"], outcome)

    def _transfer_done(self, item: Mapping[str, Any], _plan: Plan) -> None:
        known = self._batches.get(item["batch_id"])
        if known is not None:
            known[0].links[item["stage"]] = item["start_us"], item["end_us"]

    def _shared_batch(self, item: Mapping[str, Any], _plan: Plan) -> None:
        self._shared_batches[item["shared_batch_id"]] = item["members"]

    def _shared_batch_done(self, item: Mapping[str, Any], plan: Plan) -> None:
        shared_batch = item["shared_batch_id"]
        for number, stage, *_ in self._shared_batches.pop(shared_batch, []):
            self._stage_done({**item, "batch_id": number, "stage": stage}, plan, shared_batch)

    def _abort(self, item: Mapping[str, Any], _plan: Plan) -> None:
        known = self._batches.pop(item["batch_id"], None)
        if known is not None:
            known[0].aborted_us = self.now_us

    def _dropped(self, item: Mapping[str, Any], _plan: Plan) -> None:
        request = self._open.get(item["request_id"])
        if request is not None:
            self._end(request, self.now_us, item["reason"])

    def _task(self, item: Mapping[str, Any], plan: Plan) -> None:
        job = self._open.get(item["job_id"])
        if job is not None:
            piece = Queued(self.now_us, item["rows"])
            job.work.setdefault(_module(plan, job, item["module"]), []).append(piece)
            job.numbers.append(item["request_id"])
            self._queued[item["request_id"]] = piece

    def _skipped(self, item: Mapping[str, Any], plan: Plan) -> None:
        job = self._open.get(item["job_id"])
        if job is not None:
            reason = item["reason"] or "no rows"
            job.skipped[_module(plan, job, item["module"])] = self.now_us, reason

    def _job_done(self, item: Mapping[str, Any], _plan: Plan) -> None:
        job = self._open.get(item["job_id"])
        if job is not None:
            self._end(job, self.now_us, SERVED)

    def _job_dropped(self, item: Mapping[str, Any], _plan: Plan) -> None:
        job = self._open.get(item["job_id"])
        if job is not None and item["reason"] != DropReason.BEGUN_ANEW.text:
            self._end(job, self.now_us, item["reason"])

    def _end(self, request: Request, at_us: int, outcome: str) -> None:
        request.end_us, request.outcome = at_us, outcome
        self._ended.append(request)
        for number in request.numbers:
            self._open.pop(number, None)
            self._queued.pop(number, None)


def _places(plan: Plan) -> tuple[Place, ...]:
    """The vGPUs of a plan by number."""
    pools = plan.pools
    return tuple(
        Place(
            plan.cluster.node_name(vgpu.slot.node),
            vgpu.slot.gpu,
            vgpu.slot.slot,
            pools[vgpu.pool].name,
            pools[vgpu.pool].gpu_class,
        )
        for vgpu in plan.vgpus()
    )


def _module(plan: Plan, job: Request, number: int) -> str:
    """The name of a module of a job's application."""
    name = job.key[0]
    (application,) = (one.application for one in plan.applications if one.name == name)
    return application.modules[number].name
