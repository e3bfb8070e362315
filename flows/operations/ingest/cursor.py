"""How far a gateway's event files were read, and what was open there, as JSON text.

Reading on from a cursor gives the same minutes as reading everything again, however often and
wherever it was cut.
"""

import json
from dataclasses import astuple, dataclass
from typing import Any

from flows.operations.ingest.aggregator import Header, PlanFinder, Request, Tally
from flows.operations.ingest.minute_stats import Minutes, ModelCounts, VGpuCounts, VGpuFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The file being read and the bytes of it that were; `ended`: nothing will follow."""

    file: str = ""
    offset: int = 0
    ended: bool = False


def to_text(position: Position, tally: Tally) -> str:
    """Position and open counts."""
    document = {
        "file": position.file,
        "offset": position.offset,
        "ended": position.ended,
        "instance": tally.instance,
        "header": tally.header,
        "now_us": tally.now_us,
        "skipped": tally.skipped,
        "requests": list(tally.requests.items()),
        "batches": list(tally.batches.items()),
        "models": [(key, astuple(counts)) for key, counts in tally.minutes.models.items()],
        "vgpus": [
            (key, counts.facts, (counts.batches, counts.busy_us, counts.profiled_us))
            for key, counts in tally.minutes.vgpus.items()
        ],
        "drops": list(tally.minutes.drops.items()),
    }
    return json.dumps(document, separators=(",", ":"))


def from_text(text: str | None, find_plan: PlanFinder) -> tuple[Position, Tally]:
    """Inverse of `to_text`; a new beginning where there is none."""
    tally = Tally(find_plan=find_plan)
    if text is None:
        return Position(), tally
    document: dict[str, Any] = json.loads(text)
    tally.instance, tally.now_us = document["instance"], document["now_us"]
    tally.skipped = document["skipped"]
    if document["header"] is not None:
        tally.use(Header(*document["header"]))
    tally.requests = {key: Request(*request) for key, request in document["requests"]}
    tally.batches = {key: tuple(batch) for key, batch in document["batches"]}
    tally.minutes = Minutes(
        models={tuple(key): ModelCounts(*counts) for key, counts in document["models"]},
        vgpus={tuple(k): VGpuCounts(_facts(f), *counts) for k, f, counts in document["vgpus"]},
        drops={tuple(key): dropped for key, dropped in document["drops"]},
    )
    position = Position(file=document["file"], offset=document["offset"], ended=document["ended"])
    return position, tally


def _facts(values: list[Any]) -> VGpuFacts:
    model, stage, gpu_class, divisor, latencies = values
    return VGpuFacts(model, stage, gpu_class, divisor, tuple(latencies))
