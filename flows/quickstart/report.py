"""What the quickstart shows at its end: the page, and the figures side by side."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.clock import now_utc
from flows.preparation.splitting.graph import read_layers
from flows.preparation.splitting.loading import load_skeleton
from flows.preparation.splitting.model import SplitModel
from flows.progress import Step
from flows.quickstart.load_process import span_of_load
from flows.quickstart.machine import machine, versions
from flows.reporting.data import BlockRow, Outcomes, ReportData
from flows.reporting.html import write_report
from flows.reporting.runs import outcomes_of_simulation, uses_of_events
from flows.workspace import Workspace
from triton_backend.contract.plan import Plan
from triton_backend.simulator.results import SimResult
from warehouse.runs import add_run, set_report

STAND_IN = (
    "CPU classes stand in for GPUs: every run takes its class's stretch times its true time,"
    " results are real."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """Everything a run gave.

    Attributes:
        measured: the object of `load --json` over gRPC; `sampled` the same over HTTP.
        records: file of the requests' records.
        events: folder of the gateway's event files.
    """

    plan: Plan
    splits: tuple[SplitModel, ...]
    simulated: SimResult
    measured: Mapping[str, Any]
    sampled: Mapping[str, Any]
    records: Path
    events: Path
    steps: tuple[Step, ...]


def write_showcase(work: Workspace, shown: Shown) -> dict[str, Any]:
    """Store the run and write its page; the object that `quickstart --json` prints."""
    result: dict[str, Any] = {
        "plan_id": shown.plan.plan_id,
        "models": {name: _row(shown, name) for name in shown.measured["models"]},
        "http": shown.sampled["models"],
        "attainment": shown.measured.get("attainment"),
        "send_lag_ms": shown.measured["send_lag_ms"],
        "steps": [{"name": s.name, "seconds": s.seconds, "note": s.note} for s in shown.steps],
    }
    with work.open() as warehouse:
        options = {"load_factor": shown.measured.get("load_factor")}
        run_id = add_run(warehouse, "quickstart", shown.plan.plan_id, (options, result), now_utc())
        page = work.state.reports / f"{run_id}.html"
        write_report(_report(shown, run_id), page)
        set_report(warehouse, run_id, str(page))
    return {"run_id": run_id, "report": str(page.resolve()), **result}


def _row(shown: Shown, name: str) -> dict[str, Any]:
    simulated = next(m for m in shown.simulated.models if m.name == name)
    planned = shown.plan.model(name)
    return dict(shown.measured["models"][name]) | {
        "slo_ms": planned.slo_us / 1e3,
        "planned_rps": planned.throughput_rps,
        "simulated": simulated.to_dict(),
    }


def _report(shown: Shown, run_id: str) -> ReportData:
    start_us, end_us = span_of_load(shown.records)
    uses = uses_of_events(shown.events, shown.plan.plan_id, from_us=start_us, to_us=end_us)
    return ReportData(
        title=f"PoolPipe quickstart {run_id.rpartition('-')[2]}",
        plan=shown.plan,
        created=f"{now_utc():%Y-%m-%d %H:%M} UTC",
        measured=Outcomes.from_load(shown.measured, shown.records, uses=uses),
        simulated=outcomes_of_simulation(shown.simulated),
        steps=shown.steps,
        blocks={split.name: _blocks(split) for split in shown.splits},
        machine=machine(),
        versions=versions(),
        notes=(STAND_IN,),
    )


def _blocks(split: SplitModel) -> list[BlockRow]:
    nodes = read_layers(load_skeleton(split.model_path).graph).nodes
    total = sum(split.block_times_us)
    return [
        BlockRow(
            block=i,
            first_node=nodes[split.cuts[i]].name or nodes[split.cuts[i]].op_type,
            nodes=split.cuts[i + 1] - split.cuts[i],
            share=split.block_times_us[i] / total,
            boundary_bytes=split.boundary_bytes[i] if i < split.blocks - 1 else None,
            boundary=[t.name for t in split.boundaries[i]] if i < split.blocks - 1 else (),
        )
        for i in range(split.blocks)
    ]
