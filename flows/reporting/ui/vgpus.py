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
from typing import Any

from triton_backend.contract.plan import Plan, Stage

WINDOW_US = 60_000_000
TAIL_BYTES = 4 << 20  # at the start only this much of a long log is looked at
MOST_USES = 4_000  # kept per vGPU; a minute of 15 ms batches


@dataclass(slots=True)
class VGpuHealth:
    """One vGPU: (start, end, profiled time) of its last uses, µs."""

    uses: deque[tuple[int, int, int]] = field(
        default_factory=lambda: deque[tuple[int, int, int]](maxlen=MOST_USES)
    )
    lost: bool = False

    def to_dict(self, now_us: int) -> dict[str, Any]:
        """State, share of the window it was busy, measured over profiled time, last end."""
        while self.uses and self.uses[0][1] < now_us - WINDOW_US:
            self.uses.popleft()
        busy_us = sum(end - start for start, end, _ in self.uses)
        profiled_us = sum(profiled for _, _, profiled in self.uses)
        span_us = max(now_us - self.uses[0][0], 1) if self.uses else 1
        return {
            "lost": self.lost,
            "batches": len(self.uses),
            "busy": min(busy_us / span_us, 1.0),
            "drift": busy_us / profiled_us if profiled_us else None,
            "idle_s": (now_us - self.uses[-1][1]) / 1e6 if self.uses else None,
        }


class VGpuWatch:
    """Follows the event files of one plan and generation."""

    def __init__(self, folder: Path, plan: Plan, generation: str) -> None:
        self._folder = folder
        self._generation = generation
        self._stages = [_stage(plan, v.model, v.pipeline, v.stage) for v in plan.vgpus()]
        self._health = [VGpuHealth() for _ in self._stages]
        self._hops: dict[int, tuple[list[int], int]] = {}
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
        for path in sorted(self._folder.glob("events-*.jsonl")):
            if self._file is not None and path < self._file:
                continue
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

    def _take(self, line: dict[str, Any]) -> None:
        kind = line["t"]
        if kind == "Plan":
            self._matches = str(line["generation"]) == self._generation
            self._hops.clear()
        if not self._matches:
            return
        self._now_us = max(self._now_us, line.get("now_us", 0))
        if kind == "Dispatch":
            self._hops[line["batch_id"]] = [hop["vgpu"] for hop in line["hops"]], line["samples"]
        elif kind == "StageDone":
            self._stage_done(line)
        elif kind == "Abort":
            self._hops.pop(line["batch_id"], None)
        elif kind in {"WorkerLost", "WorkerBack"}:
            self._health[line["vgpu"]].lost = kind == "WorkerLost"

    def _stage_done(self, line: dict[str, Any]) -> None:
        batch_id, number = line["batch_id"], line["stage"]
        vgpus, samples = self._hops.get(batch_id, ([], 0))
        if number >= len(vgpus):
            return
        if number + 1 == len(vgpus):
            del self._hops[batch_id]
        vgpu = vgpus[number]
        profile = self._stages[vgpu].latency_us_by_batch
        profiled_us = profile[min(samples, len(profile)) - 1]
        self._health[vgpu].uses.append((line["start_us"], line["end_us"], profiled_us))


def _stage(plan: Plan, model: int, pipeline: int, stage: int) -> Stage:
    return plan.models[model].pipelines[pipeline].stages[stage]
