"""Turns on a shared vGPU (gpulets).

Who waits how long, and that nothing runs at one time with another.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.plans import hand_model, hand_pipeline, hand_plan, hand_stage
from triton_backend.contract.cluster import NodeGroup
from triton_backend.contract.plan import PlacementRun, Plan
from triton_backend.simulator.offered import Instant
from triton_backend.simulator.results import SimResult
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions
from triton_backend.simulator.world import SERVED

Tables = Sequence[Sequence[int]]


def one_vgpu(tables: Tables, slo_us: Sequence[int], vgpus: int = 1) -> Plan:
    """Models of one stage that take turns on vGPUs, batches as long as their tables."""
    place = PlacementRun(node=0, gpu=0, slot=0, gpus=vgpus)
    models = [
        hand_model(
            f"m{number}",
            hand_pipeline(hand_stage((0, 1), "GPU", place, table), batch=len(table), rate_rps=0.0),
            slo_us=slo,
            policy="turns",
        )
        for number, (table, slo) in enumerate(zip(tables, slo_us, strict=True))
    ]
    return hand_plan(
        *models, nodes=[NodeGroup(count=1, gpu_class="GPU", gpus=vgpus, nic_gbps=10.0)]
    )


def overlaps(result: SimResult) -> list[tuple[int, int]]:
    """Pairs of batches that ran at one instant on one vGPU."""
    found: list[tuple[int, int]] = []
    for vgpu in np.unique(result.uses["vgpu"]):
        runs = np.sort(result.uses[result.uses["vgpu"] == vgpu], order=["start_us", "end_us"])
        for before, after in pairwise(runs):
            if after["start_us"] < before["end_us"]:
                found.append((int(before["batch_id"]), int(after["batch_id"])))
    return found


@st.composite
def rounds(
    draw: st.DrawFn,
) -> tuple[list[list[int]], list[list[int]]]:
    """Tables of latencies by batch, and arrivals.

    At most a batch of a model within any duty cycle.
    """
    tables: list[list[int]] = []
    for _ in range(draw(st.integers(1, 4))):
        table = [draw(st.integers(1, 200))]
        for _ in range(draw(st.integers(0, 5))):
            table.append(table[-1] + draw(st.integers(0, 60)))
        tables.append(table)
    duty = sum(table[-1] for table in tables)
    arrivals: list[list[int]] = []
    for table in tables:
        at = draw(st.integers(0, 2 * duty))  # the phase
        own: list[int] = []
        for _ in range(draw(st.integers(1, 12))):
            at += draw(st.integers(0, duty))
            if len(own) >= len(table):  # the one that many before it lies a whole duty cycle back
                at = max(at, own[-len(table)] + duty + 1)
            own.append(at)
        arrivals.append(own)
    return tables, arrivals


@pytest.mark.long
@settings(max_examples=300, deadline=None)
@given(case=rounds())
def test_a_request_ends_within_the_duty_cycle_and_its_own_latency(
    case: tuple[list[list[int]], list[list[int]]],
) -> None:
    """The theorem of turns: duty = sum of the planned batches' latencies of all on the vGPU."""
    tables, arrivals = case
    duty = sum(table[-1] for table in tables)
    plan = one_vgpu(tables, [duty + table[-1] for table in tables])
    instants = {f"m{n}": np.asarray(own) for n, own in enumerate(arrivals)}
    result = simulate(plan, SimOptions(arrivals=Instant(by_model=instants)))
    assert (result.requests["outcome"] == SERVED).all()
    took = result.requests["finish_us"] - result.requests["arrival_us"]
    bound = np.asarray([duty + table[-1] for table in tables])[result.requests["model"]]
    assert (took <= bound).all()
    assert overlaps(result) == []


@pytest.mark.parametrize("noise", [0.0, 0.3])
@pytest.mark.parametrize("vgpus", [1, 3])
def test_under_any_load_a_vgpu_runs_one_batch_at_a_time(noise: float, vgpus: int) -> None:
    tables = [[3_000, 5_000, 6_500], [4_000], [1_000, 1_400]]
    plan = one_vgpu(tables, [30_000, 40_000, 12_000], vgpus)
    arrivals = {
        f"m{n}": np.cumsum(np.random.default_rng([7, n]).exponential(1_500, 2_000)).astype(np.int64)
        for n in range(3)
    }
    options = SimOptions(arrivals=Instant(by_model=arrivals), latency_noise_cv=noise)
    result = simulate(plan, options)
    assert overlaps(result) == []
    assert len(result.uses) > 300
    if not noise:  # accepted is in time
        assert all(model.late == 0 for model in result.models)


def test_a_neighbour_far_over_its_rate_costs_the_other_nothing() -> None:
    # A cycle is 2 + 5 ms. Model 1 stays within one request in 8 ms, model 0 offers three times too
    # much.
    plan = one_vgpu([[2_000], [5_000]], [40_000, 12_000])
    arrivals = {"m0": np.arange(0, 400_000, 1_000), "m1": np.arange(500, 400_000, 8_000)}
    result = simulate(plan, SimOptions(arrivals=Instant(by_model=arrivals)))
    crowded, kept = result.models
    assert kept.attainment == 1.0
    assert crowded.dropped > 0
