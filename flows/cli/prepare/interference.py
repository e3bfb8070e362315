"""`interference fit`: how parts of a GPU slow each other down, from pairs that were measured."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.cli.console import note, print_json, show
from flows.cli.registry import command, family
from flows.cli.shared_options import WAREHOUSE, AsJson, WarehouseFile
from flows.preparation.interference.options import FitOptions

if TYPE_CHECKING:
    from flows.preparation.interference.fit import Errors, FitReport

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
    how: FitOptions,
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
    from flows.preparation.interference import stored_tables, tables
    from flows.workspace import workspace

    fitted = stored_tables.fit_step(workspace(warehouse), folder, how)
    name, report, unknown = fitted.gpu_class, fitted.report, fitted.unknown
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
