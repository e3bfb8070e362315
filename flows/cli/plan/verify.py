"""`verify`: every number of a plan derived again."""

from typing import Annotated

import typer

from flows.cli.console import notes, print_json, show
from flows.cli.registry import command
from flows.cli.shared_options import WAREHOUSE, AsJson, PlanArgument, PlanOption, WarehouseFile


@command("verify", "poolpipe verify plan.json")
def verify(
    plan: PlanArgument = None,
    *,
    plan_option: PlanOption = None,
    profiles: Annotated[
        bool, typer.Option(help="Also compare latencies and bytes with those in the warehouse.")
    ] = False,
    as_json: AsJson = False,
    warehouse: WarehouseFile = WAREHOUSE,
) -> None:
    """Derive every number of a plan again, without the solver.

    Exits with 1 and the first difference where one does not hold.
    """
    from flows.cli.project import the_plan
    from flows.planning.stored_plans import load_profiles
    from flows.planning.verify.numbers import verify_plan
    from flows.workspace import workspace

    found = the_plan(plan, plan_option, warehouse)
    known = None
    if profiles:
        known, warnings = load_profiles(workspace(warehouse), found.cluster, found.workload)
        notes(warnings)
    differences = verify_plan(found, known)
    if as_json:
        print_json({"plan_id": found.plan_id, "holds": not differences, "differences": differences})
    elif differences:
        more = f" (and {len(differences) - 1} more)" if len(differences) > 1 else ""
        show(f"{found.plan_id} does not hold: {differences[0]}{more}")
    else:
        show(f"{found.plan_id} holds")
    if differences:
        raise typer.Exit(1)
