"""Runs as Chrome traces: a slice per batch and stage, on named rows."""

import json
from pathlib import Path

from flows.reporting.perfetto import trace_of, write_trace
from flows.reporting.runs import outcomes_of_simulation
from tests.flows.reporting.example import example_plan
from triton_backend.simulator.run import SimOptions, simulate


def test_every_use_of_a_vgpu_is_a_slice_of_its_row() -> None:
    plan = example_plan()
    result = simulate(plan, SimOptions(load_factor=0.5, duration_s=2))
    uses = outcomes_of_simulation(result).uses
    assert uses is not None
    events = trace_of(plan, uses)["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    assert len(slices) == len(uses)
    assert sum(s["dur"] for s in slices) == int((uses.end_us - uses.start_us).sum())
    assert {s["name"] for s in slices} == {model.name for model in plan.models}
    starts = [s["ts"] for s in slices]
    assert starts == sorted(starts)
    assert starts[0] == 0
    # One batch runs on a vGPU at a time.
    for vgpu in plan.vgpus():
        ends = 0
        for s in (s for s in slices if s["tid"] == vgpu.index):
            assert (s["pid"], s["cat"]) == (vgpu.slot.node, plan.pools[vgpu.pool].gpu_class)
            assert s["ts"] >= ends
            ends = s["ts"] + s["dur"]


def test_rows_are_named_after_nodes_and_vgpus(tmp_path: Path) -> None:
    plan = example_plan()
    uses = outcomes_of_simulation(simulate(plan, SimOptions(load_factor=0.5, duration_s=1))).uses
    assert uses is not None
    events = json.loads(write_trace(plan, uses, tmp_path / "new" / "t.json").read_text())
    names = {
        (e["name"], e["tid"] if e["name"] == "thread_name" else e["pid"]): e["args"]["name"]
        for e in events["traceEvents"]
        if e["ph"] == "M"
    }
    for vgpu in plan.vgpus():
        pool = plan.pools[vgpu.pool].name
        assert names["thread_name", vgpu.index].endswith(f".{vgpu.slot.slot} {pool}")
        assert names["process_name", vgpu.slot.node] == plan.cluster.node_name(vgpu.slot.node)
