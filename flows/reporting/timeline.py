"""Timelines of vGPUs for the page's zoomable canvas.

Here: rows (vGPUs by pool) and bars (batches) as compact lists. Not here: drawing (the script in
`templates/timeline.js`).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from flows.reporting import words
from flows.reporting.data import Uses
from flows.reporting.svg import model_colour
from flows.reporting.view import PoolView, view_of
from triton_backend.contract.plan import Plan, Slot
from triton_backend.contract.units import US_PER_MS

MOST_BARS = 120_000  # about 4 MB of page; longer runs show their first part


def timeline_data(plan: Plan, uses: Uses) -> dict[str, Any]:
    """The timeline as plain lists.

    Returns:
        `rows`: one [label, pool] per vGPU, in plan order; `pools`: label of each pool and the
        colours of its models; `models`: name and colour of each;
        `bars`: per bar row, start (ms), length (ms), batch, samples, model, flattened six by six;
        `shown_ms`, `whole_ms`: length of what is drawn and of the whole run.
    """
    names = [model.name for model in plan.models]
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
            uses.model[shown],
        ],
        axis=1,
    )
    return {
        "rows": [(vgpu_label(plan, vgpu.slot), vgpu.pool) for vgpu in plan.vgpus()],
        "pools": [
            (pool_label(pool, names), [model_colour(model) for model in pool.models])
            for pool in view_of(plan).pools
        ],
        "models": [(name, model_colour(number)) for number, name in enumerate(names)],
        "bars": [_compact(value) for value in bars.ravel().tolist()],
        "shown_ms": float((bars[:, 1] + bars[:, 2]).max(initial=0)),
        "whole_ms": (int(uses.end_us.max()) - start_us) / US_PER_MS if len(uses) else 0,
    }


def _compact(value: float) -> float | int:
    rounded = round(value, 2)
    return int(rounded) if rounded == int(rounded) else rounded


def pool_label(pool: PoolView, names: Sequence[str]) -> str:
    """A pool in words: its name, its vGPUs, the models on it."""
    vgpus = words.vgpus(pool.vgpus, pool.share, pool.gpu_class)
    return f"{pool.name}: {vgpus}, {words.models_on(pool.parts, names)}"


def vgpu_label(plan: Plan, slot: Slot) -> str:
    """Node, GPU and slot of a vGPU."""
    return f"{plan.cluster.node_name(slot.node)}:{slot.gpu}.{slot.slot}"
