"""The OCR example's planned rate with lines read at three widths, beside that with one.

Models are split and profiled as the quickstart does it, on this machine's CPU classes; pages are
drawn from a seed, and their lines say the shares of the widths. Both workloads have the same SLO,
cluster, planner and profiles; in the second the recogniser has the widest size alone.

    .venv/bin/python scripts/benchmarks/applications/ocr_widths.py [--project FOLDER] [--pages 8]
"""

import argparse
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from flows.planning import PlanOptions
from flows.planning.stored_plans import load_profiles, plan_step
from flows.preparation.profiling.measure import MeasureLimits
from flows.preparation.profiling.model_profile import profile_step
from flows.preparation.splitting.stored_split import split_step
from flows.preparation.steps.given import read_steps
from flows.preparation.steps.prepare import prepare_steps
from flows.quickstart.example_project import (
    BLOCKS,
    OCR,
    application_slo_us,
    example_classes,
    example_cluster,
    ocr_models,
    ocr_workload,
)
from flows.quickstart.ocr import LINES, READERS, ReaderHere, draw_pages, shares_of_widths
from flows.quickstart.ocr import write_project as write_ocr
from flows.workspace import Workspace, workspace
from scripts.benchmarks.figures import Figure, add_destinations, conclude
from triton_backend.contract.workload import Workload

LIMITS = MeasureLimits(max_seconds=0.15, max_runs=30)  # as in the quickstart
PLAN_SECONDS = 20.0
LEAST = 1.0  # times the rate of one width


def prepared(work: Workspace, pages: int) -> Workload:
    """Split, profile and read what the workload names; the workload, with the shares of widths."""
    files, path = write_ocr(work.state.models / "examples" / OCR)
    classes = list(example_classes(OCR).values())
    splits = prepare_steps(work, list(read_steps(path).values()))
    for model in ocr_models(files):
        batch = model.max_batch or 1
        splits.append(
            split_step(
                work,
                model.path,
                model.name,
                blocks=model.blocks or BLOCKS,
                max_batch=batch,
                choices=model.choices,
            )
        )
    for split in splits:
        print(f"profile {split.name}", file=sys.stderr, flush=True)
        profile_step(work, split, classes, limits=LIMITS)
    read = [ReaderHere(files).read(page.picture) for page in draw_pages(pages)]
    rows = sum(len(one.texts) for one in read) / pages
    workload = ocr_workload(path, rows=rows, shares=shares_of_widths(read))
    (graph,) = workload.applications
    profiles, _ = load_profiles(work, example_cluster(OCR), workload)
    graph = replace(graph, slo_us=application_slo_us(graph, profiles))
    return replace(workload, applications=(graph,))


def at_one_width(workload: Workload) -> Workload:
    """The workload in which every line is read at the largest width."""
    (graph,) = workload.applications
    rows = sum(module.rows_per_request for module in graph.modules if module.model in READERS)
    widest = max(READERS, key=READERS.__getitem__)
    kept = [m for m in graph.modules if m.model not in READERS or m.model == widest]
    names = {module.name for module in kept}
    modules = tuple(
        replace(
            module,
            after=tuple(name for name in module.parents if name in names),
            rows_per_request=rows if module.model == widest else module.rows_per_request,
        )
        for module in kept
    )
    return replace(workload, applications=(replace(graph, modules=modules),))


def planned(work: Workspace, workload: Workload) -> tuple[float, dict[str, Any]]:
    """Planned pages/s, and what is planned for each model."""
    plan = plan_step(
        work, example_cluster(OCR), workload, PlanOptions(time_limit_s=PLAN_SECONDS)
    ).plan
    rate = plan.applications[0].application.rate_rps or 0.0
    rates = {model.name: model.throughput_rps for model in plan.models}
    return rate, {"rate_rps": rate, "models": rates, "upper_bound": plan.objective.upper_bound}


def main() -> int:
    """Plan both, show and store the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--project", type=Path, help="made there where it is not yet")
    parser.add_argument("--pages", type=int, default=8, help="whose lines say the shares")
    add_destinations(parser)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = asked.project or Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        before = Path.cwd()
        os.chdir(folder)
        try:
            work = workspace()
            workload = prepared(work, asked.pages)
            several, own = planned(work, workload)
            one, other = planned(work, at_one_width(workload))
        finally:
            os.chdir(before)
    named = ", ".join(map(str, LINES))
    shares = {
        module.name: module.rows_per_request
        for module in workload.applications[0].modules
        if module.size_of is not None
    }
    figures = [
        Figure(name=f"planned rate with lines at {named} columns", value=several, unit="1/s"),
        Figure(name=f"planned rate with lines at {max(LINES)} columns", value=one, unit="1/s"),
        Figure(name="ratio of both", value=several / one, least=LEAST),
    ]
    details = {"several": own, "one": other, "rows of widths": shares}
    return conclude(asked, "ocr-widths", figures, details)


if __name__ == "__main__":
    sys.exit(main())
