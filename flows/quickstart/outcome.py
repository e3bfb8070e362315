"""Result of a quickstart: figures side by side, its page, and the verdict on them.

Here: the typed outcome, the object that `quickstart --json` prints, words about what is missing.
Not here: exit codes.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.clock import now_utc
from flows.operations.adoption.triton_alone import beside_triton_of
from flows.preparation.splitting.graph import read_layers
from flows.preparation.splitting.loading import load_skeleton
from flows.preparation.splitting.model import SplitModel
from flows.progress import Step
from flows.quickstart.load_process import LoadResult, span_of_load
from flows.quickstart.machine import machine, versions
from flows.reporting.data import BesideTriton, BlockRow, Outcomes, ReportData
from flows.reporting.html import write_report
from flows.reporting.runs import outcomes_of_simulation, uses_of_events
from flows.workspace import Workspace
from triton_backend.contract.plan import Plan
from triton_backend.contract.units import us_to_ms
from triton_backend.runtimes.stage_tensors import served_model, served_models
from triton_backend.simulator.results import ApplicationResult, ModelResult, SimResult
from warehouse.runs import add_run, set_report

STAND_IN = (
    "CPU classes stand in for GPUs: every run takes its class's stretch times its true time,"
    " results are real."
)
# A client that itself sends so much later than it should, in parts of the shortest SLO, was
# starved.
STARVED = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class QuickstartOutcome:
    """Everything a run gave.

    Attributes:
        measured, sampled: load over gRPC, and over HTTP.
        records: file of the requests' records.
        events: folder of the gateway's event files.
    """

    plan: Plan
    splits: tuple[SplitModel, ...]
    simulated: SimResult
    measured: LoadResult
    sampled: LoadResult
    records: Path
    events: Path
    steps: tuple[Step, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain form: what the warehouse keeps, and `quickstart --json` prints with the rest."""
        return {
            "plan_id": self.plan.plan_id,
            "models": {name: self._row(name) for name in self.measured.models},
            "http": self.sampled.document["models"],
            "attainment": self.measured.document.get("attainment"),
            "send_lag_ms": self.measured.document["send_lag_ms"],
            "messages": self.measured.document.get("messages", {}),
            "steps": [{"name": s.name, "seconds": s.seconds, "note": s.note} for s in self.steps],
        }

    def simulated_of(self, name: str) -> ModelResult | ApplicationResult:
        """The simulation of a model or an application."""
        found = self.simulated.applications.get(name)
        return found or next(model for model in self.simulated.models if model.name == name)

    def _row(self, name: str) -> dict[str, Any]:
        planned, simulated = served_model(self.plan, name), self.simulated_of(name)
        return dict(self.measured.document["models"][name]) | {
            "slo_ms": us_to_ms(planned.slo_us),
            "planned_rps": planned.throughput_rps,
            "simulated": simulated.to_dict(),
        }


def shortcomings(found: QuickstartOutcome, attainment_target: float) -> list[str]:
    """Failures: wrong answers, unanswered models, models under the target."""
    wrong = [
        f"{name} gave {model.wrong} wrong answer{'s' * (model.wrong > 1)} of {model.checked}{over}"
        for load, over in ((found.measured, ""), (found.sampled, " over HTTP"))
        for name, model in load.models.items()
        if model.wrong
    ]
    missed = [
        f"{name} attains {model.attainment:.2%} of {model.offered} requests,"
        f" under the target of {attainment_target:.2%}"
        for name, model in found.measured.models.items()
        if model.attainment is not None and model.attainment < attainment_target
    ]
    return wrong + missed


def overloaded(found: QuickstartOutcome) -> str | None:
    """Why the figures say more of this machine than of the plan, if they do."""
    lag_ms = found.measured.send_lag_p99_ms
    shortest_ms = us_to_ms(min(model.slo_us for model in served_models(found.plan)))
    if lag_ms is None or lag_ms <= STARVED * shortest_ms:
        return None
    return (
        f"the machine was overloaded: the load itself was sent up to {lag_ms:.0f} ms late (p99),"
        f" of {shortest_ms:.0f} ms in which to answer"
    )


def failures(found: QuickstartOutcome) -> str | None:
    """Errors of the requests without an answer, if any failed."""
    failed = sum(model.failed for model in found.measured.models.values())
    said = found.measured.document.get("messages", {})
    if not failed:
        return None
    return f"{failed} requests failed; errors: {'; '.join(f'{n} x {t}' for t, n in said.items())}"


def page_notes(found: QuickstartOutcome) -> tuple[str, ...]:
    """Notes of the report's page: on classes of cores, and those that the terminal shows."""
    shown = (STAND_IN, overloaded(found), failures(found))
    return tuple(note for note in shown if note is not None)


def keep_outcome(work: Workspace, found: QuickstartOutcome) -> tuple[str, Path]:
    """Store the run and write its page; the run's id and the page."""
    options = {"load_factor": found.measured.document.get("load_factor")}
    beside = beside_triton_of(work, found.plan)
    with work.open() as warehouse:
        documents = (options, found.to_dict())
        run_id = add_run(warehouse, "quickstart", found.plan.plan_id, documents, now_utc())
        page = (work.state.reports / f"{run_id}.html").resolve()
        write_report(_report(found, run_id, beside), page)
        set_report(warehouse, run_id, str(page))
    return run_id, page


def _report(found: QuickstartOutcome, run_id: str, beside: BesideTriton | None) -> ReportData:
    start_us, end_us = span_of_load(found.records)
    uses = uses_of_events(found.events, found.plan.plan_id, from_us=start_us, to_us=end_us)
    return ReportData(
        title=f"PoolPipe quickstart {run_id.rpartition('-')[2]}",
        plan=found.plan,
        created=f"{now_utc():%Y-%m-%d %H:%M} UTC",
        measured=Outcomes.from_load(found.measured.document, found.records, uses=uses),
        simulated=outcomes_of_simulation(found.simulated),
        beside_triton=beside,
        steps=found.steps,
        blocks={split.name: _blocks(split) for split in found.splits},
        machine=machine(),
        versions=versions(),
        notes=page_notes(found),
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
