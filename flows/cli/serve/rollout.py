"""`rollout`: a plan into force on the running system, guarded; and the rollouts so far."""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.cli.console import print_json, say, show, table
from flows.cli.registry import command
from flows.cli.shared_options import WAREHOUSE, AsJson, PlanArgument, PlanOption, WarehouseFile
from flows.options import asked
from flows.release.rollout.options import RolloutMode, RolloutOptions
from triton_backend.contract.errors import InputError

if TYPE_CHECKING:
    from triton_backend.contract.plan import Plan


@dataclass(frozen=True, kw_only=True)
class Way:
    """How the plan follows the one in force.

    Raises:
        InputError: two ways exclude each other.
    """

    flush: Annotated[
        bool,
        typer.Option(
            "--flush",
            rich_help_panel="Rollout",
            help="Finish all batches in flight before the new plan starts.",
        ),
    ] = False
    in_place_only: Annotated[
        bool,
        typer.Option(
            "--in-place-only",
            rich_help_panel="Rollout",
            help="Refuse a change for which a GPU cannot hold old and new workers together.",
        ),
    ] = False
    no_wait: Annotated[
        bool,
        typer.Option("--no-wait", help="Refuse while another rollout is under way: do not wait."),
    ] = False

    def __post_init__(self) -> None:
        if self.flush and self.in_place_only:
            reason = "a flush is no change in place: --flush or --in-place-only"
            raise InputError("rollout", reason)

    def mode(self) -> RolloutMode:
        """In place, unless another way is asked for."""
        if self.flush:
            return RolloutMode.FLUSH
        return RolloutMode.IN_PLACE_ONLY if self.in_place_only else RolloutMode.IN_PLACE


INTERRUPTED = "its process died; the next rollout, or --rollback, ends it first"


@command(
    "rollout",
    "poolpipe rollout plan.json --bake-seconds 60 --reason 'new SLO'",
    "poolpipe rollout plan.json --dry-run",
    "poolpipe rollout --rollback",
    "poolpipe rollout --status",
)
def rollout(
    plan: PlanArgument = None,
    *,
    plan_option: PlanOption = None,
    guard: Annotated[dict[str, Any], asked(RolloutOptions)],
    way: Way,
    rollback: Annotated[
        bool, typer.Option("--rollback", help="Bring back the plan before the last rollout.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Show which workers would start, stay and end, and change nothing."
        ),
    ] = False,
    previous: Annotated[
        str | None,
        typer.Option(
            metavar="PLAN",
            help="With --dry-run: compare with this plan, not with the one in force.",
        ),
    ] = None,
    status: Annotated[
        bool, typer.Option("--status", help="List the rollouts so far, and change nothing.")
    ] = False,
    as_json: AsJson = False,
    warehouse: WarehouseFile = WAREHOUSE,
) -> None:
    """Bring a plan into force on the running system.

    Checked before and watched after; on breach the former plan comes back.
    """
    from flows.release.rollout.guarded import DONE, roll_back, roll_out
    from flows.workspace import workspace

    named = plan is not None or plan_option is not None
    if [named, rollback, status].count(True) != 1:
        raise InputError("rollout", "takes a plan, --rollback or --status, one of them")
    if (dry_run and not named) or (previous is not None and not dry_run):
        raise InputError("rollout", "--dry-run takes a plan, and --previous goes with --dry-run")
    if status:
        _history(warehouse, as_json=as_json)
        return
    from flows.cli.project import the_plan

    options = RolloutOptions(**guard, way=way.mode(), wait=not way.no_wait)
    if dry_run:
        wanted = the_plan(plan, plan_option, warehouse)
        _preview(warehouse, previous, wanted, options, as_json=as_json)
        return
    work, report = workspace(warehouse), say(quiet=as_json)
    if rollback:
        done = roll_back(work, options, report)
    else:
        done = roll_out(work, the_plan(plan, plan_option, warehouse), options, report)
    if as_json:
        names = ("rollout_id", "plan_id", "state", "outcome")
        print_json({name: getattr(done, name) for name in names})
    else:
        show(f"{done.state}: {done.outcome}; plan {done.plan_id} is in force")
    if done.state != DONE:
        raise typer.Exit(1)


