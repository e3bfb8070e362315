"""A mix whose load rises and falls twice, followed by the planner on the fewest GPUs.

Here: the wave and its plans. Not here: simulating it (`study`), serving it (`served`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from flows.operations.replanning.planner import Planner, cheapest_planner
from flows.planning import PlanOptions, make_plan
from scripts.paper.gpulets.mixes import Profiles
from triton_backend.contract.cluster import Cluster
from triton_backend.contract.plan import Plan
from triton_backend.contract.profiles import InterferenceModel
from triton_backend.contract.workload import Workload
from triton_backend.scheduler.policies.demand import HEADROOM

LOADS = (0.15, 0.7)  # lowest and highest, in parts of what the GPUs carry


@dataclass(frozen=True, slots=True, kw_only=True)
class Wave:
    """Arrivals of every model (µs).

    Plans for the lowest load, with headroom, and for the highest; the planner.
    """

    instants: Mapping[str, NDArray[np.int64]]
    first: Plan
    peak: Plan
    planner: Planner


def wave_of(
    used: Profiles,
    asked: Workload,
    cluster: Cluster,
    known: Mapping[str, InterferenceModel],
    seconds: int,
    options: PlanOptions | None = None,
) -> Wave:
    """A wave of so many seconds, Poisson arrivals by the second, planned by `gpulets`."""
    options = options or PlanOptions(planner="gpulets")
    most = make_plan(used, cluster, asked, options, interference=known)

    def at(share: float) -> Workload:
        rates = {m.name: share * most.model(m.name).throughput_rps for m in asked.models}
        return Workload(models=tuple(replace(m, rate_rps=rates[m.name]) for m in asked.models))

    few = replace(options, objective="gpus")
    low, high = LOADS
    first, peak = (
        make_plan(used, cluster, at(share), few, interference=known)
        for share in (low * HEADROOM, high)
    )
    planner = cheapest_planner(
        used, cluster, at(1.0), few, interference=known, objective="gpus", in_force=first
    )
    random = np.random.default_rng(0)
    every = np.arange(seconds)
    shape = low + (high - low) * np.sin(2 * np.pi * every / seconds) ** 2
    instants: dict[str, NDArray[np.int64]] = {}
    for model in most.models:
        counts = random.poisson(model.throughput_rps * shape)
        offered = np.repeat(every, counts) + random.uniform(0, 1, int(counts.sum()))
        instants[model.name] = np.sort(offered * 1e6).astype(np.int64)
    return Wave(instants=instants, first=first, peak=peak, planner=planner)
