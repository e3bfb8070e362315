"""The OCR example behind a real Triton server: three loads, a killed worker, a change of plan.

The project is that of `poolpipe quickstart --application ocr`, which is run where the folder has
none: trained models, CPU classes. Its plan is served and offered shares of its rate, at instants
that the simulator is given, too. Then, at the first of these loads, the worker that runs the first
stage of a recogniser is killed; and at the same share of the lesser of both rates another plan
takes over, in which all recognisers are on fast CPUs. Every answer is compared with that of the
same models and steps run one after another, without a server.

    .venv/bin/python scripts/benchmarks/applications/ocr_served.py [--project FOLDER] [--seconds 60]
"""

import argparse
import contextlib
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from flows.planning import PlanOptions
from flows.planning.stored_plans import plan_step
from flows.quickstart.example_project import OCR, SLOW, example_classes, example_cluster
from flows.quickstart.ocr import READERS
from flows.release.artifacts import attach_artifacts
from flows.release.rollout.change import change_plan
from flows.workspace import Workspace, workspace
from scripts.benchmarks.applications.attainment import LOADS, TARGET_POINTS, arrivals, trace
from scripts.benchmarks.applications.plans import guarded
from scripts.benchmarks.figures import Figure, add_destinations, conclude
from scripts.benchmarks.served import Load, Loaded, Served, run_to_its_end
from scripts.faults.injection import worker
from triton_backend.contract.plan import Plan
from triton_backend.serve_folder.settings import ServeOptions, ServeSettings
from triton_backend.serving.deployment import Deployment
from triton_backend.simulator.failures import Failure
from triton_backend.simulator.offered import Instant
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import PlanChange, SimOptions
from warehouse.plans import list_plans, read_plan

KILLED = list(READERS)[1]  # most lines are read by it
RESTARTED_S = 5.0  # simulated; a worker imports and loads
PLAN_SECONDS = 20.0
GIVE_UP_S = 10  # after the deadline


def project(port: int) -> Workspace:
    """The quickstart's project in the working folder; it is made there where it is not yet."""
    work = workspace()
    if not (work.state.reports / f"answers-{OCR}.npz").exists():
        names = ("--http-port", "--grpc-port", "--metrics-port")
        ports = [f"{name}={port + number}" for number, name in enumerate(names)]
        asked = ("--application", OCR, "--duration=5", "--attainment-target=0", *ports)
        poolpipe = Path(sys.executable).with_name("poolpipe")
        run_to_its_end([str(poolpipe), "quickstart", *asked], stdout=sys.stderr)
    return work


def plans(work: Workspace) -> tuple[Plan, Plan]:
    """Plans of the quickstart's workload: its own, and one without recognisers on slow CPUs."""
    with work.open(read_only=True) as warehouse:
        workload = read_plan(warehouse, list_plans(warehouse, 1)[0]["plan_id"]).workload
    devices = {name: c.device for name, c in example_classes(OCR).items()}
    own, other = (
        plan_step(
            work,
            example_cluster(OCR),
            workload,
            PlanOptions(time_limit_s=PLAN_SECONDS, excluded_classes=excluded),
        ).plan
        for excluded in ({}, dict.fromkeys(READERS, (SLOW,)))
    )
    return attach_artifacts(work, own, devices), attach_artifacts(work, other, devices)


