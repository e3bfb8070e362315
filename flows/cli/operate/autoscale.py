"""`autoscale`: plans that follow the rates of the running system every few seconds."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.cli.console import show
from flows.cli.registry import command
from flows.cli.shared_options import WAREHOUSE, Advisory, BuildingCluster, EndAfter, WarehouseFile

if TYPE_CHECKING:
    from flows.clock import Stopwatch
    from flows.operations.replanning.autoscale import Follower
    from flows.release.server.running import ServerState
    from flows.workspace import Workspace
    from triton_backend.contract.plan import Plan


@command(
    "autoscale",
    "poolpipe autoscale --period 20 --max-gpus 8",
    "poolpipe autoscale --period 20 --advisory",
)
def autoscale(
    *,
    period: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", min=2.0, max=1e5, help="Time between two plans, in seconds."
        ),
    ] = 20.0,
    max_gpus: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Use only the first N GPUs of the cluster; all by default."
        ),
    ] = None,
    periods: EndAfter = None,
    advisory: Advisory = False,
    cluster: BuildingCluster = None,
    warehouse: WarehouseFile = WAREHOUSE,
) -> None:
    """Re-plan in place as request rates change, on as few GPUs as carry them.

    Rates are those of models, entries and applications, with the rows that their modules ran. Plans
    are made by the planner and with the options of the plan in force; one is made where a rate has
    moved far enough. Beyond the GPUs there are, all get the same share of what they ask for.
    """
    from flows.clock import Stopwatch
    from flows.operations.replanning.autoscale import follow_live, follower_of, limited
    from flows.release.rollout.change import plan_in_force
    from flows.workspace import workspace

    work = workspace(warehouse)

    def follower(plan: "Plan") -> "Follower":
        within = limited(plan.cluster, max_gpus)
        return follower_of(work, within, plan.workload, plan, lambda _: None)

    follow_live(
        follower(plan_in_force(work.state.serve)),
        RunningSystem(work, cluster, Stopwatch()),
        period,
        show,
        follower_of=follower,
        periods=periods,
        advisory=advisory,
    )


class RunningSystem:
    """The system served from this project."""

    reason = "autoscale"

    def __init__(self, work: "Workspace", cluster: Path | None, watch: "Stopwatch") -> None:
        self._work, self._cluster, self._watch = work, cluster, watch

    def offered(self) -> Mapping[Any, int]:
        """Requests so far, by name of what clients ask for."""
        from flows.operations.replanning.demands import requests_of

        return requests_of(self.counters())

    def rows(self) -> Mapping[tuple[str, str], tuple[int, int]]:
        """Samples of requests and rows so far, by application and module."""
        from flows.operations.replanning.rows import counted_rows

        return counted_rows(self.counters())

    def counters(self) -> Mapping[str, Mapping[str, int]]:
        """All of them."""
        return self.server().control("status")["counters"]

    def server(self) -> "ServerState":
        """The system that is served."""
        from flows.release.server.running import read_state

        return read_state(self._work.state.serve)

    def wait(self, seconds: float) -> float:
        """Wait; seconds since the last time."""
        time.sleep(seconds)
        return self._watch.restart()

    def in_force(self, known: "Plan") -> "Plan":
        """The plan in force: `known` itself where it is that one.

        Raises:
            InputError: nothing is being served.
            ServerError: the system does not answer.
        """
        from flows.release.rollout.change import plan_in_force

        if self.server().data.get("plan_id") == known.plan_id:
            return known
        plan = plan_in_force(self._work.state.serve)
        return known if plan.plan_id == known.plan_id else plan

    def bring(self, plan: "Plan") -> str:
        """Change plans in place, unwatched: the next period sees what came of it.

        A rollout of another process is not waited for: after it, other plans may be wanted.
        """
        from flows.release.artifacts import attach_devices
        from flows.release.rollout.guarded import RolloutOptions, roll_out
        from flows.workspace import store_plan

        store_plan(self._work, plan)
        if self._cluster is not None:
            plan = attach_devices(self._work, plan, self._cluster)
        options = RolloutOptions(bake_seconds=0, reason=self.reason, wait=False)
        done = roll_out(self._work, plan, options)
        return f"{done.state}, {done.outcome}"
