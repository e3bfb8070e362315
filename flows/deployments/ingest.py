"""`ingest-stats`.

The gateway's event files into the warehouse's minutes, and events on what they show. Thin.
"""

from typing import Any

from prefect import flow, task
from prefect.cache_policies import NO_CACHE
from prefect.events import emit_event

from flows.clock import now_utc
from flows.deployments.orchestration.complaints import of_form
from flows.deployments.orchestration.limits import flow_workspace
from flows.deployments.parameters import IngestParameters
from flows.files import read_cluster
from flows.operations.ingest.reader import Ingested, ingest
from flows.operations.replanning.conditions import Condition, Limits, conditions
from flows.workspace import Workspace


# Each piece is stored with its cursor, so a retry goes on where it was cut off.
@task(name="ingest", cache_policy=NO_CACHE, retries=2, retry_delay_seconds=20)
def read_events(work: Workspace, parameters: IngestParameters) -> Ingested:
    """Everything new since the last run."""
    return ingest(work, parameters.folder)


@task(name="watch", cache_policy=NO_CACHE)
def watch(work: Workspace, parameters: IngestParameters) -> list[Condition]:
    """Emit one event per condition that holds; automations replan on them."""
    limits = Limits(
        attainment=parameters.attainment_target,
        share=parameters.share_shift,
        minutes=parameters.watched_minutes,
    )
    cluster = read_cluster(parameters.cluster) if parameters.cluster else None
    found = conditions(work, now_utc(), limits, cluster)
    for condition in found:
        emit_event(
            event=condition.event,
            resource={"prefect.resource.id": f"poolpipe.{condition.about}"},
            payload={"reason": condition.reason},
        )
    return found


@of_form
@flow(name="ingest-stats", timeout_seconds=1200)
def ingest_stats(parameters: IngestParameters) -> dict[str, Any]:
    """Read on, then say what should not wait.

    Raises:
        InputError: the warehouse cannot be written.
    """
    work = flow_workspace(parameters.warehouse)
    found = read_events(work, parameters)
    return {
        "bytes_read": found.bytes_read,
        "minutes": found.minutes,
        "skipped_lines": found.skipped,
        "conditions": [condition.reason for condition in watch(work, parameters)],
    }
