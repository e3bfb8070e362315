"""A rollout cut into at a step by a fault, and what is left afterwards.

Tests and the table share it. Here: the project that is served, Prefect around it, faults, and the
look at the end state. Not here: load on the system and the table (`bench_rollout_faults.py`).
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from flows.clock import Stopwatch
from flows.deployments import local as operations
from flows.deployments.orchestration.background import running
from flows.planning import PlanOptions, make_plan
from flows.release.rollout import guarded as rollout
from flows.release.rollout.change import Step
from flows.release.rollout.guarded import RolloutOptions, finish_interrupted, roll_out
from flows.release.server.running import ServerState
from flows.state import ProjectState
from flows.workspace import Workspace
from triton_backend.contract.cluster import Cluster, GpuClass, NodeGroup
from triton_backend.contract.errors import PoolPipeError
from triton_backend.contract.plan import Plan
from triton_backend.contract.profiles import ModelProfile, loaded
from triton_backend.contract.workload import ModelDemand, Workload
from triton_backend.serve_folder.repository import (
    is_node_model,
    node_model,
    read_node_generations,
    used_nodes,
)
from warehouse.observations import unfinished_rollout

LEFT_OUT = {Step.COMPARE, Step.FLUSH, Step.ABORT}
STEPS = ("checked", *(str(step) for step in Step if step not in LEFT_OUT), "bake")
FLOW, WORKER, SERVER = "flow", "Prefect worker", "Prefect server"
GATEWAY, NODE = "gateway", "node"
BY_PREFECT = (FLOW, WORKER, SERVER)
FAULTS = (*BY_PREFECT, GATEWAY, NODE)
DEPLOYMENT = "rollout/halted"
WAIT_SECONDS, POLL_SECONDS = 120.0, 0.05  # a look may open the warehouse, or ask the gateway
BAKE_SECONDS = 1.0
SLO_US = 600_000


def wait_until(what: str, holds: Callable[[], bool], seconds: float = WAIT_SECONDS) -> None:
    """Return once it holds.

    Raises:
        TimeoutError: it does not; the message says what.
    """
    watch = Stopwatch()
    while not holds():
        if watch.seconds() > seconds:
            raise TimeoutError(f"{what}: not within {seconds:g} s")
        time.sleep(POLL_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """A system that serves one of two plans, and the Prefect around it (None: not started)."""

    work: Workspace
    state: ServerState
    plans: tuple[Plan, Plan]
    place: operations.Place | None = None

    def status(self) -> dict[str, Any]:
        """The gateway's answer, after waiting for one that reloads."""
        answer: list[dict[str, Any]] = []

        def asked() -> bool:
            with contextlib.suppress(PoolPipeError):
                answer.append(self.state.control("status"))
            return bool(answer)

        wait_until("the gateway answers", asked)
        return answer[0]

    def other(self) -> Plan:
        """The plan that is not in force."""
        in_force = self.status()["plan_id"]
        return next(plan for plan in self.plans if plan.plan_id != in_force)

    def kill_stub(self, model: str) -> None:
        """SIGKILL to the process of a Triton model."""
        text = (self.state.folder / "pids" / model).read_text()
        os.kill(int(text.split()[0]), signal.SIGKILL)

    def nodes(self) -> dict[str, tuple[int, ...]]:
        """The generations of every node model of the repository."""
        names = (path.name for path in (self.state.folder / "repository").iterdir())
        nodes = sorted(name for name in names if is_node_model(name))
        node_names = {node_model(node): node for plan in self.plans for node in used_nodes(plan)}
        return {name: read_node_generations(self.state.folder, node_names[name]) for name in nodes}


@dataclass(slots=True)
class Going:
    """One rollout that halts at its step; `run` starts it and `ended` says whether it is over."""

    live: Live
    step: str
    folder: Path
    plan: Plan
    _thread: threading.Thread | None = None
    _pid: int = 0
    failures: list[str] = field(default_factory=list[str])

    def begin_here(self) -> None:
        """In a thread of this process, once it may begin."""
        self._thread = threading.Thread(target=self._roll_out, daemon=True)
        self._thread.start()

    def begin_by_prefect(self) -> None:
        """By the worker, as the deployment of a rollout that halts; the flow runs, and waits."""
        from prefect.deployments import run_deployment  # noqa: PLC0415  # needs its environment

        parameters = {
            "parameters": {"plan_id": self.plan.plan_id, "bake_seconds": BAKE_SECONDS},
            "step": self.step,
            "folder": str(self.folder),
        }
        run_deployment(DEPLOYMENT, parameters=parameters, timeout=0)
        wait_until("the worker starts the flow", (self.folder / "started").exists)

    def _roll_out(self) -> None:
        from scripts.faults.paused_rollout import halt_at  # noqa: PLC0415  # loads Prefect

        kept = rollout.record_step, rollout.bake
        halt_at(self.step, self.folder)
        wait_until("it may begin", (self.folder / "begin").exists)
        try:
            roll_out(self.live.work, self.plan, RolloutOptions(bake_seconds=BAKE_SECONDS))
        except PoolPipeError as error:
            self.failures.append(str(error))
        finally:
            rollout.record_step, rollout.bake = kept

    def reach(self) -> None:
        """Let it begin, and wait until it halts.

        Raises:
            RuntimeError: it failed before.
            TimeoutError: it does not come there.
        """
        (self.folder / "begin").touch()

        def reached() -> bool:
            if self.failures:
                raise RuntimeError(f"the rollout failed before {self.step}: {self.failures}")
            return (self.folder / "reached").exists()

        wait_until(f"step {self.step}", reached)
        self._pid = int((self.folder / "reached").read_text())

    def strike(self, fault: str) -> None:
        """The fault, while the rollout halts."""
        live = self.live
        if fault == FLOW:
            os.kill(self._pid, signal.SIGKILL)
        elif fault in {WORKER, SERVER}:
            assert live.place is not None
            found = running(live.place.folder, "worker" if fault == WORKER else "server")
            assert found is not None
            found.kill()
            found.wait(WAIT_SECONDS)
        elif fault == GATEWAY:
            live.kill_stub(live.status()["scheduler"]["active"])
        else:
            live.kill_stub(next(iter(live.nodes())))

    def go_on(self) -> None:
        """Let it go on."""
        (self.folder / "go").touch()

    def wait(self) -> None:
        """Return at its end; a flow that was killed has none."""
        if self._thread is not None:
            self._thread.join()
            return

        def ended() -> bool:
            if not _alive(self._pid):
                return True
            with contextlib.suppress(PoolPipeError), self.live.work.open(read_only=True) as store:
                return unfinished_rollout(store) is None
            return False

        wait_until("the rollout ends", ended)


