"""Simulations and event files become what reports show."""

import json
from pathlib import Path

import numpy as np
import pytest

from flows.reporting.runs import outcomes_of_simulation, uses_of_events
from tests.flows.reporting.example import example_plan
from triton_backend.contract.errors import InputError
from triton_backend.simulator.run import SimOptions, simulate


def test_a_simulation_keeps_counts_latencies_and_uses() -> None:
    plan = example_plan()
    result = simulate(plan, SimOptions(load_factor=0.5, duration_s=2))
    run = outcomes_of_simulation(result)
    for model, simulated in zip(plan.models, result.models, strict=True):
        outcome = run.models[model.name]
        assert outcome.served == simulated.served > 0
        assert outcome.latencies_ms is not None
        assert len(outcome.latencies_ms) == outcome.served + outcome.late
    assert run.uses is not None
    of_first = [vgpu.index for vgpu in plan.vgpus() if vgpu.pool in {0, 1}]
    assert (run.uses.model == 0).tolist() == np.isin(run.uses.vgpu, of_first).tolist()
    assert set(run.uses.model.tolist()) == {0, 1}


def dispatch(batch: int, vgpus: list[int]) -> str:
    hops = [{"vgpu": v} for v in vgpus]
    batch_of = {"model": 1, "pipeline": 0, "hops": hops, "samples": 2}
    return json.dumps({"t": "Dispatch", "batch_id": batch} | batch_of)


def done(batch: int, stage: int, start_us: int) -> str:
    times = {"start_us": start_us, "end_us": start_us + 10}
    return json.dumps({"t": "StageDone", "batch_id": batch, "stage": stage} | times)


def test_events_become_uses_of_the_plan_and_the_span_asked_for(tmp_path: Path) -> None:
    plan = [json.dumps({"t": "Plan", "plan_id": name}) for name in ("old", "p1")]
    lines = [plan[0], dispatch(1, [0]), done(1, 0, 50), plan[1], '{"t": "Arrival"}']
    lines += [dispatch(1, [3, 5]), done(1, 0, 100), done(1, 1, 200), dispatch(2, [4])]
    lines += [done(9, 0, 210), done(2, 0, 900)]
    (tmp_path / "events-1-0000.jsonl").write_text("\n".join(lines) + '\n{"t": "Arr')
    uses = uses_of_events(tmp_path, "p1", to_us=800)
    assert uses.vgpu.tolist() == [3, 5]
    assert uses.model.tolist() == [1, 1]
    assert uses.start_us.tolist() == [100, 200]
    assert uses.samples.tolist() == [2, 2]
    assert len(uses_of_events(tmp_path, "p1")) == 3


def test_a_shared_batch_is_one_use_of_all_its_rows(tmp_path: Path) -> None:
    times = {"start_us": 100, "end_us": 110}
    members = {"capacity": 4, "members": [[1, 1, 0, 2], [2, 0, 2, 2]]}
    lines = [json.dumps({"t": "Plan", "plan_id": "p1"}), dispatch(1, [3, 5]), dispatch(2, [5])]
    lines.append(json.dumps({"t": "SharedBatch", "shared_batch_id": 7} | times | members))
    lines.append(json.dumps({"t": "SharedBatchDone", "shared_batch_id": 7} | times))
    (tmp_path / "events-1-0000.jsonl").write_text("\n".join(lines) + "\n")
    uses = uses_of_events(tmp_path, "p1")
    assert (uses.vgpu.tolist(), uses.batch_id.tolist(), uses.samples.tolist()) == ([5], [7], [4])


def test_no_events_are_no_uses_and_a_broken_line_is_named(tmp_path: Path) -> None:
    assert len(uses_of_events(tmp_path, "p1")) == 0
    (tmp_path / "events-1.jsonl").write_text("nonsense\n")
    with pytest.raises(InputError, match=r"events-1\.jsonl, line 1: not an event"):
        uses_of_events(tmp_path, "p1")
