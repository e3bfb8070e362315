"""Models that share one pool behind a real Triton server, measured beside the simulator.

Models of one stage share the vGPUs of one node under each policy, at shares of the rate that the
pool serves in planned batches. The simulator runs the same arrivals. Idle is the part of the time
in which a vGPU ran nothing, measured from what the workers report.

    .venv/bin/python scripts/benchmarks/shared_pools.py [--models 6] [--vgpus 4] [--seconds 30]
    .venv/bin/python scripts/benchmarks/shared_pools.py --real --vgpus 2

Models are emulated, or (`--real`) two ONNX models, which onnxruntime runs on a thread for each vGPU
and which wait then (`stretch`), so that cores are left to server and clients. Plan and simulator
have their latencies as measured here just before, and every answer is compared with the unsplit
model's.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from flows.device_class import DeviceClass
from flows.preparation.building.onnxruntime import build_stage
from flows.preparation.graphs.examples import write_example
from flows.preparation.profiling.measure import (
    MeasuredCell,
    MeasureLimits,
    ProfileTarget,
    measure_cells,
)
from flows.preparation.splitting.extracting import extract_stage
from flows.preparation.splitting.model import SplitModel
from flows.preparation.splitting.running import open_session, random_inputs, run_session
from flows.preparation.splitting.split import split_model
from scripts.benchmarks.figures import Figure, add_destinations, conclude
from scripts.benchmarks.served import Load, Served
from tests.fakes.plans import HandModel, hand_model, hand_pipeline, hand_plan, hand_stage
from triton_backend.contract.cluster import NodeGroup
from triton_backend.contract.plan import PlacementRun, Plan
from triton_backend.contract.shares import SOLO, WHOLE_GPU
from triton_backend.contract.tensors import TensorSpec
from triton_backend.scheduler.policies import late as late_binding
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.simulator.failures import Failure
from triton_backend.simulator.results import SimResult
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions

POLICIES = ("eager", "deferred", "turns", "reservation")
LOADS = (0.5, 0.8, 0.95)
TARGET_POINTS, TARGET_BATCH, TARGET_IDLE = 2.0, 0.05, 0.03
GPU_CLASS = "GPU"
FIXED_US, PER_SAMPLE_US = 60_000, 15_000
BATCH, LARGEST = 8, 16
SLO_US = 1_000_000
PLANNED_SHARE = 0.9  # of what the vGPUs run in planned batches
# Real models: a run computes for a part of its time, so that two vGPUs leave cores to server and
# clients.
REAL = ("shufflenet", "squeezenet")
REAL_BATCH, REAL_LARGEST, STRETCH = 4, 8, 6.0
SLO_TIMES = SLO_US / (FIXED_US + PER_SAMPLE_US * BATCH)
CHECKED = 16
PROFILED = MeasureLimits(warm_up=2, min_runs=5, max_runs=40, max_seconds=2.0, interval=0.02)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pooled:
    """A model of one stage.

    Attributes:
        artifact: key of what runs it; None is emulated.
        check: samples to send, with the answers that they must get.
    """

    name: str
    latency_us_by_batch: tuple[int, ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    artifact: str | None = None
    check: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The models of a pool, their planned batch and SLO, and where their artifacts are."""

    models: tuple[Pooled, ...]
    batch: int
    slo_us: int
    artifacts: Path | None = None

    @property
    def checks(self) -> dict[str, Path]:
        """Samples with the answers that they must get, of the models that have any."""
        return {model.name: model.check for model in self.models if model.check}


def emulated(models: int) -> Setting:
    """So many equal models."""
    given = TensorSpec(name="input", dtype="UINT8", shape=(-1, 4096))
    answer = TensorSpec(name="output", dtype="UINT8", shape=(-1, 1000))
    latencies = tuple(FIXED_US + PER_SAMPLE_US * b for b in range(1, LARGEST + 1))
    made = (
        Pooled(
            name=f"model{number}", latency_us_by_batch=latencies, inputs=(given,), outputs=(answer,)
        )
        for number in range(models)
    )
    return Setting(models=tuple(made), batch=BATCH, slo_us=SLO_US)


def real(folder: Path) -> Setting:
    """Two ONNX models, built and measured on the cores of this machine, whole."""
    models = tuple(_measured(name, folder) for name in REAL)
    slowest_us = max(model.latency_us_by_batch[REAL_BATCH - 1] for model in models)
    return Setting(
        models=models,
        batch=REAL_BATCH,
        slo_us=round(SLO_TIMES * slowest_us),
        artifacts=folder / "artifacts",
    )


