"""How far a gateway's event files were read, and what was open there, as JSON text.

Reading on from a cursor gives the same minutes as reading everything again, however often and
wherever it was cut.
"""

import json
from dataclasses import astuple, dataclass
from typing import Any

from flows.operations.ingest.aggregator import EventAggregator, Header, OpenRequest, PlanFinder
from flows.operations.ingest.minute_stats import Minutes, ModelCounts, VGpuCounts, VGpuFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The file being read and the bytes of it that were; `ended`: nothing will follow."""

    file: str = ""
    offset: int = 0
    ended: bool = False


def to_text(position: Position, aggregator: EventAggregator) -> str:
    """Position and open counts."""
    document = {
        "file": position.file,
        "offset": position.offset,
        "ended": position.ended,
        "instance": aggregator.instance,
        "header": aggregator.header,
        "now_us": aggregator.now_us,
        "skipped": aggregator.skipped,
        "requests": list(aggregator.requests.items()),
        "batches": list(aggregator.batches.items()),
        "models": [(key, astuple(counts)) for key, counts in aggregator.minutes.models.items()],
        "vgpus": [
            (key, counts.facts, (counts.batches, counts.busy_us, counts.profiled_us))
            for key, counts in aggregator.minutes.vgpus.items()
        ],
        "drops": list(aggregator.minutes.drops.items()),
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
    aggregator.requests = {key: OpenRequest(*request) for key, request in document["requests"]}
    aggregator.batches = {key: tuple(batch) for key, batch in document["batches"]}
    aggregator.minutes = Minutes(
        models={tuple(key): ModelCounts(*counts) for key, counts in document["models"]},
        vgpus={tuple(k): VGpuCounts(_facts(f), *counts) for k, f, counts in document["vgpus"]},
        drops={tuple(key): dropped for key, dropped in document["drops"]},
    )
    position = Position(file=document["file"], offset=document["offset"], ended=document["ended"])
    return position, aggregator


def _facts(values: list[Any]) -> VGpuFacts:
    model, stage, gpu_class, divisor, latencies = values
    return VGpuFacts(model, stage, gpu_class, divisor, tuple(latencies))
