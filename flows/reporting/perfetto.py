"""Runs of vGPUs as a Chrome trace, which ui.perfetto.dev and chrome://tracing open.

A process is a node of the cluster, a thread one of its vGPUs, a slice a batch there, in Chrome's
Trace Event Format: complete events (`X`) with times in µs. Not here: the page's own timeline
(`timeline`).
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from flows.files import write_text
from flows.reporting.data import Uses
from flows.reporting.timeline import vgpu_label
from triton_backend.contract.plan import Plan


def write_trace(plan: Plan, uses: Uses, path: Path) -> Path:
    """Write the trace; folders on the way are made. Returns `path`.

    Raises:
        InputError: it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(trace_of(plan, uses), separators=(",", ":")))
    return path


def trace_of(plan: Plan, uses: Uses) -> dict[str, Any]:
    """The trace; its times (µs) begin with the first batch.

    Returns:
        `traceEvents`: names of nodes and vGPUs, then a row per batch and stage in the order of
        starts, with the model as name; `displayTimeUnit`.
    """
    vgpus = plan.vgpus()
    nodes = sorted({vgpu.slot.node for vgpu in vgpus})
    events: list[dict[str, Any]] = [
        _name("process", node, 0, plan.cluster.node_name(node)) for node in nodes
    ]
    for vgpu in vgpus:
        label = f"{vgpu_label(plan, vgpu.slot)} {plan.pools[vgpu.pool].name}"
        events.append(_name("thread", vgpu.slot.node, vgpu.index, label))
    begin_us = int(uses.start_us.min()) if len(uses) else 0
    for row in np.argsort(uses.start_us, kind="stable"):
        number = int(uses.vgpu[row])
        events.append(
            {
                "ph": "X",
                "pid": vgpus[number].slot.node,
                "tid": number,
                "ts": int(uses.start_us[row]) - begin_us,
                "dur": int(uses.end_us[row] - uses.start_us[row]),
                "name": plan.models[int(uses.model[row])].name,
                "cat": plan.pools[vgpus[number].pool].gpu_class,
                "args": {
                    "batch": int(uses.batch_id[row]),
                    "samples": int(uses.samples[row]),
                },
            }
        )
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _name(kind: str, node: int, vgpu: int, name: str) -> dict[str, Any]:
    return {
        "ph": "M",
        "pid": node,
        "tid": vgpu,
        "name": f"{kind}_name",
        "args": {"name": name},
    }
