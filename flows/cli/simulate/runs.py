"""A plain run and a search for goodput: made, kept, printed."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from flows.cli.console import print_json, progress, show, table

if TYPE_CHECKING:
    from flows.cli.simulate.options import GoodputRun, PlainRun
    from flows.cli.simulate.request import SimulationRequest
    from triton_backend.contract.plan import Plan
    from triton_backend.simulator.results import Outcome, SimResult


def show_run(
    plan: "Plan",
    asked: "PlainRun",
    request: "SimulationRequest",
    warehouse: Path,
    *,
    as_json: bool,
) -> None:
    """Simulate once; keep and print what came of it.

    Raises:
        InputError: an option does not fit the plan, or a file cannot be used.
    """
    from flows.files import check_writable

    check_writable(asked.records)
    with progress("simulating"):
        result = request.run(plan)
        _write_records(asked.records, result)
    _conclude(plan, request, result, warehouse, as_json=as_json)


def show_goodput(
    plan: "Plan",
    asked: "GoodputRun",
    request: "SimulationRequest",
    warehouse: Path,
    *,
    as_json: bool,
) -> None:
    """The same, and the highest load factors at which enough is served in time.

    Raises:
        InputError: as `show_run`.
    """
    from flows.files import check_writable
    from triton_backend.simulator.goodput import ATTAINMENT, STEP, goodput_report

    attainment = ATTAINMENT if asked.find_goodput is None else asked.find_goodput
    step = STEP if asked.goodput_step is None else asked.goodput_step
    check_writable(asked.records)
    with progress("simulating"):
        result = request.run(plan)
        found = goodput_report(plan, request.complete_options(), attainment, step)
        result = replace(result, goodput=found)
        _write_records(asked.records, result)
    _conclude(plan, request, result, warehouse, as_json=as_json)


def _write_records(file: Path | None, result: "SimResult") -> None:
    from triton_backend.simulator.counted import request_columns
    from triton_backend.simulator.results import OPTIONAL
    from warehouse.parquet import write_columns

    if file is not None:
        write_columns(file, request_columns(result), OPTIONAL)


def _conclude(
    plan: "Plan",
    request: "SimulationRequest",
    result: "SimResult",
    warehouse: Path,
    *,
    as_json: bool,
) -> None:
    from flows.cli.project import keep_run

    out = result.to_dict()
    run_id = keep_run(warehouse, "simulate", plan, (request.to_dict(), out))
    if as_json:
        print_json(out | ({} if run_id is None else {"run_id": run_id}))
        return
    _print(result)
    show(f"stored as {run_id}" if run_id else "not stored")


def _print(result: "SimResult") -> None:
    from flows.reporting import words

    rows = [
        (
            model.name,
            model.offered,
            model.served,
            model.late,
            model.dropped,
            _attained(model.outcome),
            words.milliseconds(model.latency_ms.p50),
            words.milliseconds(model.latency_ms.p99),
            model.mean_batch,
        )
        for model in result.models
        if model.offered or model.batches or not result.applications
    ]
    head = ("model", "offered", "served", "late", "dropped", "attainment", "p50", "p99", "batch")
    show(table(head, rows))
    _print_low(result)
    _print_entries(result)
    _print_applications(result)
    busy = ", ".join(
        f"{words.percent(share)} of {name}" for name, share in result.utilisation.items()
    )
    show(f"attainment {words.percent(result.attainment, 2)}; busy: {busy}")
    if result.goodput:
        rows = [(name, found["load_factor"], found["rps"]) for name, found in _found(result)]
        show(table(("goodput", "load factor", "requests/s"), rows))


def _attained(outcome: "Outcome") -> str:
    """Share in time of what was offered; a dash where nothing was."""
    from flows.reporting import words

    return words.percent(outcome.attainment if outcome.offered else None, 2)


def _print_low(result: "SimResult") -> None:
    """Low requests, where any were offered."""
    rows = [
        (model.name, low.offered, low.served, low.dropped, _attained(low))
        for model in result.models
        for low in [model.low]
        if low
    ]
    if rows:
        show(table(("low requests of", "offered", "served", "dropped", "attainment"), rows))


def _print_entries(result: "SimResult") -> None:
    from flows.reporting import words

    rows = [
        (
            model,
            name,
            found.outcome.offered,
            found.outcome.served,
            found.outcome.late,
            found.outcome.dropped,
            _attained(found.outcome),
            words.milliseconds(found.latency_ms.p50),
            words.milliseconds(found.latency_ms.p99),
            f"{fill.samples:.2f}" if fill else "–",
            f"{fill.entries:.2f}" if fill else "–",
        )
        for model, entries in result.entries.items()
        for name, found in entries.items()
        for fill in [found.shared_batch_fill]
    ]
    head = ("model", "entry", "offered", "served", "late", "dropped", "attainment", "p50", "p99")
    if rows:
        show(table((*head, "samples/batch", "entries/batch"), rows, texts=2))


def _print_applications(result: "SimResult") -> None:
    from flows.reporting import words

    for name, found in result.applications.items():
        jobs = found.outcome
        rows = [
            (
                name,
                jobs.offered,
                jobs.served,
                jobs.late,
                jobs.dropped,
                _attained(jobs),
                words.milliseconds(found.latency_ms.p50),
                words.milliseconds(found.latency_ms.p99),
            )
        ]
        head = ("application", "offered", "served", "late", "dropped", "attainment", "p50", "p99")
        show(table(head, rows))
        rows = [
            (
                name,
                module.tasks,
                module.rows,
                module.done,
                words.milliseconds(module.queueing_ms.p50),
                words.milliseconds(module.latency_ms.p50),
                words.milliseconds(module.latency_ms.p99),
            )
            for name, module in found.modules.items()
        ]
        show(table(("module", "tasks", "rows", "done", "queueing", "p50", "p99"), rows))


def _found(result: "SimResult") -> list[tuple[str, dict[str, float]]]:
    return [("all together", result.goodput["joint"]), *result.goodput["models"].items()]