def _measured(name: str, folder: Path) -> Pooled:
    source = write_example(name, folder / f"{name}.onnx")
    split = split_model(source, name=name, out=folder, blocks=1, max_batch=REAL_LARGEST)
    cores = tuple(sorted(os.sched_getaffinity(0)))
    built = build_stage(
        extract_stage(split, 0, split.blocks),
        split.inputs,
        split.outputs,
        device_class=DeviceClass(name=GPU_CLASS, cores=cores, stretch=STRETCH),
        max_batch=REAL_LARGEST,
        root=folder / "artifacts",
    )
    target = ProfileTarget(
        model=name,
        block=0,
        gpu_class=GPU_CLASS,
        artifact=built.folder,
        parts=((WHOLE_GPU, SOLO),),
        batches=tuple(range(1, REAL_LARGEST + 1)),
    )
    cells: list[MeasuredCell] = []
    measure_cells([target], done=(), store=cells.append, limits=PROFILED)
    latencies = tuple(round(cell.latency.mean_us) for cell in cells)
    print(f"{name}: {latencies} us", file=sys.stderr, flush=True)
    return Pooled(
        name=name,
        latency_us_by_batch=tuple(int(us) for us in np.maximum.accumulate(latencies)),
        inputs=split.inputs,
        outputs=split.outputs,
        artifact=built.key,
        check=_answers(split, folder),
    )


def _answers(split: SplitModel, folder: Path) -> Path:
    """Samples with the answers of the unsplit model."""
    given = random_inputs(split.inputs, CHECKED, np.random.default_rng(0))
    made = run_session(open_session(split.model_path, split.name), given)
    path = folder / f"samples-{split.name}.npz"
    arrays = {f"inputs/{name}": array for name, array in given.items()}
    np.savez(path, **arrays, **{f"outputs/{spec.name}": made[spec.name] for spec in split.outputs})
    return path


def shared_plan(setting: Setting, vgpus: int, policy: str) -> Plan:
    """The models with equal rates on one pool of so many vGPUs."""
    place = PlacementRun(node=0, gpu=0, slot=0, gpus=vgpus)
    planned_us = [model.latency_us_by_batch[setting.batch - 1] for model in setting.models]
    rate_rps = PLANNED_SHARE * 1e6 * setting.batch * vgpus / sum(planned_us)

    def made(model: Pooled) -> HandModel:
        stage = hand_stage(
            (0, 10),
            GPU_CLASS,
            place,
            model.latency_us_by_batch,
            batch=setting.batch,
            artifact=model.artifact,
        )
        return hand_model(
            model.name,
            hand_pipeline(stage, batch=setting.batch, rate_rps=rate_rps),
            slo_us=setting.slo_us,
            policy=policy,
            inputs=model.inputs,
            outputs=model.outputs,
        )

    nodes = [NodeGroup(count=1, gpu_class=GPU_CLASS, gpus=vgpus, nic_gbps=10.0)]
    return hand_plan(*map(made, setting.models), nodes=nodes, plan_id=f"shared-{policy}")


class Row(dict[str, Any]):
    """One point: where that is, what was measured and what was simulated."""

    def difference(self, name: str) -> float:
        """Measured less simulated."""
        return float(self["measured"][name] - self["simulated"][name])


def points(setting: Setting, options: argparse.Namespace) -> Iterator[Row]:
    """Every policy at every load."""
    for policy in options.policies:
        plan = shared_plan(setting, options.vgpus, policy)
        serve = ServeOptions(guard_fraction=options.guard, artifacts=setting.artifacts)
        with Served(plan, options.port, serve) as served:
            for load_factor in options.loads:
                row = Row(
                    where=f"{policy} at load {load_factor}",
                    measured=measured(served, load_factor, setting.checks, options),
                    simulated=simulated(plan, load_factor, options),
                    load_average=os.getloadavg()[0],
                )
                print(row, file=sys.stderr, flush=True)
                yield row


def measured(
    served: Served, load_factor: float, checks: Mapping[str, Path], options: argparse.Namespace
) -> dict[str, float]:
    """Attainment, batch sizes and idle shares of the running system.

    `checks` are samples with their answers, by model.
    """
    plan = served.plan
    before, began_s = counters(served), time.monotonic()
    loaded = Load(
        served.state.grpc_url,
        served.write_plan(plan, "reference"),
        f"--load-factor={load_factor}",
        f"--duration={options.seconds}",
        f"--seed={options.seed}",
        "--give-up-s=1",
        *(f"--check={name}={path}" for name, path in checks.items()),
    ).result()
    seconds, after = time.monotonic() - began_s, counters(served)
    grown = {name: after[name] - before[name] for name in after}
    # The generator starts and ends outside the load; what it offered took `options.seconds`.
    span_s = min(seconds, options.seconds + longest_slo_s(plan))
    rows = loaded.summary["models"].values()
    return {
        "attainment": loaded.attainment,
        "mean_batch": grown["samples"] / max(grown["batches"], 1),
        "idle": 1 - grown["busy_us"] / 1e6 / span_s / len(plan.vgpus()),
        "wrong": sum(row["checked"]["wrong"] for row in rows if "checked" in row),
        "failed": sum(row["failed"] for row in rows),
        "late": sum(row["late"] for row in rows),
    }


