"""What really ran, from the gateway's event file: which vGPU ran which batch when."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from flows.reporting.data import Uses

Row = tuple[int, int, int, int, int]


def read_uses(folder: Path, span_us: tuple[int, int]) -> Uses:
    """Every stage of every batch that ended within a span of the host's monotonic clock.

    Times in the result count from the beginning of the span. A line that was being written when
    the gateway was killed is passed over.
    """
    files = sorted(folder.glob("*.jsonl"), key=lambda path: path.stat().st_mtime_ns)
    lines = (line for file in files for line in file.read_text().splitlines())
    rows = np.array(_rows(lines), dtype=np.int64).reshape(-1, 5)
    rows = rows[(rows[:, 3] >= span_us[0]) & (rows[:, 3] <= span_us[1])]
    return Uses(
        vgpu=rows[:, 0],
        batch_id=rows[:, 1],
        start_us=rows[:, 2] - span_us[0],
        end_us=rows[:, 3] - span_us[0],
        samples=rows[:, 4],
    )


def span_of_load(records: Path) -> tuple[int, int]:
    """First and last instant of a load run on the monotonic clock, from its records (µs)."""
    with np.load(records, allow_pickle=False) as saved:
        start_us = int(saved["started_monotonic_us"])
        last_us = int(saved["records"]["done_us"].max(initial=0))
    return start_us, start_us + last_us


def _rows(lines: Iterable[str]) -> list[Row]:
    batches: dict[int, tuple[list[int], int]] = {}
    rows: list[Row] = []
    for line in lines:
        item = _parsed(line)
        if item.get("t") == "Plan":
            batches.clear()  # batch ids begin anew
        if item.get("t") == "Dispatch":
            vgpus = [hop["vgpu"] for hop in item["hops"]]
            batches[item["batch_id"]] = (vgpus, item["samples"])
        if item.get("t") == "StageDone" and item["batch_id"] in batches:
            vgpus, samples = batches[item["batch_id"]]
            vgpu = vgpus[item["stage"]]
            rows.append((vgpu, item["batch_id"], item["start_us"], item["end_us"], samples))
    return rows


def _parsed(line: str) -> dict[str, Any]:
    try:
        return json.loads(line)
    except ValueError:
        return {}