class Runs:
    """Loads of one served plan, each beside its simulation."""

    def __init__(self, served: Served, answers: Path, asked: argparse.Namespace) -> None:
        self._served, self._answers, self._asked = served, answers, asked
        self._settings = ServeSettings.read(served.folder / "settings.json")
        self.rows: list[dict[str, Any]] = []

    def begin(self, load_factor: float) -> tuple[Load, Instant]:
        """Offer a share of the plan's rate from now on; its instants."""
        seed = self._asked.seed + len(self.rows)
        at_us = arrivals(self._served.plan, load_factor, self._asked.seconds, seed)
        load = Load(
            self._served.state.grpc_url,
            self._served.write_plan(self._served.plan, "plan"),
            f"--arrivals={trace(self._served.root, at_us)}",
            f"--duration={self._asked.seconds}",
            f"--check={OCR}={self._answers}",
            f"--give-up-s={GIVE_UP_S}",
        )
        return load, Instant(by_model={OCR: at_us})

    def end(self, name: str, loaded: Loaded, instants: Instant, **happens: Any) -> None:
        """Note what a load came to, and what the simulator says of it."""
        options = SimOptions(
            arrivals=instants,
            duration_s=self._asked.seconds,
            admission=True,
            keep_uses=False,
            **happens,
        )
        found = simulate(guarded(self._served.plan, self._settings), options).applications[OCR]
        row = loaded.summary["models"][OCR]
        counts = ("offered", "served", "late", "dropped", "failed")
        self.rows.append(
            {
                "name": name,
                **{key: row[key] for key in counts},
                "compared": row["checked"]["responses"],
                "wrong": row["checked"]["wrong"],
                "attainment": loaded.attainment,
                "p50_ms": row["latency_ms"]["p50"],
                "simulated": found.outcome.attainment,
                "simulated_p50_ms": found.latency_ms.p50,
                "messages": loaded.summary["messages"],
                "load_average": os.getloadavg()[0],
            }
        )
        print(self.rows[-1], file=sys.stderr, flush=True)

    def plain(self, load_factor: float) -> None:
        """Nothing happens."""
        load, instants = self.begin(load_factor)
        self.end(f"load {load_factor:g}", load.result(), instants)

    def killed(self, load_factor: float) -> None:
        """A worker is killed on the way."""
        generation = self._served.state.control("status")["generation"]
        deployment = Deployment.read(self._settings, generation)
        vgpu = next(
            vgpu.index
            for vgpu in deployment.vgpus
            for row in deployment.rows_of(vgpu.index)
            if deployment.model_of(row).name == KILLED
        )
        load, instants = self.begin(load_factor)
        time.sleep(self._asked.seconds / 2)
        worker(self._served, vgpu).kill()
        at_s = self._asked.seconds / 2
        away = Failure(start_s=at_s, end_s=at_s + RESTARTED_S, vgpu=vgpu)
        self.end("a worker is killed", load.result(), instants, failures=(away,))

    def changed(self, load_factor: float, other: Plan) -> None:
        """Another plan takes over on the way, at a share of the rate that both plans carry."""
        carried = min(1.0, rate_of(other) / rate_of(self._served.plan))
        load, instants = self.begin(load_factor * carried)
        time.sleep(self._asked.seconds / 3)
        change_plan(self._served.folder, other)
        change = PlanChange(at_s=self._asked.seconds / 2, plan=guarded(other, self._settings))
        self.end("a change of plan", load.result(), instants, changes=(change,))


def rate_of(plan: Plan) -> float:
    """Pages a second that a plan promises."""
    rate_rps = plan.applications[0].application.rate_rps
    assert rate_rps is not None, "planning sets it"
    return rate_rps


def figures_of(rows: list[dict[str, Any]], plan: Plan, other: Plan) -> list[Figure]:
    """How far each load lies from its simulation, and what must be nothing."""
    found = [
        Figure(name="planned rate", value=rate_of(plan), unit="pages/s"),
        Figure(name="planned rate of the other plan", value=rate_of(other), unit="pages/s"),
    ]
    for row in rows:
        note = (
            f"{row['served']} of {row['offered']} in time, {row['late']} late, {row['dropped']}"
            f" dropped; simulated {row['simulated']:.2%}; p50 {row['p50_ms']:.0f} ms, simulated"
            f" {row['simulated_p50_ms']:.0f} ms; machine load {row['load_average']:.1f}"
        )
        found.append(
            Figure(
                name=f"{row['name']}: attainment less simulated",
                value=100 * (row["attainment"] - row["simulated"]),
                unit="points",
                least=-TARGET_POINTS,
                most=TARGET_POINTS,
                note=note,
            )
        )
    compared = f"of {sum(row['compared'] for row in rows)} compared"
    return [
        *found,
        Figure(name="wrong answers", value=sum(r["wrong"] for r in rows), most=0, note=compared),
        Figure(name="failed requests", value=sum(row["failed"] for row in rows), most=0),
    ]


def main() -> int:
    """Run, print, store."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--project", type=Path, help="folder of the quickstart's project; by default a new one")
    add("--loads", nargs="+", type=float, default=list(LOADS))
    add("--seconds", type=float, default=60.0, help="of each load")
    add("--seed", type=int, default=1)
    add("--port", type=int, default=18_760)
    add_destinations(parser)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="poolpipe-ocr-") as scratch:
        folder = asked.project or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.chdir(folder):
            work = project(asked.port)
            plan, other = plans(work)
            options = ServeOptions(artifacts=work.state.artifacts.resolve())
            with Served(plan, asked.port, options) as served:
                runs = Runs(served, work.state.reports / f"answers-{OCR}.npz", asked)
                for load_factor in asked.loads:
                    runs.plain(load_factor)
                runs.killed(asked.loads[0])
                runs.changed(asked.loads[0], other)
    return conclude(asked, "ocr-served", figures_of(runs.rows, plan, other), {"rows": runs.rows})


if __name__ == "__main__":
    sys.exit(main())
