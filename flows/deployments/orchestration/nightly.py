"""Replanning every night.

What was asked of `scripts/operations up --nightly`, and what the server was given. It is kept in
the operations folder, because `up` registers every deployment again as `prefect.yaml` has it, and
the next `up` (after the machine was started again, say) must not quietly end the nights. How to
plan is not kept here: every run takes the options of the plan in force.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import yaml
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentUpdate
from prefect.client.schemas.schedules import (
    CronSchedule,
    IntervalSchedule,
    NoSchedule,
    RRuleSchedule,
)
from prefect.exceptions import ObjectNotFound
from pydantic import ValidationError

from flows.files import read_cluster, read_workload, write_text
from triton_backend.contract.errors import InputError, InvariantError

REPLAN, INGEST = "replan/replan", "ingest-stats/ingest-stats"
TRIGGER = "replan-on-condition"
TIMEZONE = "UTC"
NO_NIGHTS = "replan: no schedule is active, nights are not replanned (`up --nightly` sets one)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Nightly:
    """When to replan, and for what.

    Attributes:
        cluster, workload: absolute paths, read again every night.
        cron: five fields, UTC.

    Raises:
        InputError: a file cannot be read, or the schedule is none.
    """

    cluster: Path
    workload: Path
    cron: str

    def __post_init__(self) -> None:
        read_cluster(self.cluster)
        read_workload(self.workload)
        self.schedule()

    def schedule(self) -> CronSchedule:
        """As the server takes it."""
        try:
            return CronSchedule(cron=self.cron, timezone=TIMEZONE)
        except ValidationError as error:
            why = "is no schedule of five fields, as in '0 3 * * *'"
            raise InputError(f"--nightly {self.cron!r}", why) from error


def write_nightly(path: Path, nightly: Nightly) -> None:
    """Note what was asked for, for the next `up`."""
    document = {name: str(getattr(nightly, name)) for name in ("cluster", "workload", "cron")}
    write_text(path, yaml.safe_dump(document, sort_keys=False))


def kept(path: Path) -> Nightly:
    """The stored request.

    Raises:
        InputError: the note is broken, or one of its files is gone or wrong by now.
    """
    try:
        document = yaml.safe_load(path.read_text())
        files = {name: Path(document[name]) for name in ("cluster", "workload")}
        cron = str(document["cron"])
    except (yaml.YAMLError, KeyError, TypeError) as error:
        raise InputError(str(path), "is broken; give --nightly again, or --no-nightly") from error
    return Nightly(**files, cron=cron)


def arm(nightly: Nightly) -> None:
    """Schedule `replan`, and let what `ingest-stats` sees of the cluster and the load start it too.

    The deployments are registered; whatever schedule `replan` had gives way.
    """
    files = {"cluster": str(nightly.cluster), "workload": str(nightly.workload)}
    with get_client(sync_client=True) as client:
        replan = client.read_deployment_by_name(REPLAN)
        _give(client, replan, files)
        _give(client, client.read_deployment_by_name(INGEST), {"cluster": files["cluster"]})
        for schedule in client.read_deployment_schedules(replan.id):
            client.delete_deployment_schedule(replan.id, schedule.id)
        client.create_deployment_schedules(replan.id, [(nightly.schedule(), True)])
        _resume_triggers(client, replan.id)


def _give(client: SyncPrefectClient, deployment: Any, more: dict[str, str]) -> None:
    given: dict[str, Any] = deployment.parameters.get("parameters", {})
    parameters = {"parameters": {**given, **more}}
    client.update_deployment(deployment.id, DeploymentUpdate(parameters=parameters))


def _resume_triggers(client: SyncPrefectClient, deployment_id: UUID) -> None:
    triggers = _triggers(client, deployment_id)
    if not triggers:
        raise InvariantError(f"{REPLAN} has no trigger {TRIGGER}; prefect.yaml has one")
    for trigger in triggers:
        client.resume_automation(trigger.id)


def _triggers(client: SyncPrefectClient, deployment_id: UUID) -> list[Any]:
    related = client.read_resource_related_automations(f"prefect.deployment.{deployment_id}")
    return [automation for automation in related if automation.name == TRIGGER]


def described() -> list[str]:
    """The schedules that are active on the server, those made there by hand, too.

    A line per active schedule or one that says there is none, and one for the trigger; none where
    `replan` is not registered.
    """
    with get_client(sync_client=True) as client:
        try:
            replan = client.read_deployment_by_name(REPLAN)
        except ObjectNotFound:  # `up --only-classes`
            return []
        found = client.read_deployment_schedules(replan.id)
        schedules = [
            s.schedule for s in found if s.active and not isinstance(s.schedule, NoSchedule)
        ]
        armed = [t.name for t in _triggers(client, replan.id) if t.enabled]
    lines = [f"replan: {_when(one)}" for one in schedules] or [NO_NIGHTS]
    return lines + [f"replan: {name} is armed" for name in armed]


def _when(schedule: CronSchedule | IntervalSchedule | RRuleSchedule) -> str:
    if isinstance(schedule, CronSchedule):
        return f"every {schedule.cron!r} {schedule.timezone or TIMEZONE}"
    if isinstance(schedule, IntervalSchedule):
        return f"every {schedule.interval}"
    return f"by {schedule.rrule!r}"