def _alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def emulated_plans() -> tuple[Plan, Plan]:
    """Real plans of one model of two stages on four emulated GPUs; a margin gives each its id."""
    latency_us = {
        ("fast", 1): np.full((3, 2), (20_000.0, 24_000.0)),
        ("slow", 1): np.full((3, 2), (60_000.0, 80_000.0)),
    }
    profile = ModelProfile(name="pair", tables=loaded(latency_us), boundary_bytes=(40_000, 20_000))
    cluster = Cluster(
        name="two nodes",
        gpu_classes=(GpuClass(name="fast"), GpuClass(name="slow")),
        nodes=(
            NodeGroup(count=1, gpu_class="fast", gpus=2, nic_gbps=10),
            NodeGroup(count=1, gpu_class="slow", gpus=2, nic_gbps=10),
        ),
    )
    demand = ModelDemand(name="pair", slo_us=SLO_US, batch_building_rate_rps=1e9)
    first, second = (
        make_plan(
            {"pair": profile},
            cluster,
            Workload(models=(demand,)),
            PlanOptions(slo_margin=margin),
        )
        for margin in (0.4, 0.3)
    )
    return first, second


def begin(live: Live, step: str, folder: Path) -> Going:
    """A rollout of the other plan, not started yet."""
    folder.mkdir(parents=True)
    return Going(live=live, step=step, folder=folder, plan=live.other())


def whole(live: Live) -> str:
    """The id of the one plan that serves, whole, with nothing left of another.

    Raises:
        TimeoutError: it does not come to that.
        AssertionError: a mixture.
    """
    finished: list[str] = []

    def recovered() -> bool:
        with contextlib.suppress(PoolPipeError):
            finished.append(finish_interrupted(live.work).plan_id)
        return bool(finished)

    def up() -> bool:
        workers = live.status()["workers"]
        return workers["up"] == workers["total"]

    wait_until("recovered", recovered)
    wait_until("every worker is up", up)
    status = live.status()
    nodes = live.nodes()
    if status["state"] != "serving" or status["prepared"] is not None:
        raise AssertionError(f"{status}")
    if set(nodes.values()) != {(status["generation"],)}:
        raise AssertionError(f"generation {status['generation']} with {nodes}")
    if status["plan_id"] not in {plan.plan_id for plan in live.plans}:
        raise AssertionError(f"plan {status['plan_id']}")
    return str(status["plan_id"])


def start_prefect(home: Path, port: int) -> operations.Place:
    """Server and worker of a project of its own, with the rollout that halts.

    Where that is interrupted, they are stopped.
    """
    os.environ.update(
        POOLPIPE_HOME=str(home),
        POOLPIPE_WAREHOUSE=str(home / "w.duckdb"),
        POOLPIPE_PREFECT_PORT=str(port),
        POOLPIPE_UI_PORT=str(port + 1),
    )
    place = operations.place_of()
    operations.prepare(place)
    try:
        operations.up(place, ())
        _deploy_halted()
    except BaseException:
        operations.down(place)
        raise
    return place


def _deploy_halted() -> None:
    from scripts.faults.paused_rollout import rollout as halted  # noqa: PLC0415  # needs the environment

    source: Any = halted.from_source(
        source=str(operations.ROOT), entrypoint="scripts/faults/paused_rollout.py:rollout"
    )
    # No limit here: a run whose server was killed holds its place until its lease ends, a minute
    # on.
    source.to_deployment(name="halted", work_pool_name=operations.POOL).apply()


def restart_prefect(place: operations.Place) -> None:
    """The operator's remedy after a loss: `up` again."""
    operations.up(place, ())


def project(home: Path) -> Workspace:
    """The workspace whose paths `start_prefect` states."""
    return Workspace(state=ProjectState(home=home), warehouse=home / "w.duckdb")
