"""The running system of a project, and the loops that keep its plan as its load asks for.

Here: counts read from the gateway, plans stored and rolled out in place. Not here: when a plan is
made, and for what (`autoscale`, `steering`).
"""

import time
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

from flows.clock import Stopwatch
from flows.operations.replanning.autoscale import Follower, follow_live, follower_of, limited
from flows.operations.replanning.demands import requests_of
from flows.operations.replanning.options import AutoscaleOptions, LoopOptions, SteerOptions
from flows.operations.replanning.rows import counted_rows
from flows.operations.steering.live import steer_live
from flows.operations.steering.policy import Demand, steering_of
from flows.planning.promises.attainment import with_attainment
from flows.release.artifacts import attach_devices
from flows.release.rollout.generations import plan_in_force
from flows.release.rollout.guarded import RolloutOptions, finish_interrupted, roll_out
from flows.release.rollout.lock import one_loop
from flows.release.server.running import ServerError, ServerState, read_state
from flows.workspace import Workspace, store_plan
from triton_backend.contract.entries import Lease, latest
from triton_backend.contract.plan import Plan
from triton_backend.serve_folder.repository import OFFLOAD_MODEL

Say = Callable[[str], None]
HOUR_S = 3600


class RunningSystem:
    """The system served from this project."""

    reason: ClassVar[str] = "autoscale"

    def __init__(self, work: Workspace, cluster: Path | None) -> None:
        self._work, self._cluster, self._watch = work, cluster, Stopwatch()

    def offered(self) -> Mapping[Any, int]:
        """Requests so far, by name of what clients ask for."""
        return requests_of(self.counters())

    def rows(self) -> Mapping[tuple[str, str], tuple[int, int]]:
        """Samples of requests and rows so far, by application and module."""
        return counted_rows(self.counters())

    def counters(self) -> Mapping[str, Mapping[str, int]]:
        """All of them."""
        return self.server().control("status")["counters"]

    def server(self) -> ServerState:
        """The system that is served."""
        return read_state(self._work.state.serve)

    def wait(self, seconds: float) -> float:
        """Wait; seconds since the last time."""
        time.sleep(seconds)
        return self._watch.restart()

    def in_force(self, known: Plan) -> Plan:
        """The plan in force: `known` itself where it is that one.

        Raises:
            InputError: nothing is being served.
            ServerError: the system does not answer.
        """
        if self.server().data.get("plan_id") == known.plan_id:
            return known
        plan = plan_in_force(self._work.state.serve)
        return known if plan.plan_id == known.plan_id else plan

    def stated(self, plan: Plan) -> Plan:
        """The plan as it is stored, with what it attains."""
        return with_attainment(plan)

    def bring(self, plan: Plan) -> str:
        """Change plans in place, unwatched: the next period sees what came of it.

        A rollout of another process is not waited for: after it, other plans may be wanted.
        """
        plan = self.stated(plan)
        store_plan(self._work, plan)
        if self._cluster is not None:
            plan = attach_devices(self._work, plan, self._cluster)
        options = RolloutOptions(bake_seconds=0, reason=self.reason, wait=False)
        done = roll_out(self._work, plan, options)
        return f"{done.state}, {done.outcome}"


class SteeredServer(RunningSystem):
    """The system served from this project, by entries and what clients announce."""

    reason: ClassVar[str] = "steer"

    def offered(self) -> Mapping[tuple[str, str], int]:
        """Requests so far, by model and entry."""
        found: dict[tuple[str, str], int] = {}
        for key, count in self.counters()["entries"].items():
            model, _, entry = key.partition("/")
            found[model, entry] = int(count)
        return found

    def announced(self) -> Sequence[Demand]:
        """Of all clients, which each announce to one of the gateways.

        Raises:
            ServerError: no gateway answers.
        """
        server = self.server()
        tables: list[list[Lease]] = []
        for gateway in server.gateways:
            try:
                answer = server.ask(OFFLOAD_MODEL, {"command": "announced"}, gateway)
            except ServerError:  # its clients go to the other, and announce there
                if gateway == server.gateways[-1] and not tables:
                    raise
                continue
            tables.append([Lease(**lease) for lease in answer["leases"]])
        rates = defaultdict[tuple[str, int, int], float](float)
        for lease in latest(chain.from_iterable(tables)):
            rates[lease.model, lease.block, lease.budget_us] += lease.rate_rps
        return [Demand(*key, rate_rps) for key, rate_rps in sorted(rates.items())]

    def stated(self, plan: Plan) -> Plan:
        """The plan as it is: clients wait for it, and simulating it takes up to a second."""
        return plan


def follow_served(work: Workspace, how: AutoscaleOptions, cluster: Path | None, say: Say) -> None:
    """Plans of the running system that follow its rates, until it is time to stop.

    Args:
        work: the project.
        how: how often, on how many GPUs, how long.
        cluster: the `cluster.yaml` whose runtimes build missing stages; None builds none.
        say: gets a line per period.

    Raises:
        InputError: nothing is being served, no plan serves every model, or another loop runs.
    """

    def follower(plan: Plan) -> Follower:
        within = limited(plan.cluster, how.max_gpus)
        return follower_of(work, within, plan.workload, plan, lambda _: None)

    with _one_loop(work, how):
        follow_live(
            follower(plan_in_force(work.state.serve)),
            RunningSystem(work, cluster),
            how.period,
            say,
            follower_of=follower,
            periods=how.periods,
            advisory=how.advisory,
            over=time_over(how),
        )


def steer_served(work: Workspace, how: SteerOptions, cluster: Path | None, say: Say) -> None:
    """Plans of the running system that follow clients' cuts; arguments as of `follow_served`.

    A change that was interrupted is finished or undone first.

    Raises:
        InputError: nothing is being served, or nothing with entries, or another loop runs.
    """
    with _one_loop(work, how):
        steer_live(
            steering_of(work, finish_interrupted(work, say)),
            SteeredServer(work, cluster),
            say,
            steering_of=partial(steering_of, work),
            decisions=how.looks,
            advisory=how.advisory,
            over=time_over(how),
        )


@contextmanager
def _one_loop(work: Workspace, how: LoopOptions) -> Generator[None]:
    """No other loop that brings plans into force runs meanwhile; advice goes beside one."""
    read_state(work.state.serve)  # where nothing is served, no lock is made
    if how.advisory:
        yield
        return
    with one_loop(work.state.loop_lock):
        yield


def time_over(how: LoopOptions) -> Callable[[], bool]:
    """A function that is true once the hours of a loop have passed since this call."""
    watch, hours = Stopwatch(), how.hours
    return lambda: hours is not None and watch.seconds() >= hours * HOUR_S
