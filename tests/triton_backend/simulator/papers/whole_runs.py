"""Runs of the baselines small enough to be followed by hand."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tests.fakes.plans import hand_model, hand_pipeline, hand_plan, hand_stage
from triton_backend.contract.cluster import NodeGroup
from triton_backend.contract.plan import PlacementRun, Plan
from triton_backend.simulator.offered import Instant
from triton_backend.simulator.results import SimResult
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions
from triton_backend.simulator.world import DROPPED, LATE, SERVED

NAMES = {SERVED: "served", LATE: "late", DROPPED: "dropped"}


class Use(NamedTuple):
    """A run on a vGPU (µs)."""

    vgpu: int
    model: int
    samples: int
    start_us: int
    end_us: int


def one_pool(
    tables: Sequence[Sequence[int]],
    slos_us: Sequence[int],
    *,
    vgpus: int = 1,
    planned: Sequence[int] | None = None,
) -> Plan:
    """Whole models on one pool; the planned batch is the largest unless it is given."""
    place = PlacementRun(node=0, gpu=0, slot=0, gpus=vgpus)
    batches = planned or [len(table) for table in tables]
    models = [
        hand_model(
            f"m{number}",
            hand_pipeline(
                hand_stage((0, 1), "GPU", place, table, batch=batch), batch=batch, rate_rps=1.0
            ),
            slo_us=slo_us,
            policy="eager",
        )
        for number, (table, slo_us, batch) in enumerate(zip(tables, slos_us, batches, strict=True))
    ]
    return hand_plan(
        *models, nodes=[NodeGroup(count=1, gpu_class="GPU", gpus=vgpus, nic_gbps=10.0)]
    )


def run(plan: Plan, policy: str, *instants_us: Sequence[int], **options: Any) -> SimResult:
    """A run with requests of every model at these instants."""
    arrivals = {f"m{n}": np.asarray(own, dtype=np.int64) for n, own in enumerate(instants_us)}
    stated = Instant(by_model=arrivals)
    return simulate(plan, SimOptions(policy=policy, arrivals=stated, **options))


def uses(result: SimResult) -> list[Use]:
    """Runs by vGPU, in order of ends."""
    fields = ["vgpu", "model", "samples", "start_us", "end_us"]
    return [Use(*row) for row in result.uses[fields].tolist()]


def outcomes(result: SimResult) -> list[str]:
    """Outcomes of the requests, by arrival."""
    return [NAMES[outcome] for outcome in result.requests["outcome"].tolist()]


def overlapping(result: SimResult) -> list[Use]:
    """Runs that began before the one before on their vGPU had ended."""
    found: list[Use] = []
    ends: dict[int, int] = {}
    for use in sorted(uses(result), key=lambda use: use.start_us):
        if use.start_us < ends.get(use.vgpu, 0):
            found.append(use)
        ends[use.vgpu] = use.end_us
    return found
