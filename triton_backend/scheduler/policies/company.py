"""When a batch that is not full shall wait for more requests although its path may be free.

Waiting gains nothing but the latency of those that wait, unless pools need larger batches to carry
the rate that is measured. Early and late binding ask alike; what they do meanwhile is their own.
"""

import numpy as np

from triton_backend.scheduler.compiled import kernel
from triton_backend.scheduler.tables import Tables
from triton_backend.scheduler.topology import PARTS, vgpus_of


@kernel
def needs_company(tables: Tables, pipeline: int, samples: int, spare: float) -> bool:
    """True if the pools of a pipeline cannot carry what comes in batches of so many samples.

    What comes to a pool is what all queues measure, each pipeline at its planned part, in batches
    of that size.

    Args:
        tables: the scheduler's.
        pipeline: that would take the batch.
        samples: of the batch.
        spare: vGPUs that stay free beyond those busy on average, in square roots of these.
    """
    topology = tables.topology
    row = topology.pipelines[pipeline]
    for own in range(row["first_stage"], row["first_stage"] + row["stages"]):
        pool = topology.stages[own]["pool"]
        wanted = _vgpus_wanted(tables, pool, samples)
        if wanted + spare * np.sqrt(wanted) > len(vgpus_of(topology, pool)):
            return True
    return False


@kernel
def _vgpus_wanted(tables: Tables, pool: int, samples: int) -> float:
    """vGPUs of a pool that are busy on average where all it runs comes in batches of a size."""
    topology = tables.topology
    wanted = 0.0
    for stage in range(len(topology.stages)):
        if topology.stages[stage]["pool"] == pool:
            row = topology.pipelines[topology.stages[stage]["pipeline"]]
            queue = tables.queues[row["queue"]]
            if queue["gap"] > 0:
                batch = min(samples, row["largest"])
                batches_per_us = queue["size"] / queue["gap"] * row["part"] / PARTS / batch
                wanted += batches_per_us * topology.latency_us[stage, batch]
    return wanted