def counters(served: Served) -> dict[str, float]:
    """Totals of the gateway."""
    found = served.state.control("status")["counters"]
    return {
        "batches": sum(found["batches"].values()),
        "samples": sum(found["samples"].values()),
        "busy_us": sum(found["stage_busy_us"].values()),
    }


def simulated(
    plan: Plan,
    load_factor: float,
    options: argparse.Namespace,
    failures: tuple[Failure, ...] = (),
) -> dict[str, float]:
    """Simulated results of the same arrivals, with deadlines less the gateway's guard.

    Timers of the gateway ring as much earlier again, so late batches are sent that much before they
    start.
    """
    guard_us = ServeOptions(guard_fraction=options.guard).guard_us
    late = all(model.policy in late_binding.POLICIES for model in plan.models)
    kept = tuple(replace(m, slo_us=m.slo_us - guard_us(m.slo_us)) for m in plan.models)
    result = simulate(
        replace(plan, models=kept),
        SimOptions(
            load_factor=load_factor,
            duration_s=options.seconds,
            seed=options.seed,
            failures=failures,
            lead_us=min(guard_us(model.slo_us) for model in plan.models) if late else 0,
        ),
    )
    return {
        "attainment": result.attainment,
        "mean_batch": mean_batch(result),
        "idle": 1 - busy_s(result) / (options.seconds + longest_slo_s(plan)) / len(plan.vgpus()),
    }


def longest_slo_s(plan: Plan) -> float:
    """Of all models."""
    return max(model.slo_us for model in plan.models) / 1e6


def mean_batch(result: SimResult) -> float:
    """Samples of all batches by batches."""
    answered = [(m.served + m.late, m.mean_batch) for m in result.models if m.mean_batch]
    batches = sum(samples / batch for samples, batch in answered)
    return sum(samples for samples, _ in answered) / max(batches, 1.0)


def busy_s(result: SimResult) -> float:
    """Time that vGPUs ran, all together."""
    uses = result.uses
    return float((uses["end_us"] - uses["start_us"]).sum()) / 1e6


def figures_of(rows: list[Row]) -> list[Figure]:
    """How far each point lies from the simulator's."""
    found: list[Figure] = []
    for row in rows:
        where = row["where"]
        note = (
            f"measured {row['measured']['attainment']:.3%}, machine load {row['load_average']:.1f}"
        )
        found.append(
            Figure(
                name=f"{where}: attainment less simulated",
                value=100 * row.difference("attainment"),
                unit="points",
                least=-TARGET_POINTS,
                most=TARGET_POINTS,
                note=note,
            )
        )
        for name, what in (("wrong", "wrong answers"), ("failed", "requests lost")):
            found.append(Figure(name=f"{where}: {what}", value=row["measured"][name], most=0))
        share = row.difference("mean_batch") / row["simulated"]["mean_batch"]
        found.append(
            Figure(
                name=f"{where}: mean batch less simulated",
                value=share,
                least=-TARGET_BATCH,
                most=TARGET_BATCH,
                note=f"simulated {row['simulated']['mean_batch']:.2f}",
            )
        )
        found.append(
            Figure(
                name=f"{where}: idle less simulated",
                value=row.difference("idle"),
                least=-TARGET_IDLE,
                most=TARGET_IDLE,
                note=f"simulated {row['simulated']['idle']:.3f}",
            )
        )
    return found


def main() -> int:
    """Run, print, store."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--models", type=int, default=6)
    add("--vgpus", type=int, default=4)
    add("--policies", nargs="+", choices=POLICIES, default=list(POLICIES))
    add("--loads", nargs="+", type=float, default=list(LOADS))
    add("--seconds", type=float, default=30.0)
    add("--guard", type=float, default=0.02)
    add("--seed", type=int, default=1)
    add("--port", type=int, default=18_710)
    add_destinations(parser)
    add("--real", action="store_true", help="two ONNX models, measured here first")
    options = parser.parse_args()
    with TemporaryDirectory(prefix="poolpipe-pools-") as folder:
        setting = real(Path(folder)) if options.real else emulated(options.models)
        rows = list(points(setting, options))
    latencies = {model.name: model.latency_us_by_batch for model in setting.models}
    result = {"rows": [dict(row) for row in rows], "latencies_us": latencies}
    return conclude(options, "shared pools", figures_of(rows), result)


if __name__ == "__main__":
    sys.exit(main())