def _preview(
    warehouse: Path,
    previous: str | None,
    wanted: "Plan",
    options: RolloutOptions,
    *,
    as_json: bool,
) -> None:
    from flows.release.rollout.canary import canary_plans
    from flows.release.rollout.generations import plan_in_force
    from flows.release.rollout.preview import preview
    from flows.workspace import find_plan, workspace
    from triton_backend.serve_folder.repository import check_beside
    from triton_backend.serve_folder.settings import SETTINGS_NAME, ServeSettings

    work = workspace(warehouse)
    gateways = 1
    if previous:
        in_force = find_plan(work, previous)
    else:
        in_force = plan_in_force(work.state.serve)
        settings = ServeSettings.read(work.state.serve / SETTINGS_NAME)
        check_beside(settings, wanted)
        gateways = settings.gateways
    plans = [in_force, *canary_plans(in_force, wanted, options, gateways), wanted]
    found: list[dict[str, Any]] = []
    for one, other in pairwise(plans):
        found += preview(one, other, at_once=options.at_once)
        options = options.following()
    seconds = _seconds_of_former_changes(warehouse)
    if as_json:
        print_json(
            {"from": in_force.plan_id, "to": wanted.plan_id, "steps": found, "seconds": seconds}
        )
        return
    head = ("step", "plan", "workers stay", "of them load stages", "start", "end")
    head = (*head, "MiB loaded", "fullest GPU")
    rows = [
        (
            number,
            step["plan_id"],
            step["stay"],
            len(step["load"]),
            len(step["start"]),
            len(step["end"]),
            round(sum(step["bytes_loaded"].values()) / (1 << 20)),
            _fullest(step["fullest"]),
        )
        for number, step in enumerate(found, 1)
    ]
    show(table(head, rows))
    if seconds is None:
        show("seconds: not known, no rollout has ended in this warehouse")
    else:
        show(f"about {seconds:.1f} s a step, the median of former rollouts")


def _seconds_of_former_changes(warehouse: Path) -> float | None:
    """Median over the last rollouts that were done: seconds of their steps together."""
    from statistics import median

    from flows.release.rollout.guarded import DONE
    from flows.workspace import workspace
    from warehouse.observations import list_rollouts, rollout_steps

    if not warehouse.exists():
        return None  # a plan file can be served, and looked at, without one
    with workspace(warehouse).open(read_only=True) as store:
        done = [rollout for rollout in list_rollouts(store, 10) if rollout.state == DONE]
        totals = [sum(s.seconds for s in rollout_steps(store, r.rollout_id)) for r in done]
    return median(totals) if totals else None


def _fullest(gpu: dict[str, Any] | None) -> str:
    if gpu is None:
        return "memory not known"
    used, has = gpu["during_gib"], gpu["memory_gib"]
    return f"{gpu['node']}:{gpu['gpu']} {used:.1f} of {has:g} GiB"


def _history(warehouse: Path, *, as_json: bool) -> None:
    from dataclasses import asdict

    from flows.release.rollout.lock import holder_of
    from flows.workspace import workspace
    from warehouse.observations import list_rollouts

    work = workspace(warehouse)
    holder = holder_of(work.state.change_lock)
    with work.open(read_only=True) as store:
        found = [asdict(rollout) for rollout in list_rollouts(store)]
    if as_json:
        print_json({"rollouts": found, "under_way": holder})
        return
    unfinished = f"under way: {holder}" if holder else INTERRUPTED
    rows = [
        (
            row["rollout_id"],
            row["plan_id"],
            row["former_plan_id"],
            row["state"],
            row["requested_by"],
            f"{row['started_at']:%Y-%m-%d %H:%M:%S}",
            row["reason"],
            row["outcome"] or unfinished,
        )
        for row in found
    ]
    if not rows:
        show("no rollout so far")
        return
    head = ("rollout", "plan", "before", "state", "by", "started, UTC", "reason", "outcome")
    show(table(head, rows, texts=len(head)))
