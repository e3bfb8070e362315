"""Minutes of models and vGPUs, counted line by line from the gateway's event log.

Every request counts in the minute it arrived in, under the plan in force then, whatever became of
it and whenever; so offered = served + late + dropped + failed + still open, in every minute. A
batch's stage counts in the minute it ended in. A job counts as a request of its application, and
with it how many rows each of its modules ran.

Here: which line counts where. Not here: the counts and their rows (`minute_stats`); files,
positions in them, and the warehouse (`reader`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple

from flows.operations.ingest.minute_stats import (
    EPOCH,
    MinuteStats,
    ModelCounts,
    Rows,
    VGpuFacts,
    vgpu_facts,
)
from flows.operations.ingest.neighbours import Neighbours, Run
from triton_backend.contract.decisions import DropReason
from triton_backend.contract.plan import Plan
from triton_backend.contract.units import US_PER_S

MINUTE_US = 60 * US_PER_S
# An outcome that is not logged so long after the deadline never will be.
GIVE_UP_US = 10 * MINUTE_US
REFUSED = -1  # a request that never had a number
# The beginning of a line decides if it is worth parsing.
KINDS = (
    "Arrival",
    "Dispatch",
    "StageDone",
    "SharedBatch",
    "SharedBatchDone",
    "Drop",
    "Refused",
    "Abort",
    "JobArrival",
    "TaskReady",
    "ModuleSkipped",
    "JobDone",
    "JobDropped",
    "RefusedJob",
    "Plan",
)


class Header(NamedTuple):
    """Which plan the lines after it belong to, and which wall clock instant is `now_us`."""

    plan_id: str
    generation: int
    now_us: int
    wall_us: int


class OpenRequest(NamedTuple):
    """An arrival without an outcome.

    `minute` counts from 1970; of a job, `model` is its application.
    """

    arrival_us: int
    deadline_us: int
    model: str
    plan_id: str
    minute: int
    samples: int = 1


class DispatchedBatch(NamedTuple):
    """A batch that was dispatched, under the plan of that instant; it may end under a later one.

    Attributes:
        vgpus: numbers along its path; `facts` says of each what that plan does.
        profiled_us: what every stage should take by its profile.
    """

    request_ids: list[int]
    plan_id: str
    model: str
    samples: int
    vgpus: list[int]
    facts: list[VGpuFacts]
    profiled_us: list[int]


PlanFinder = Callable[[Header], Plan | None]


@dataclass(slots=True)
class EventAggregator:
    """Counts of one life of one gateway.

    Attributes:
        instance: the life's name in the warehouse.
        skipped: lines that could not be used: torn ones, and those of an unknown plan.
    """

    find_plan: PlanFinder
    instance: str = ""
    header: Header | None = None
    skipped: int = 0
    now_us: int = 0
    ended_us: int = 0  # of the stage that ended last: a job ends with one of its own
    plan: Plan | None = None
    facts: tuple[VGpuFacts, ...] = ()
    requests: dict[int, OpenRequest] = field(default_factory=dict[int, OpenRequest])
    # Dropped before their deadlines, and why: a new scheduler offers what it puts off again.
    dropped: dict[int, tuple[OpenRequest, str]] = field(
        default_factory=dict[int, tuple[OpenRequest, str]]
    )
    batches: dict[int, DispatchedBatch] = field(default_factory=dict[int, DispatchedBatch])
    # Members of a shared batch: batch, stage, first row, rows.
    shared_batches: dict[int, list[list[int]]] = field(default_factory=dict[int, list[list[int]]])
    minutes: MinuteStats = field(default_factory=MinuteStats)
    neighbours: Neighbours = field(default_factory=Neighbours)

    def take(self, item: Mapping[str, Any]) -> None:
        """One parsed line."""
        kind = item["t"]
        if kind == "Plan":
            self._plan(item)
        elif self.plan is None:
            self.skipped += 1
        elif kind == "Arrival":
            self._arrival(item, self.plan)
        elif kind == "Dispatch":
            path = [hop["vgpu"] for hop in item["hops"]]
            self.batches[item["batch_id"]] = self.batch(
                item["request_ids"], item["model"], item["pipeline"], path, item["samples"]
            )
        elif kind == "StageDone":
            self._stage_done(item)
        elif kind in {"SharedBatch", "SharedBatchDone"}:
            self._shared_batch(item)
        elif kind == "Drop":
            self._drop(item)
        elif kind == "Refused":
            self._refused(item, self.plan)
        elif kind == "Abort":
            self.batches.pop(item["batch_id"], None)
        else:
            self._job(kind, item, self.plan)

    def batch(
        self, request_ids: list[int], model: int, pipeline: int, vgpus: list[int], samples: int
    ) -> DispatchedBatch:
        """A batch that is dispatched under the plan in force."""
        assert self.plan is not None
        planned = self.plan.models[model]
        tables = [stage.latency_us_by_batch for stage in planned.pipelines[pipeline].stages]
        return DispatchedBatch(
            request_ids,
            self._header.plan_id,
            planned.name,
            samples,
            vgpus,
            [self.facts[vgpu] for vgpu in vgpus],
            [table[min(samples, len(table)) - 1] for table in tables],
        )

    def _plan(self, item: Mapping[str, Any]) -> None:
        # One anchor for a whole life: a wall clock that is set back must not say minutes again.
        anchor = self.header or Header("", 0, item["now_us"], item["wall_us"])
        self.instance = self.instance or _instance(anchor.wall_us)
        self.now_us = item["now_us"]
        if not item["rollout"]:
            self.batches.clear()  # their ids begin again
            self.shared_batches.clear()
        self.use(anchor._replace(plan_id=item["plan_id"], generation=item["generation"]))

    def use(self, header: Header) -> None:
        """From here on under this plan."""
        self.header = header
        self.plan = self.find_plan(header)
        self.facts = () if self.plan is None else vgpu_facts(self.plan)
        self.neighbours.use(self.plan)

    def _arrival(self, item: Mapping[str, Any], plan: Plan) -> None:
        if item.get("low"):
            return  # plans are made for others: minutes count none of it but busy time
        known = self.dropped.pop(item["request_id"], None)
        if known is None:
            model = plan.models[item["model"]]
            self._open(item["request_id"], model.name, item)
            if model.entries:
                entry = model.entries[item["entry"]]
                at = entry.block, entry.budget_us, self._minute(item["now_us"])
                self.minutes.entry((self._header.plan_id, model.name, entry.name, *at))
            return
        self.now_us = item["now_us"]
        request, reason = known
        self.requests[item["request_id"]] = request
        self._model(request).dropped -= 1
        self.minutes.drop((request.model, request.minute, reason), -1)

    def _open(self, number: int, name: str, item: Mapping[str, Any]) -> None:
        """A request of a model or an application arrived."""
        self.now_us = item["now_us"]
        request = OpenRequest(
            item["now_us"],
            item["deadline_us"],
            name,
            self._header.plan_id,
            self._minute(item["now_us"]),
            item["samples"],
        )
        self.requests[number] = request
        self._model(request).offered += 1

    def _job(self, kind: str, item: Mapping[str, Any], plan: Plan) -> None:
        """A job, numbered as no other request is, or what becomes of it."""
        if item.get("job_id") in self.requests and kind == "JobArrival":
            return  # begun again
        if kind in {"JobArrival", "RefusedJob"}:
            name = plan.applications[item["application"]].name
            self._open(item.get("job_id", REFUSED), name, item)
        if kind == "RefusedJob":
            self._drop({"request_id": REFUSED, "reason": DropReason.OVERLOAD.text})
        elif kind == "JobDropped":
            self._job_dropped(item)
        elif kind == "JobDone":
            self._end([item["job_id"]], self.ended_us, failed=False)
        elif kind == "TaskReady" and item["first_row"] == 0:
            self._module_runs(item, item["of_rows"], plan)
        elif kind == "ModuleSkipped" and item["reason"] is None:
            self._module_runs(item, 0, plan)

    def _job_dropped(self, item: Mapping[str, Any]) -> None:
        """A job is not wanted any more: it begins again, or has failed, or was dropped."""
        reason = item["reason"]
        if reason == DropReason.FAILED.text:
            self._end([item["job_id"]], self.now_us, failed=True)
        elif reason != DropReason.BEGUN_ANEW.text:
            self._drop({**item, "request_id": item["job_id"]})

    def _module_runs(self, item: Mapping[str, Any], rows: int, plan: Plan) -> None:
        """It is known how many rows a module runs for a job."""
        job = self.requests.get(item["job_id"])
        if job is None:
            return
        (graph,) = (a.application for a in plan.applications if a.name == job.model)
        module = graph.modules[item["module"]].name
        key = (job.plan_id, job.model, module, job.minute)
        self.minutes.module(key, job.samples, rows)

    def _refused(self, item: Mapping[str, Any], plan: Plan) -> None:
        """Refused for overload, before the scheduler: offered and dropped at once."""
        self._arrival({**item, "request_id": REFUSED}, plan)
        self._drop({"request_id": REFUSED, "reason": DropReason.OVERLOAD.text})

    def _shared_batch(self, item: Mapping[str, Any]) -> None:
        """The members of a shared batch, or its end, which is that of its members' stage."""
        if item["t"] == "SharedBatch":
            self.shared_batches[item["shared_batch_id"]] = item["members"]
            return
        places = self.shared_batches.pop(item["shared_batch_id"], [])
        rows = sum(place[-1] for place in places)
        for number, (batch_id, stage, *_) in enumerate(places):
            done = {**item, "batch_id": batch_id, "stage": stage}
            self._stage_done(done, 0 if number else rows)

    def _stage_done(self, item: Mapping[str, Any], rows: int | None = None) -> None:
        """A batch left a stage.

        Args:
            item: the line.
            rows: of the run, where others were in it; 0 where it is counted with one of them.
        """
        batch = self.batches.get(item["batch_id"])
        if batch is None:
            return
        self.now_us = item["now_us"]
        self.ended_us = item["end_us"]
        minute = self._minute(item["end_us"])
        busy_us = item["end_us"] - item["start_us"]
        stage = item["stage"]
        if busy_us > 0 and rows != 0:  # no time at all: the gateway says so of a batch that failed
            key = (batch.plan_id, batch.vgpus[stage], batch.model, stage, minute)
            use = self.minutes.vgpu(key, batch.facts[stage])
            use.batches += 1
            use.busy_us += busy_us
            use.profiled_us += self._profiled_us(batch, stage, rows)
            if len(batch.vgpus) == 1 and batch.plan_id == self._header.plan_id:
                vgpu, model, samples = batch.vgpus[0], batch.model, rows or batch.samples
                self._whole_run(Run(vgpu, model, samples, item["start_us"], item["end_us"]))
        if stage == len(batch.vgpus) - 1:
            del self.batches[item["batch_id"]]
            self._end(batch.request_ids, item["end_us"], failed=busy_us <= 0)
            counts = self.minutes.model((batch.plan_id, batch.model, minute))
            counts.batches += 1
            counts.samples += batch.samples

    def _profiled_us(self, batch: DispatchedBatch, stage: int, rows: int | None) -> int:
        """The planned time of a run: of a batch, or of so many rows in a shared batch."""
        if rows is not None and self.plan is not None and batch.plan_id == self._header.plan_id:
            pool = self.plan.vgpus()[batch.vgpus[stage]].pool
            for row in self.plan.stage_rows():
                model = self.plan.models[row.model]
                table = model.pipelines[row.pipeline].stages[row.stage].latency_us_by_batch
                if row.pool == pool and model.name == batch.model and rows <= len(table):
                    return table[rows - 1]
        return batch.profiled_us[stage]

    def _whole_run(self, run: Run) -> None:
        for judged, near in self.neighbours.ended(run):
            facts, other = self.facts[judged.vgpu], self.facts[near.vgpu]
            key = (
                facts.gpu_class,
                (judged.model, judged.samples, facts.share),
                (near.model, near.samples, other.share),
                self._minute(judged.end_us),
            )
            self.minutes.pair(key, judged.end_us - judged.start_us)

    def _end(self, ids: list[int], end_us: int, *, failed: bool) -> None:
        for request_id in ids:
            request = self.requests.pop(request_id, None)
            if request is None:
                continue
            counts = self._model(request)
            if failed:
                counts.failed += 1
                continue
            counts.latency_sum_us += end_us - request.arrival_us
            if end_us <= request.deadline_us:
                counts.served += 1
            else:
                counts.late += 1

    def _drop(self, item: Mapping[str, Any]) -> None:
        request = self.requests.pop(item["request_id"], None)
        if request is None:
            return
        self._model(request).dropped += 1
        self.minutes.drop((request.model, request.minute, item["reason"]))
        if item["request_id"] != REFUSED:
            self.dropped[item["request_id"]] = request, item["reason"]

    @property
    def _header(self) -> Header:
        assert self.header is not None
        return self.header

    def _minute(self, instant_us: int) -> int:
        return (instant_us - self._header.now_us + self._header.wall_us) // MINUTE_US

    def _model(self, request: OpenRequest) -> ModelCounts:
        return self.minutes.model((request.plan_id, request.model, request.minute))

    def lost(self) -> None:
        """The gateway ended: what was open has failed."""
        for request in self.requests.values():
            self._model(request).failed += 1
        self.requests.clear()
        self.batches.clear()
        self.shared_batches.clear()

    def take_rows(self) -> Rows:
        """The minutes counted since they were last taken; those that have ended are forgotten."""
        for request_id, request in list(self.requests.items()):
            if request.deadline_us + GIVE_UP_US < self.now_us:
                self._model(request).failed += 1
                del self.requests[request_id]
        for request_id, (request, _) in list(self.dropped.items()):
            if request.deadline_us + GIVE_UP_US < self.now_us:
                del self.dropped[request_id]
        rows = self.minutes.rows(self.instance)
        if self.header is not None:
            # A stage's end may be logged a little after the next minute began.
            self.minutes.forget_before(self._oldest_open_minute() - 1)
        return rows

    def _oldest_open_minute(self) -> int:
        known = (*self.requests.values(), *(request for request, _ in self.dropped.values()))
        return min([self._minute(self.now_us), *(request.minute for request in known)])


def _instance(wall_us: int) -> str:
    return (EPOCH + timedelta(microseconds=wall_us)).isoformat()
