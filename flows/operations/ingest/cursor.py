"""How far a gateway's event files were read, and what was open there, as JSON text.

Reading on from a cursor gives the same minutes as reading everything again, however often and
wherever it was cut.
"""

import json
from collections import deque
from dataclasses import astuple, dataclass
from typing import Any

from flows.operations.ingest.aggregator import (
    DispatchedBatch,
    EventAggregator,
    Header,
    OpenRequest,
    PlanFinder,
)
from flows.operations.ingest.minute_stats import MinuteStats, ModelCounts, VGpuCounts, VGpuFacts
from flows.operations.ingest.neighbours import MOST_HELD, Run
from triton_backend.contract.shares import WHOLE_GPU

# 1 knew a vGPU's stage from the plan, so neither batches nor counts named a model; 2 knew a batch's
# model, pipeline and path by their numbers in the plan.
FORMAT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The file being read and the bytes of it that were; `ended`: nothing will follow."""

    file: str = ""
    offset: int = 0
    ended: bool = False


def to_text(position: Position, aggregator: EventAggregator) -> str:
    """Position and open counts."""
    document = {
        "format": FORMAT,
        "file": position.file,
        "offset": position.offset,
        "ended": position.ended,
        "instance": aggregator.instance,
        "header": aggregator.header,
        "now_us": aggregator.now_us,
        "skipped": aggregator.skipped,
        "requests": list(aggregator.requests.items()),
        "dropped": list(aggregator.dropped.items()),
        "batches": list(aggregator.batches.items()),
        "shared_batches": list(aggregator.shared_batches.items()),
        "models": [(key, astuple(counts)) for key, counts in aggregator.minutes.models.items()],
        "vgpus": [
            (key, counts.facts, (counts.batches, counts.busy_us, counts.profiled_us))
            for key, counts in aggregator.minutes.vgpus.items()
        ],
        "drops": list(aggregator.minutes.drops.items()),
        "pairs": list(aggregator.minutes.pairs.items()),
        "modules": list(aggregator.minutes.modules.items()),
        "entries": list(aggregator.minutes.entries.items()),
        "ended_us": aggregator.ended_us,
        "runs": [run for runs in aggregator.neighbours.runs.values() for run in runs],
    }
    return json.dumps(document, separators=(",", ":"))


def from_text(text: str | None, find_plan: PlanFinder) -> tuple[Position, EventAggregator]:
    """Inverse of `to_text`; a new beginning where there is none."""
    aggregator = EventAggregator(find_plan=find_plan)
    if text is None:
        return Position(), aggregator
    document: dict[str, Any] = json.loads(text)
    aggregator.instance, aggregator.now_us = document["instance"], document["now_us"]
    aggregator.skipped = document["skipped"]
    if document["header"] is not None:
        aggregator.use(Header(*document["header"]))
    if document.get("format") != FORMAT:
        document = _upgraded(document, aggregator)
    aggregator.requests = {key: OpenRequest(*request) for key, request in document["requests"]}
    aggregator.dropped = {
        key: (OpenRequest(*request), reason)
        for key, (request, reason) in document.get("dropped", ())  # not in older cursors
    }
    batches = [(key, DispatchedBatch(*batch)) for key, batch in document["batches"]]
    aggregator.batches = {
        key: batch._replace(facts=[VGpuFacts(*one) for one in batch.facts])
        for key, batch in batches
    }
    aggregator.shared_batches = dict(document.get("shared_batches", ()))  # not in older cursors
    for run in (Run(*fields) for fields in document.get("runs", ())):  # not in older cursors
        aggregator.neighbours.runs.setdefault(run.vgpu, deque(maxlen=MOST_HELD)).append(run)
    aggregator.minutes = MinuteStats(
        models={tuple(key): ModelCounts(*counts) for key, counts in document["models"]},
        vgpus={tuple(k): VGpuCounts(VGpuFacts(*f), *n) for k, f, n in document["vgpus"]},
        drops={tuple(key): dropped for key, dropped in document["drops"]},
        pairs={
            (gpu_class, tuple(side), tuple(beside), minute): tuple(counts)
            for (gpu_class, side, beside, minute), counts in document.get("pairs", ())
        },
        modules={tuple(key): tuple(counts) for key, counts in document.get("modules", ())},
        entries={tuple(key): count for key, count in document.get("entries", ())},
    )
    aggregator.ended_us = document.get("ended_us", aggregator.now_us)
    position = Position(file=document["file"], offset=document["offset"], ended=document["ended"])
    return position, aggregator


def _upgraded(document: dict[str, Any], aggregator: EventAggregator) -> dict[str, Any]:
    """A cursor of an earlier format."""
    if document.get("format") is None:
        document = _second_format(document, aggregator)
    known = document["batches"] if aggregator.plan is not None else []
    batches = [
        (key, aggregator.batch(ids, model, pipeline, path, samples))
        for key, (ids, model, pipeline, path, samples) in known
    ]
    return document | {"batches": batches}


def _second_format(document: dict[str, Any], aggregator: EventAggregator) -> dict[str, Any]:
    """One of format 1: its plan shares no pool, so a vGPU tells model, pipeline and stage."""
    batches: list[Any] = []
    vgpus: list[Any] = []
    if aggregator.plan is not None:
        rows = {row.pool: row for row in aggregator.plan.stage_rows()}
        numbers = [vgpu.pool for vgpu in aggregator.plan.vgpus()]
        for key, (request_ids, path, samples) in document["batches"]:
            row = rows[numbers[path[0]]]
            batches.append((key, (request_ids, row.model, row.pipeline, path, samples)))
    for (plan_id, vgpu, minute), (model, stage, gpu_class, divisor, _), counts in document["vgpus"]:
        facts = VGpuFacts(None, gpu_class, WHOLE_GPU // divisor)
        vgpus.append(((plan_id, vgpu, model, stage, minute), facts, counts))
    return document | {"batches": batches, "vgpus": vgpus}
