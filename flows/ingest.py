"""`ingest-stats`: the gateway's event files into the warehouse's minutes. Thin."""

from typing import Any

from prefect import flow, task
from prefect.cache_policies import NO_CACHE

from flows.parameters import IngestParameters
from flows.steps.ingest import Ingested, ingest
from flows.steps.workspace import Workspace, workspace


# Each piece is stored with its cursor, so a retry goes on where it was cut off.
@task(name="ingest", cache_policy=NO_CACHE, retries=2, retry_delay_seconds=20)
def read_events(work: Workspace, parameters: IngestParameters) -> Ingested:
    """What is new since the last run."""
    return ingest(work, parameters.folder)


@flow(name="ingest-stats", timeout_seconds=1200)
def ingest_stats(parameters: IngestParameters) -> dict[str, Any]:
    """Read on.

    Raises:
        InputError: the warehouse cannot be written.
    """
    found = read_events(workspace(parameters.warehouse), parameters)
    return {
        "bytes_read": found.bytes_read,
        "minutes": found.minutes,
        "skipped_lines": found.skipped,
    }
