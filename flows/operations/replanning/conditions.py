"""Conditions of a running system that call for a new plan before the night.

Here: the conditions, from the warehouse's minutes and the system's own status. Not here: saying
so (the flow emits events, which automations of `prefect.yaml` answer with a replan).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from flows.operations.replanning.decide import share_shift
from flows.operations.replanning.demands import offered_between
from flows.release.rollout.outcomes import ENOUGH_REQUESTS
from flows.release.server.running import ServerError, read_state
from flows.workspace import Workspace, find_plan
from triton_backend.contract.cluster import Cluster
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.scheduler.policies.demand import planned_rates
from warehouse.observations import rates_between

ATTAINMENT_LOW = "poolpipe.attainment.low"
SHARE_SHIFTED = "poolpipe.share.shifted"
WORKERS_LOST = "poolpipe.workers.lost"
NODES_ADDED = "poolpipe.nodes.added"
NODES_REMOVED = "poolpipe.nodes.removed"
MINUTE = timedelta(minutes=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When a condition is worth an event.

    Attributes:
        attainment: least share of a model's requests served in time.
        share: most share of the requests that may belong to other models than planned.
        minutes: whole minutes looked at, the newest that have ended.
    """

    attainment: float = 0.99
    share: float = 0.2
    minutes: int = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One condition that holds: the event's name, what it is about, and the reason in words."""

    event: str
    about: str
    reason: str


def conditions(
    work: Workspace, now: datetime, limits: Limits, cluster: Cluster | None = None
) -> list[Condition]:
    """Everything that holds now; nothing where no system is served or measured.

    `cluster` is what there is now; GPUs that the served plan's cluster lacks, or has beyond it, are
    a condition.
    """
    until = now.replace(second=0, microsecond=0)
    found: list[Condition] = []
    if work.warehouse.exists():
        with work.open(read_only=True) as warehouse:
            rows = rates_between(warehouse, until - limits.minutes * MINUTE, until)
        found = low_attainment(rows, limits)
    try:
        status = read_state(work.state.serve).control("status")
    except (InputError, ServerError):
        return found
    workers = status["workers"]
    if workers["up"] < workers["total"]:
        text = f"{workers['up']} of {workers['total']} workers are up"
        found.append(Condition(event=WORKERS_LOST, about=str(status["plan_id"]), reason=text))
    try:
        plan = find_plan(work, str(status["plan_id"]))
    except InputError:
        return found
    since = until - limits.minutes * MINUTE
    shift = _shift(plan, offered_between(work, plan.workload, since, until))
    if shift > limits.share:
        text = f"{shift:.0%} of the requests belong to other models than planned"
        found.append(Condition(event=SHARE_SHIFTED, about=plan.plan_id, reason=text))
    return found if cluster is None else found + other_nodes(plan, cluster)


def other_nodes(plan: Plan, now: Cluster) -> list[Condition]:
    """Differences of the cluster from the one planned for."""
    planned = {c.name: plan.cluster.gpus(c.name) for c in plan.cluster.gpu_classes}
    there = {c.name: now.gpus(c.name) for c in now.gpu_classes}
    found: list[Condition] = []
    for event, more, fewer in ((NODES_ADDED, there, planned), (NODES_REMOVED, planned, there)):
        grown = {n: count - fewer.get(n, 0) for n, count in more.items() if count > fewer.get(n, 0)}
        if grown:
            words = ", ".join(f"{count} {name}" for name, count in sorted(grown.items()))
            side = "not planned for" if event == NODES_ADDED else "planned for but gone"
            reason = f"GPUs {side}: {words}"
            found.append(Condition(event=event, about=plan.plan_id, reason=reason))
    return found


def low_attainment(rows: Sequence[dict[str, Any]], limits: Limits) -> list[Condition]:
    """Models under the target, from rows of minute, model, offered_rps and served_rps."""
    found: list[Condition] = []
    for model in sorted({row["model"] for row in rows}):
        mine = [row for row in rows if row["model"] == model]
        offered, served = (
            round(60 * sum(row[name] for row in mine)) for name in ("offered_rps", "served_rps")
        )
        if offered >= ENOUGH_REQUESTS and served < limits.attainment * offered:
            reason = f"{model} attains {served / offered:.2%} of {offered} requests"
            found.append(Condition(event=ATTAINMENT_LOW, about=model, reason=reason))
    return found


def _shift(plan: Plan, rows: Sequence[tuple[datetime, str, float]]) -> float:
    planned = planned_rates(plan)
    measured = [sum(rps for _, known, rps in rows if known == name) for name in planned]
    if 60 * sum(measured) < ENOUGH_REQUESTS:
        return 0.0
    return share_shift(list(planned.values()), measured)
