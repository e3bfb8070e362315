"""`import-profiles` and `fit-interference`: measured tables in, and their fit. Thin."""

from typing import Any

from prefect import flow, task
from prefect.cache_policies import NO_CACHE

from flows.deployments.orchestration.complaints import of_form
from flows.deployments.orchestration.limits import flow_workspace
from flows.deployments.parameters import FitParameters, ImportParameters
from flows.preparation.interference.stored_tables import (
    Fitted,
    Tables,
    fit_step,
    import_tables,
    read_folder,
)
from flows.workspace import Workspace


@task(name="import", cache_policy=NO_CACHE)
def take(work: Workspace, parameters: ImportParameters) -> Tables:
    """Every table of the folder, or none where a file is wrong."""
    found = read_folder(parameters.folder)
    with work.open() as warehouse:
        import_tables(warehouse, found, str(parameters.folder))
    return found


@of_form
@flow(name="import-profiles", timeout_seconds=3600)
def import_profiles(parameters: ImportParameters) -> dict[str, Any]:
    """Import; what the tables lack is said in `warnings`.

    Raises:
        InputError: a file cannot be used, or the folder has none.
    """
    found = take(flow_workspace(parameters.warehouse), parameters)
    return {
        "models": sorted({*found.profiles, *found.utilisation}),
        "pairs": len(found.pairs),
        "interference": sorted(found.interference),
        "warnings": found.warnings,
    }


@task(name="fit", cache_policy=NO_CACHE)
def fit(work: Workspace, parameters: FitParameters) -> Fitted:
    """Fit and store; the next plan uses it."""
    return fit_step(work, parameters.folder, parameters.options())


@of_form
@flow(name="fit-interference", timeout_seconds=3600)
def fit_interference(parameters: FitParameters) -> dict[str, Any]:
    """Fit; where a constant does no worse than the linear model, the constant is stored.

    Raises:
        InputError: there are no pairs, or none of the class.
    """
    fitted = fit(flow_workspace(parameters.warehouse), parameters)
    report = fitted.report
    return {
        "gpu_class": fitted.gpu_class,
        "constant": report.refused,
        "rows": {"trained": report.trained, "validated": report.validated},
        "error_p95": (report.constant if report.refused else report.linear).p95,
        "left_out": fitted.unknown,
    }
