"""What each vGPU did when, prepared for the page's own zoomable canvas.

Here: rows (vGPUs by pool) and bars (batches) as compact lists. Not here: drawing (the script in
`templates/timeline.js`).
"""

from typing import Any

import numpy as np

from flows.reporting import words
from flows.reporting.data import Uses
from flows.reporting.svg import model_colour
from triton_backend.contract.plan import Plan
from triton_backend.contract.units import US_PER_MS

MOST_BARS = 120_000  # about 4 MB of page; longer runs show their first part


def timeline_data(plan: Plan, uses: Uses) -> dict[str, Any]:
    """The timeline as plain lists.

    Returns:
        `rows`: one [label, pool] per vGPU, in plan order; `pools`: label and colour of each pool;
        `bars`: per bar row, start (ms), length (ms), batch, samples, flattened five by five;
        `shown_ms`, `whole_ms`: length of what is drawn and of the whole run.
    """
    rows: list[tuple[str, int]] = []
    pools: list[tuple[str, str]] = []
    numbers: dict[tuple[int, int, int], int] = {}
    for vgpu in plan.vgpus():
        key = (vgpu.model, vgpu.pipeline, vgpu.stage)
        if key not in numbers:
            numbers[key] = len(pools)
            pools.append((_pool_label(plan, key), model_colour(vgpu.model)))
        rows.append((_vgpu_label(plan, *vgpu.slot), numbers[key]))
    order = np.argsort(uses.start_us, kind="stable")
    shown = order[:MOST_BARS]
    start_us = int(uses.start_us.min()) if len(uses) else 0
    bars = np.stack(
        [
            uses.vgpu[shown],
            (uses.start_us[shown] - start_us) / US_PER_MS,
            (uses.end_us[shown] - uses.start_us[shown]) / US_PER_MS,
            uses.batch_id[shown],
            uses.samples[shown],
        ],
        axis=1,
    )
    return {
        "rows": rows,
        "pools": pools,
        "bars": [_compact(value) for value in bars.ravel().tolist()],
        "shown_ms": float((bars[:, 1] + bars[:, 2]).max(initial=0)),
        "whole_ms": (int(uses.end_us.max()) - start_us) / US_PER_MS if len(uses) else 0,
    }


def _compact(value: float) -> float | int:
    rounded = round(value, 2)
    return int(rounded) if rounded == int(rounded) else rounded


def _pool_label(plan: Plan, key: tuple[int, int, int]) -> str:
    model = plan.models[key[0]]
    pipeline = model.pipelines[key[1]]
    stage = pipeline.stages[key[2]]
    which = f", pipeline {key[1] + 1}" if len(model.pipelines) > 1 else ""
    name = words.vgpus(stage.vgpus, stage.vgpu_divisor, stage.gpu_class)
    return f"{model.name}{which}, stage {key[2] + 1}: {name}"


def _vgpu_label(plan: Plan, node: int, gpu: int, slot: int) -> str:
    return f"{plan.cluster.node_name(node)}:{gpu}.{slot}"
