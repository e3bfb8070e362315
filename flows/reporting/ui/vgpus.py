"""Health of every vGPU, from the tail of the gateway's event files.

Here: what each vGPU did in the last seconds against its profile, and whether it is lost. Files are
followed by position, so a long log is read once. The clock of the events is the host's monotonic
one; ages are relative to the newest event seen.
"""

import json
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from triton_backend.contract.plan import Plan
from triton_backend.serve_folder.line_files import files_in_order

WINDOW_US = 60_000_000
TAIL_BYTES = 4 << 20  # at the start only this much of a long log is looked at
MOST_USES = 4_000  # kept per vGPU; a minute of 15 ms batches


@dataclass(slots=True)
class VGpuHealth:
    """One vGPU: (start, end, profiled time, µs; model number) of its last uses."""

    uses: deque[tuple[int, int, int, int]] = field(
        default_factory=lambda: deque[tuple[int, int, int, int]](maxlen=MOST_USES)
    )
    lost: bool = False

    def to_dict(self, now_us: int) -> dict[str, Any]:
        """State, share of the window it was busy (and per model), drift, last end.

        Drift is measured over profiled time.
        """
        while self.uses and self.uses[0][1] < now_us - WINDOW_US:
            self.uses.popleft()
        busy_us, profiled_us = 0, 0
        by_model_us: dict[int, int] = {}
        for start_us, end_us, expected_us, model in self.uses:
            busy_us += end_us - start_us
            profiled_us += expected_us
            by_model_us[model] = by_model_us.get(model, 0) + end_us - start_us
        span_us = max(now_us - self.uses[0][0], 1) if self.uses else 1
        return {
            "lost": self.lost,
            "batches": len(self.uses),
            "busy": min(busy_us / span_us, 1.0),
            "by_model": [
                [model, min(model_us / span_us, 1.0)]
                for model, model_us in sorted(by_model_us.items())
            ],
            "drift": busy_us / profiled_us if profiled_us else None,
            "idle_s": (now_us - self.uses[-1][1]) / 1e6 if self.uses else None,
        }


class _Batch(NamedTuple):
    """A batch on its way: numbers of its model and pipeline, the vGPUs of its path, its size."""

    model: int
    pipeline: int
    vgpus: list[int]
    samples: int


class VGpuWatch:
    """Follows the event files of one plan and generation."""

    def __init__(self, folder: Path, plan: Plan, generation: str) -> None:
        self._folder = folder
        self._generation = generation
        self._plan = plan
        self._health = [VGpuHealth() for _ in plan.vgpus()]
        self._batches: dict[int, _Batch] = {}
        self._shared_batches: dict[int, list[list[int]]] = {}  # rows: batch, stage, first row, rows
        self._file: Path | None = None
        self._position = 0
        self._matches = True
        self._now_us = 0

    def read(self) -> list[dict[str, Any]]:
        """Take in what was written since, and return the state of every vGPU in plan order."""
        for line in self._new_lines():
            try:
                self._take(json.loads(line))
            except (ValueError, KeyError, TypeError, IndexError):
                continue  # a line cut by a full disk or of a newer form says nothing
        return [health.to_dict(self._now_us) for health in self._health]

    def _new_lines(self) -> Iterator[str]:
        paths = files_in_order(self._folder, "events")
        if self._file in paths:
            paths = paths[paths.index(self._file) :]
        for path in paths:
            try:
                with path.open("rb") as file:
                    yield from self._lines_of(path, file.seek(0, 2), file)
            except OSError:
                continue  # rolled away meanwhile

    def _lines_of(self, path: Path, size: int, file: Any) -> Iterator[str]:
        if path != self._file:
            self._file, self._position = path, max(0, size - TAIL_BYTES)
        file.seek(self._position)
        for line in file:
            if not line.endswith(b"\n"):
                return
            self._position += len(line)
            yield line.decode(errors="replace")

    def _begin(self, header: dict[str, Any]) -> None:
        self._matches = str(header["generation"]) == self._generation
        self._batches.clear()
        self._shared_batches.clear()
        if header["now_us"] < self._now_us:  # the host was started again, and its clock with it
            self._now_us = 0
            for health in self._health:
                health.uses.clear()

    def _take(self, line: dict[str, Any]) -> None:
        kind = line["t"]
        if kind == "Plan":
            self._begin(line)
        if not self._matches:
            return
        self._now_us = max(self._now_us, line.get("now_us", 0))
        if kind == "Dispatch":
            self._batches[line["batch_id"]] = _Batch(
                line["model"],
                line["pipeline"],
                [hop["vgpu"] for hop in line["hops"]],
                line["samples"],
            )
        elif kind == "StageDone":
            self._stage_done(line)
        elif kind == "SharedBatch":
            self._shared_batch(line["shared_batch_id"], line["members"])
        elif kind == "SharedBatchDone":
            places = self._shared_batches.pop(line["shared_batch_id"], [])
            rows = sum(place[-1] for place in places)
            for number, (batch_id, stage, *_) in enumerate(places):
                done = {**line, "batch_id": batch_id, "stage": stage}
                self._stage_done(done, 0 if number else rows)
        elif kind == "Abort":
            self._batches.pop(line["batch_id"], None)
        elif kind in {"WorkerLost", "WorkerBack"}:
            self._health[line["vgpu"]].lost = kind == "WorkerLost"

    def _shared_batch(self, shared_batch_id: int, members: list[list[int]]) -> None:
        """How a shared batch is from now on; without members it will not run."""
        if members:
            self._shared_batches[shared_batch_id] = members
        else:
            self._shared_batches.pop(shared_batch_id, None)

    def _stage_done(self, line: dict[str, Any], rows: int | None = None) -> None:
        """A batch left a stage.

        `rows`: of a joint run, 0 where it is counted with another member.
        """
        batch_id, number = line["batch_id"], line["stage"]
        batch = self._batches.get(batch_id)
        if batch is None or number >= len(batch.vgpus):
            return
        if number + 1 == len(batch.vgpus):
            del self._batches[batch_id]
        if rows == 0:
            return
        pipeline = self._plan.models[batch.model].pipelines[batch.pipeline]
        profile = pipeline.stages[number].latency_us_by_batch
        profiled_us = profile[min(rows or batch.samples, len(profile)) - 1]
        use = line["start_us"], line["end_us"], profiled_us, batch.model
        self._health[batch.vgpus[number]].uses.append(use)
