"""`import-profiles`: tables measured elsewhere into the warehouse. Thin."""

from typing import Any

from prefect import flow, task
from prefect.cache_policies import NO_CACHE

from flows.deployments.orchestration.limits import flow_workspace
from flows.deployments.parameters import ImportParameters
from flows.preparation.interference.stored_tables import Tables, import_tables, read_folder
from flows.workspace import Workspace


@task(name="import", cache_policy=NO_CACHE)
def take(work: Workspace, parameters: ImportParameters) -> Tables:
    """Every table of the folder, or none where a file is wrong."""
    found = read_folder(parameters.folder)
    with work.open() as warehouse:
        import_tables(warehouse, found, str(parameters.folder))
    return found


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
