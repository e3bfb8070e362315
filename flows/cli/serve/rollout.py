"""`rollout`: a plan into force on the running system, guarded; and the rollouts so far."""

from pathlib import Path
from typing import Annotated

import typer

from flows.cli.console import print_json, say, show, table
from flows.cli.registry import command
from flows.cli.shared_options import WAREHOUSE, AsJson, PlanArgument, PlanOption, WarehouseFile


@command(
    "rollout",
    "poolpipe rollout plan.json --bake-seconds 60 --reason 'new SLO'",
    "poolpipe rollout --rollback",
    "poolpipe rollout --status",
)
def rollout(
    plan: PlanArgument = None,
    *,
    plan_option: PlanOption = None,
    bake_seconds: Annotated[
        float,
        typer.Option(
            metavar="N", min=0.0, max=1e6, help="Watch the new plan so long; on breach it goes."
        ),
    ] = 30.0,
    attainment_target: Annotated[
        float, typer.Option(metavar="N", min=0.01, max=1.0, help="Attainment under which it goes.")
    ] = 0.95,
    reason: Annotated[str, typer.Option(help="Why, for the history.")] = "requested",
    rollback: Annotated[
        bool, typer.Option("--rollback", help="Bring back the plan before the last rollout.")
    ] = False,
    status: Annotated[
        bool, typer.Option("--status", help="Show the rollouts so far, and do nothing.")
    ] = False,
    as_json: AsJson = False,
    warehouse: WarehouseFile = WAREHOUSE,
) -> None:
    """Bring a plan into force on the running system.

    Checked before and watched after; on breach the former plan comes back.
    """
    from flows.release.rollout.guarded import DONE, RolloutOptions, roll_back, roll_out
    from flows.workspace import workspace
    from triton_backend.contract.errors import InputError

    named = plan is not None or plan_option is not None
    if [named, rollback, status].count(True) != 1:
        raise InputError("rollout", "takes a plan, --rollback or --status, one of them")
    if status:
        _history(warehouse, as_json=as_json)
        return
    from flows.cli.project import the_plan

    asked = RolloutOptions(
        bake_seconds=bake_seconds, attainment_target=attainment_target, reason=reason
    )
    work, report = workspace(warehouse), say(quiet=as_json)
    if rollback:
        done = roll_back(work, asked, report)
    else:
        done = roll_out(work, the_plan(plan, plan_option, warehouse), asked, report)
    if as_json:
        names = ("rollout_id", "plan_id", "state", "outcome")
        print_json({name: getattr(done, name) for name in names})
    else:
        show(f"{done.state}: {done.outcome}; plan {done.plan_id} is in force")
    if done.state != DONE:
        raise typer.Exit(1)


def _history(warehouse: Path, *, as_json: bool) -> None:
    from dataclasses import asdict

    from flows.workspace import workspace
    from warehouse.observations import list_rollouts

    with workspace(warehouse).open(read_only=True) as store:
        rows = [asdict(rollout) for rollout in list_rollouts(store)]
    if as_json:
        print_json({"rollouts": rows})
        return
    names = (
        "rollout_id",
        "plan_id",
        "former_plan_id",
        "state",
        "requested_by",
        "started_at",
        "reason",
        "outcome",
    )
    show(table(names, [[row[name] for name in names] for row in rows]))
