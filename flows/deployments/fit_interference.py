"""`fit-interference`: how parts of a GPU slow each other down, from measured pairs. Thin."""

from typing import Any

from prefect import flow, task
from prefect.cache_policies import NO_CACHE

from flows.deployments.orchestration.limits import flow_workspace
from flows.deployments.parameters import FitParameters
from flows.preparation.interference.stored_tables import Fitted, fit_step
from flows.workspace import Workspace


@task(name="fit", cache_policy=NO_CACHE)
def fit(work: Workspace, parameters: FitParameters) -> Fitted:
    """Fit and store; the next plan uses it."""
    return fit_step(work, parameters.folder, parameters.options())


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
