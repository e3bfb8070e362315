"""The OCR example behind a real Triton: attainment at three loads, a killed worker, a new plan.

`poolpipe quickstart --application ocr` prepares and serves the example in a folder of its own.
Pages then come at 0.5, 0.8 and 0.95 of the planned rate; the simulator runs the same arrivals with
deadlines less the gateway's guard. Two more loads at half the rate see every worker of one node
killed, and a change to a plan of whole models and back. Every answer is compared with that of the
same models and steps run one after another.

    .venv/bin/python scripts/benchmarks/applications/ocr_served.py [--seconds 60]
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flows.files import read_plan
from flows.planning import PlanOptions
from flows.planning.stored_plans import plan_step
from flows.quickstart.example_project import OCR, example_classes
from flows.quickstart.load_process import LoadRequest, run_load
from flows.release.artifacts import attach_artifacts
from flows.release.rollout.change import change_plan
from flows.release.server import admin
from flows.release.server.running import ServerState, read_state
from flows.state import ProjectState
from flows.workspace import Workspace
from scripts.benchmarks.applications.plans import guarded
from scripts.benchmarks.figures import Figure, add_destinations, conclude
from scripts.benchmarks.served import run_to_its_end, stop_when_terminated
from triton_backend.contract.plan import Plan
from triton_backend.serve_folder.repository import node_model, used_nodes
from triton_backend.serve_folder.settings import ServeSettings
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions

POOLPIPE = Path(sys.executable).with_name("poolpipe")
LOADS = (0.5, 0.8, 0.95)
POINTS = 2.0
FAULT_LOAD, FAULT_AT = 0.5, 0.3  # of the rate, of the time
PLANNING_S = 20.0
KILLED, CHANGED = "workers of a node killed", "plan changed and back"


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """The example as the quickstart left it."""

    folder: Path
    plan: Plan

    @property
    def work(self) -> Workspace:
        """Its project."""
        state = ProjectState(home=self.folder / "state")
        return Workspace(state=state, warehouse=self.folder / "poolpipe.duckdb")

    @property
    def state(self) -> ServerState:
        """Where it is reached now."""
        return read_state(self.work.state.serve)

    def load(self, load: float, seconds: float, seed: int) -> dict[str, Any]:
        """Results of one load, with its answers compared."""
        reports = self.work.state.reports
        request = LoadRequest(
            url=self.state.grpc_url,
            plan=reports / f"plan-{self.plan.plan_id}.json",
            load_factor=load,
            duration_s=seconds,
            seed=seed,
            checks={OCR: reports / f"answers-{OCR}.npz"},
        )
        return run_load(request)["models"][OCR]

    def simulated(self, load: float, seconds: float, seed: int) -> float:
        """Attainment of the same load in the simulator."""
        settings = ServeSettings.read(self.work.state.serve / "settings.json")
        asked = SimOptions(
            policy=None, admission=True, load_factor=load, duration_s=seconds, seed=seed
        )
        found = simulate(guarded(self.plan, settings), asked)
        return found.applications[OCR].outcome.attainment

    def other_plan(self) -> Plan:
        """A plan of whole models for the same."""
        asked = PlanOptions(max_partitions=1, time_limit_s=PLANNING_S)
        found = plan_step(self.work, self.plan.cluster, self.plan.workload, asked).plan
        devices = {name: known.device for name, known in example_classes(OCR).items()}
        return attach_artifacts(self.work, found, devices)

    def kill_workers(self) -> None:
        """Kill all workers of the first node."""
        node = used_nodes(self.plan)[0]
        for worker in self.state.ask(node_model(node), {})["workers"]:
            os.kill(int(worker["pid"]), signal.SIGKILL)

    def change_and_back(self, other: Plan) -> None:
        """Change to another plan, and back to the first one."""
        for plan in (other, replace(self.plan, plan_id=f"{self.plan.plan_id}-again")):
            change_plan(self.work.state.serve, plan)


@contextmanager
def served(port: int) -> Generator[Example]:
    """The example, served until the end of the context."""
    with tempfile.TemporaryDirectory(prefix="poolpipe-ocr-") as name:
        folder = Path(name)
        command = [str(POOLPIPE), "quickstart", "--application", OCR, "--keep-serving", "--json"]
        command += ["--duration=4", "--attainment-target=0"]
        kinds = ("http", "grpc", "metrics")
        command += [f"--{kind}-port={port + number}" for number, kind in enumerate(kinds)]
        environment = {**os.environ, "POOLPIPE_HOME": str(folder / "state")}
        home = ProjectState(home=folder / "state")
        try:
            done = run_to_its_end(
                command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=sys.stderr
            )
            if done.returncode != 0:
                raise RuntimeError(f"the quickstart ended with {done.returncode}")
            plan_id = json.loads(done.stdout)["plan_id"]
            yield Example(folder=folder, plan=read_plan(home.reports / f"plan-{plan_id}.json"))
        finally:
            if home.serve.exists():
                admin.stop(home.serve)


def disturbed(
    example: Example, seconds: float, seed: int, disturb: Callable[[], None]
) -> dict[str, Any]:
    """Results of a load in whose course something is done."""
    with ThreadPoolExecutor(1) as thread:
        loading = thread.submit(example.load, FAULT_LOAD, seconds, seed)
        time.sleep(FAULT_AT * seconds)
        disturb()
        return loading.result()


def figures_of(
    rows: dict[float, tuple[dict[str, Any], float]], faults: dict[str, dict[str, Any]]
) -> list[Figure]:
    """Differences by load; wrong and failed answers of all loads."""
    apart: list[Figure] = []
    for load, (row, simulated) in rows.items():
        measured = 100 * row["attainment"]
        note = f"{measured:.2f} % of {row['offered']} measured, {100 * simulated:.2f} % simulated"
        name = f"load {load:g}: attainment apart from simulated"
        value = abs(measured - 100 * simulated)
        apart.append(Figure(name=name, value=value, unit="points", most=POINTS, note=note))
    worst = max(figure.value or 0.0 for figure in apart)
    loads = [*(row for row, _ in rows.values()), *faults.values()]
    compared = sum(row["checked"]["responses"] for row in loads)
    return [
        *apart,
        Figure(
            name="attainment apart from simulated, worst of three loads",
            value=worst,
            unit="points",
            most=POINTS,
        ),
        *(
            Figure(
                name=f"{name}: answers wrong",
                value=row["checked"]["wrong"],
                most=0,
                note=f"{row['served']} of {row['offered']} in time, {row['late']} late,"
                f" {row['dropped']} dropped, {row['failed']} failed",
            )
            for name, row in faults.items()
        ),
        Figure(
            name="answers wrong, of all loads",
            value=sum(row["checked"]["wrong"] for row in loads),
            most=0,
            note=f"of {compared}",
        ),
    ]


def main() -> int:
    """Serve, load, disturb, compare; exit code 1 where a target is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--port", type=int, default=18_800, help="HTTP; gRPC and metrics follow")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each load")
    parser.add_argument("--seed", type=int, default=0)
    add_destinations(parser)
    asked = parser.parse_args()
    stop_when_terminated()
    how = asked.seconds, asked.seed
    with served(asked.port) as example:
        rows = {load: (example.load(load, *how), example.simulated(load, *how)) for load in LOADS}
        other = example.other_plan()
        faults = {
            KILLED: disturbed(example, *how, example.kill_workers),
            CHANGED: disturbed(example, *how, lambda: example.change_and_back(other)),
        }
    details = {
        "loads": {f"{load:g}": {**row, "simulated": share} for load, (row, share) in rows.items()},
        "faults": faults,
        "plans": [example.plan.plan_id, other.plan_id],
    }
    return conclude(asked, "ocr-served", figures_of(rows, faults), details)


if __name__ == "__main__":
    sys.exit(main())
