"""Models that need three times the memory there is: emulated GPUs, a real Triton.

Rates follow Zipf's law. `plan --planner subclusters --on-demand` pins the hottest models and loads
the others when they are asked for. A load generator then sends Poisson arrivals at the planned
rates, over gRPC. The same plan is simulated for as long. Memory of fronts is their proportional set
size, shared pages parted. Before the load, processor time of fronts without requests and of the
keeper is taken, in percent of a core.

    .venv/bin/python -m scripts.benchmarks.serving.on_demand [--models 200] [--seconds 120]
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from flows.clock import Stopwatch
from flows.planning import PlanOptions, make_plan
from scripts.benchmarks.figures import Figure, add_destinations, conclude
from scripts.benchmarks.resource_usage import STUB
from scripts.benchmarks.served import DROPPED, FAILED, LATE, Load, Loaded, Served
from triton_backend.contract.cluster import Cluster, GpuClass, NodeGroup
from triton_backend.contract.plan import Plan
from triton_backend.contract.profiles import ModelProfile, loaded
from triton_backend.contract.tensors import TensorSpec
from triton_backend.contract.workload import ModelDemand, Workload
from triton_backend.serve_folder.names import RESERVED_PREFIX
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions

MIB = 1 << 20
GPU = "gpu"
WEIGHTS_MIB, WORKSPACE_MIB, GPU_MIB = 250, 25, 2_048
LOAD_GIB_PER_S, LOAD_MS = 6.0, 20.0
RUN_US, SAMPLE_US = 10_000, 2_000  # of a batch of one; of every further sample
LARGEST = 8
ZIPF = 0.9
SLO_US = 1_000_000
RATE_RPS = 30.0  # of all models: the load generator and 200 fronts share two cores
MEMORY_PART = 1 / 3  # of what all weights need
PINNED, ON_DEMAND = "pinned", "on demand"
SETTLE_SECONDS, IDLE_SECONDS = 5.0, 20.0
IDLE_PERCENT = 0.1  # of a core, of a front


def problem(models: int, rate_rps: float) -> tuple[dict[str, ModelProfile], Cluster, Workload]:
    """Models alike but for their rates, on as many GPUs as hold a third of their weights."""
    table = (RUN_US + SAMPLE_US * np.arange(float(LARGEST)))[None, :]
    names = [f"m{number}" for number in range(models)]
    profiles = {
        name: ModelProfile(
            name=name,
            boundary_bytes=(),
            inputs=(TensorSpec(name="x", dtype="FP32", shape=(-1, 3)),),
            outputs=(TensorSpec(name="y", dtype="FP32", shape=(-1, 3)),),
            tables=loaded({(GPU, 1): table}),
            block_memory_bytes=(WEIGHTS_MIB * MIB,),
            block_workspace_bytes=(WORKSPACE_MIB * MIB,),
        )
        for name in names
    }
    gpus = round(models * WEIGHTS_MIB * MEMORY_PART / GPU_MIB)
    gpu_class = GpuClass(
        name=GPU, memory_gib=GPU_MIB / 1024, load_gib_per_s=LOAD_GIB_PER_S, load_ms=LOAD_MS
    )
    cluster = Cluster(
        name="small",
        gpu_classes=(gpu_class,),
        nodes=(NodeGroup(count=1, gpu_class=GPU, gpus=gpus, nic_gbps=10),),
    )
    weights = np.arange(1, models + 1) ** -ZIPF
    rates = (weights / weights.sum() * rate_rps).tolist()
    demands = [
        ModelDemand(name=name, slo_us=SLO_US, rate_rps=rate)
        for name, rate in zip(names, rates, strict=True)
    ]
    return profiles, cluster, Workload(models=tuple(demands))


def on_demand(plan: Plan) -> set[str]:
    """Names of the models that are loaded when they are asked for."""
    return {m.name for m, _, stage, _ in plan.placed_stages() if stage.load_us is not None}


def idle_percents(served: Served) -> list[Figure]:
    """Processor time of fronts and keeper while nothing is asked for."""
    keeper = psutil.Process(int(served.state.data["pid"]))
    processes = [keeper, *_fronts(served)]
    time.sleep(SETTLE_SECONDS)  # the fronts have connected by then
    before_s, watch = _cpu_seconds(processes), Stopwatch()
    time.sleep(IDLE_SECONDS)
    percents = 100 * (_cpu_seconds(processes) - before_s) / watch.seconds()
    front = float(np.mean(percents[1:]))
    return [
        Figure(name="processor of an idle front, mean", value=front, unit="%", most=IDLE_PERCENT),
        Figure(name="processor of the keeper", value=float(percents[0]), unit="%"),
    ]


def _fronts(served: Served) -> list[psutil.Process]:
    """The stubs of models that clients ask for."""
    own = f"/{RESERVED_PREFIX}"
    stubs = [one for one in served.processes() if one.name() == STUB]
    return [one for one in stubs if not any(own in word for word in one.cmdline())]


def _cpu_seconds(processes: Sequence[psutil.Process]) -> NDArray[np.float64]:
    times = [process.cpu_times() for process in processes]
    return np.array([one.user + one.system for one in times])


def run_served(plan: Plan, options: argparse.Namespace) -> tuple[list[Figure], dict[str, Any]]:
    """Serve and load the plan."""
    watch = Stopwatch()
    with Served(plan, options.port) as served:
        started_s = watch.seconds()
        idle = idle_percents(served)
        path = served.write_plan(plan, "on-demand")
        seconds = f"--duration={options.seconds}"
        load = Load(served.state.grpc_url, path, "--protocol=grpc", seconds, "--arrivals=poisson")
        result = load.result()
        fronts_mib = [process.memory_full_info().pss / MIB for process in _fronts(served)]
        workers = sum(served.metric("poolpipe_workers_up").values())
        loads = sum(served.metric("poolpipe_stage_loads_total").values())
        failed = sum(served.metric("poolpipe_batches_failed_total").values())
    free_mib = psutil.virtual_memory().available / MIB
    cold = on_demand(plan)
    names = [model.name for model in plan.models]
    is_cold = np.array([name in cold for name in names])[result.records["model"]]
    figures = [
        *_outcomes(result.part(~is_cold), PINNED, 0.99),
        *_outcomes(result.part(is_cold), ON_DEMAND, None),
        Figure(name="loads", value=loads, least=1),
        Figure(name="batches failed", value=failed, most=0),
        Figure(name="workers up at the end", value=workers, least=len(plan.vgpus())),
        Figure(name="start of all", value=started_s, unit="s"),
        *idle,
        Figure(name="memory of a front, median", value=median(fronts_mib), unit="MiB"),
        Figure(name="memory of all fronts", value=sum(fronts_mib) / 1024, unit="GiB"),
    ]
    outcomes = Counter(result.records["outcome"].tolist())
    return figures, {"outcomes": outcomes, "summary": result.summary, "free_mib": free_mib}


def _outcomes(result: Loaded, kind: str, least: float | None) -> list[Figure]:
    counts = Counter(result.records["outcome"].tolist())
    return [
        Figure(name=f"requests of models {kind}", value=len(result.records)),
        Figure(name=f"attained by models {kind}", value=result.attainment, least=least),
        Figure(name=f"late answers of models {kind}", value=counts[LATE], most=0),
        Figure(name=f"refused requests of models {kind}", value=counts[DROPPED]),
        Figure(name=f"failed requests of models {kind}", value=counts[FAILED], most=0),
    ]


def run_simulated(plan: Plan, seconds: float, seed: int) -> list[Figure]:
    """The same, simulated."""
    found = simulate(plan, SimOptions(duration_s=seconds, seed=seed))
    cold = on_demand(plan)
    figures: list[Figure] = []
    for kind, chosen in ((PINNED, False), (ON_DEMAND, True)):
        rows = [row for row in found.models if (row.name in cold) == chosen]
        share = sum(row.served for row in rows) / max(1, sum(row.offered for row in rows))
        figures.append(Figure(name=f"simulated of models {kind}", value=share))
    return figures


def main() -> int:
    """Run, print the table, exit 1 where a target is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--port", type=int, default=18_160)
    parser.add_argument("--models", type=int, default=200)
    parser.add_argument("--rate", type=float, default=RATE_RPS)
    parser.add_argument("--seconds", type=int, default=120)
    parser.add_argument("--seed", type=int, default=0, help="of the simulated requests")
    parser.add_argument("--simulated", action="store_true", help="plan and simulate alone")
    add_destinations(parser)
    options = parser.parse_args()
    profiles, cluster, workload = problem(options.models, options.rate)
    asked = PlanOptions(planner="subclusters", objective="gpus", own={"on_demand": True})
    plan = replace(make_plan(profiles, cluster, workload, asked), plan_id="on-demand")
    needs = len(profiles) * WEIGHTS_MIB / (cluster.nodes[0].gpus * GPU_MIB)
    figures = [
        Figure(name="weights, in times of the GPUs' memory", value=needs),
        Figure(name="models on demand", value=len(on_demand(plan))),
        *run_simulated(plan, options.seconds, options.seed),
    ]
    if options.simulated:
        return conclude(options, "on-demand", figures)
    served, raw = run_served(plan, options)
    return conclude(options, "on-demand", [*figures, *served], raw)


if __name__ == "__main__":
    sys.exit(main())
