"""`simulate`: a plan against offered load, in virtual time."""

from typing import TYPE_CHECKING

from flows.cli.console import note
from flows.cli.registry import command
from flows.cli.shared_options import WAREHOUSE, AsJson, PlanArgument, PlanOption, WarehouseFile
from flows.cli.simulate.options import ClientsRun, EpochRun, GoodputRun, PlainRun

if TYPE_CHECKING:
    from triton_backend.contract.plan import Plan


@command(
    "simulate",
    "poolpipe simulate --plan plan.json --load-factor 0.9 --duration 60",
    "poolpipe simulate --plan plan.json --arrivals trace.csv.gz --trace-time t_s"
    " --trace-model service --map code=resnet --find-goodput 0.99",
    "poolpipe simulate --plan plan.json --change 20=second.json --change 40=plan.json",
    "poolpipe simulate --plan plan.json --application traffic --arrivals deterministic "
    "--rows fixed",
    "poolpipe simulate --plan plan.json --clients clients.yaml --links links.csv --steer "
    "--duration 600",
)
def simulate(
    plan: PlanArgument = None,
    *,
    plan_option: PlanOption = None,
    asked: ClientsRun | EpochRun | GoodputRun | PlainRun,
    as_json: AsJson = False,
    warehouse: WarehouseFile = WAREHOUSE,
) -> None:
    """Run a plan against load, in virtual time.

    The scheduler is the one that serves. Of events at one instant, ends come first, then timers,
    then arrivals one by one, in the order of the trace.
    """
    from flows.cli.project import the_plan
    from flows.cli.simulate.clients import show_clients
    from flows.cli.simulate.epochs import show_epochs
    from flows.cli.simulate.runs import show_goodput, show_run
    from flows.workspace import workspace

    work = workspace(warehouse)
    if isinstance(asked, ClientsRun):
        options = asked.sim_options(work)
        found = the_plan(plan, plan_option, warehouse)
        _note_policy(found, asked.policy)
        show_clients(found, asked, options, work, as_json=as_json)
        return
    request = asked.request(work)
    found = the_plan(plan, plan_option, warehouse)
    _note_policy(found, asked.policy)
    if isinstance(asked, EpochRun):
        show_epochs(found, asked, request, work, as_json=as_json)
    elif isinstance(asked, GoodputRun):
        show_goodput(found, asked, request, warehouse, as_json=as_json)
    else:
        show_run(found, asked, request, warehouse, as_json=as_json)


def _note_policy(plan: "Plan", policy: str | None) -> None:
    from triton_backend.simulator.scenario import policies_of

    if policy is not None and policy != (stated := policies_of(plan)):
        note(f"policy {policy} in place of the plan's {stated}")
