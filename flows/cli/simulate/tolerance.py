"""`tolerance`: the goodput that a plan keeps when profiles or rates are wrong."""

from typing import Annotated

import typer

from flows.cli.console import print_json, progress, show, table
from flows.cli.registry import command
from flows.cli.shared_options import WAREHOUSE, AsJson, PlanArgument, PlanOption, WarehouseFile


@command("tolerance", "poolpipe tolerance plan.json")
def tolerance(
    plan: PlanArgument = None,
    *,
    plan_option: PlanOption = None,
    attainment: Annotated[
        float,
        typer.Option(
            metavar="SHARE", min=0.01, max=1.0, help="Share of requests that must be in time."
        ),
    ] = 0.99,
    step: Annotated[
        float,
        typer.Option(metavar="STEP", min=0.01, max=1.0, help="Distance of load factors tried."),
    ] = 0.05,
    duration: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=0.1, max=1e5, help="Simulated time of each try."),
    ] = 10.0,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Seed of the arrivals.")] = 0,
    as_json: AsJson = False,
    warehouse: WarehouseFile = WAREHOUSE,
) -> None:
    """Say what share of its planned rate a plan serves when it was planned on wrong numbers.

    Simulates Poisson arrivals with all stages 1.1, 1.2 and 1.5 times slower than the profile, and
    with each model or application a fifth above its planned rate. As in a running gateway, guards
    and expected times follow what is measured.
    """
    from flows.cli.project import the_plan
    from triton_backend.simulator.goodput import tolerance as kept_by
    from triton_backend.simulator.scenario import SimOptions

    found = the_plan(plan, plan_option, warehouse)
    options = SimOptions(duration_s=duration, seed=seed, keep_uses=False)
    with progress("simulating") as report:
        kept = kept_by(found, options, attainment=attainment, step=step, report=report)
    if as_json:
        rows = [each.to_dict() for each in kept]
        print_json({"plan_id": found.plan_id, "attainment": attainment, "kept": rows})
        return
    show(table(("case", "of the planned rate"), [(k.case, f"{k.load_factor:.0%}") for k in kept]))
