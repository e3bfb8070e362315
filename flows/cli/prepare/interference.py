"""`interference fit`: how parts of a GPU slow each other down, from pairs that were measured."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.cli.console import note, print_json, show
from flows.cli.registry import command, family
from flows.cli.shared_options import WAREHOUSE, AsJson, WarehouseFile

if TYPE_CHECKING:
    from flows.preparation.interference.fit import Errors, FitReport
    from flows.workspace import Workspace
    from triton_backend.contract.profiles import ModelProfile, Pair

_SHOWN = 10  # odd rows

family("interference", "How parts of a GPU slow each other down.")


@command(
    "interference fit",
    "poolpipe interference fit",
    "poolpipe interference fit --from-runs --robust",
    "poolpipe interference fit tables/ --gpu-class V100 --robust -o interference.csv",
)
def fit_interference(
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="FOLDER",
            help="Folder with block_latency_us.csv, utilisation.csv and pairs.csv; by default "
            "the tables of the warehouse are used.",
        ),
    ] = None,
    *,
    gpu_class: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The GPU class to fit; needed where the tables hold several classes.",
        ),
    ] = None,
    from_runs: Annotated[
        bool,
        typer.Option(
            "--from-runs",
            help="Use pairs that the running system measured (`poolpipe ingest`), not profiled "
            "ones.",
        ),
    ] = False,
    robust: Annotated[
        bool, typer.Option("--robust", help="Give outliers less weight (Huber loss).")
    ] = False,
    seed: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, help="Seed that divides the pairs into training and validation."
        ),
    ] = 0,
    output: Annotated[
        Path | None,
        typer.Option("-o", metavar="FILE", help="Also write the model to this CSV file."),
    ] = None,
    as_json: AsJson = False,
    warehouse: WarehouseFile = WAREHOUSE,
) -> None:
    """Fit the interference model of a GPU class to pairs measured side by side.

    Seven tenths of the pairs train it, the rest says how well it does. Where a constant does no
    worse, the constant is the model.
    """
    from flows.clock import now_utc
    from flows.preparation.interference import stored_tables, tables
    from flows.workspace import workspace
    from warehouse.profiles import add_interference

    work = workspace(warehouse)
    profiles, pairs = _pairs_asked(work, folder, from_runs=from_runs)
    fitted = stored_tables.fit_tables(profiles, pairs, gpu_class, seed=seed, robust=robust)
    name, report, unknown = fitted.gpu_class, fitted.report, fitted.unknown
    with work.open() as store:
        add_interference(
            store,
            {name: report.model},
            str(folder or ("runs" if from_runs else "pairs")),
            now_utc(),
        )
    if unknown:
        note(f"{unknown} sides of pairs left out: not measured alone")
    for line in report.odd[:_SHOWN]:
        note(f"odd, but used: {line}")
    if len(report.odd) > _SHOWN:
        note(f"odd, but used: {len(report.odd) - _SHOWN} more")
    if output is not None:
        tables.write_models(output, {name: report.model})
    if as_json:
        print_json(_document(name, report, unknown))
        return
    if report.refused:
        show("the linear model is no better than a constant at the 95th percentile: refused")
    kind = "constant" if report.refused else "linear model"
    show(f"{name}: {kind} from {report.trained} rows, checked on {report.validated}")
    for what, errors in (("linear model", report.linear), ("constant", report.constant)):
        show(f"  {what}: error mean {errors.mean:.2%}, p90 {errors.p90:.2%}, p95 {errors.p95:.2%}")
    show("  " + ", ".join(f"{k} {v:.4g}" for k, v in _constants(report).items()))
    show(f"plans on {name} use it from now on")
    if output is not None:
        show(f"written to {output}")


def _pairs_asked(
    work: "Workspace", folder: Path | None, *, from_runs: bool
) -> "tuple[dict[str, ModelProfile], list[Pair]]":
    """Profiles and pairs of a folder, or of the warehouse: as profiled, or as runs."""
    from flows.preparation.interference import stored_tables
    from triton_backend.contract.errors import InputError

    if folder is None:
        with work.open(read_only=True) as store:
            return stored_tables.known_pairs(store, from_runs=from_runs)
    if from_runs:
        raise InputError("--from-runs", "takes runs from the warehouse, not from a folder")
    found = stored_tables.read_folder(folder)
    return dict(found.profiles), found.pairs


def _constants(report: "FitReport") -> dict[str, float]:
    from triton_backend.contract.profiles import CONSTANTS

    return {name: getattr(report.model, name) for name in CONSTANTS}


def _document(gpu_class: str, report: "FitReport", unknown: int) -> dict[str, Any]:
    def plain(errors: "Errors") -> dict[str, float]:
        return {
            "mean": errors.mean,
            "p90": errors.p90,
            "p95": errors.p95,
            "max": errors.largest,
        }

    return {
        "gpu_class": gpu_class,
        "refused": report.refused,
        "constants": _constants(report),
        "residuals": list(report.model.residuals),
        "rows": {"trained": report.trained, "validated": report.validated, "left_out": unknown},
        "linear": plain(report.linear),
        "constant": plain(report.constant),
        "odd": list(report.odd),
    }
