"""Benchmark of late binding.

Arrivals per second through the kernel, cost of a grant, how both grow.

    .venv/bin/python scripts/benchmarks/scheduling/late_binding.py [--rounds 5] [--requests 800000]
        [--policy deferred] [--out FILE.json] [--warehouse FILE]

Models share one pool of whole GPUs, as in a sub-cluster of Symphony: L(b) = b + beta ms with beta
from 1 to 15 in turn, batches up to 32, SLO = 2 L(8) (the models of its figure 6a), offered 0.8 of
what the pool does in batches of 8. The rate is that of the simulator's event loop, with the cluster
that it simulates. More models on as many GPUs have smaller batches, so more of them per arrival:
the mean batch stands beside the time, and the time per batch. What the calls into the scheduler
take of it stands apart from the simulated cluster, whose requests in flight are more than the
nearer caches hold. Sizes are run in turns and the best of all rounds counts, because other work on
the machine only adds time.
"""

import argparse
import sys
import time
from typing import NamedTuple

from scripts.benchmarks.figures import Figure, add_destinations, conclude
from tests.fakes.plans import hand_model, hand_pipeline, hand_plan, hand_stage
from triton_backend.contract.cluster import NodeGroup
from triton_backend.contract.plan import PlacementRun, Plan
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions

LARGEST, PLANNED = 32, 8
BETAS = 15
LOAD = 0.8
BASE = (20, 1_000)
SIZES = (BASE, (20, 2_000), (40, 1_000), (400, 1_000), (800, 1_000), (800, 2_000))  # models, GPUs


class Measured(NamedTuple):
    """Of one size: time per arrival, that in the scheduler, and of a call that grants.

    What was attained.
    """

    arrival_ns: float
    decided_ns: float
    grant_p99_us: float
    attainment: float
    mean_batch: float


def sub_cluster(models: int, gpus: int, policy: str) -> Plan:
    """Models on one pool of whole GPUs, all planned for the same part of it."""
    place = PlacementRun(node=0, gpu=0, slot=0, gpus=gpus)
    made = []
    for number in range(models):
        beta = 1 + number % BETAS
        table = [1_000 * (batch + beta) for batch in range(1, LARGEST + 1)]
        took_us = table[PLANNED - 1]
        rate_rps = LOAD * gpus / models * PLANNED * 1e6 / took_us
        stage = hand_stage((0, 1), "GPU", place, table, batch=PLANNED)
        pipeline = hand_pipeline(stage, batch=PLANNED, rate_rps=rate_rps)
        made.append(hand_model(f"m{number}", pipeline, slo_us=2 * took_us, policy=policy))
    return hand_plan(*made, nodes=[NodeGroup(count=1, gpu_class="GPU", gpus=gpus, nic_gbps=100.0)])


def measure(plan: Plan, requests: int) -> Measured:
    """One run of about so many requests."""
    rate_rps = sum(model.throughput_rps for model in plan.models)
    options = SimOptions(duration_s=requests / rate_rps, keep_uses=False)
    result = simulate(plan, options, clock_ns=time.perf_counter_ns)
    wall_ns = (result.wall_seconds or 0.0) * 1e9
    offered = sum(model.offered for model in result.models)
    decisions = result.decisions
    return Measured(
        arrival_ns=wall_ns / len(result.requests),
        decided_ns=1e3 * (decisions.mean_us or 0.0) * decisions.count / len(result.requests),
        grant_p99_us=decisions.dispatch_p99_us or 0.0,
        attainment=result.attainment,
        mean_batch=offered / sum(m.offered / m.mean_batch for m in result.models if m.mean_batch),
    )


def figures(found: dict[tuple[int, int], list[Measured]]) -> list[Figure]:
    """Targets, and the sizes behind them."""
    best_ns = {size: min(run.arrival_ns for run in runs) for size, runs in found.items()}
    decided_ns = {size: min(run.decided_ns for run in runs) for size, runs in found.items()}
    batch_ns = {size: best_ns[size] * runs[0].mean_batch for size, runs in found.items()}
    grant_us = {size: min(run.grant_p99_us for run in runs) for size, runs in found.items()}
    out: list[Figure] = []
    for size, runs in found.items():
        name = f"{size[0]} models, {size[1]} GPUs"
        run = runs[0]
        note = f"{best_ns[size]:.0f} ns each, {decided_ns[size]:.0f} of it in the scheduler; "
        note += f"attained {run.attainment:.4f}; mean batch {run.mean_batch:.1f}"
        least = 1_000_000.0 if size == BASE else None
        rate = 1e9 / best_ns[size]
        out.append(Figure(name=f"{name}: arrivals per second", value=rate, least=least, note=note))
        most = 5.0 if size[0] == 400 else None  # noqa: PLR2004 - where the aim is stated
        value = grant_us[size]
        out.append(Figure(name=f"{name}: p99 of a grant", value=value, unit="µs", most=most))
    for what, size, twice in (
        ("GPUs doubled", BASE, (20, 2_000)),
        ("models doubled", BASE, (40, 1_000)),
        ("models doubled from 400, smaller batches", (400, 1_000), (800, 1_000)),
        ("models and GPUs doubled from 400", (400, 1_000), (800, 2_000)),
    ):
        for unit, times, most in (
            ("arrival", best_ns, 1.2),
            ("arrival in the scheduler", decided_ns, 1.2),
            ("batch", batch_ns, None),
        ):
            name = f"{what}: time per {unit}, factor"
            out.append(Figure(name=name, value=times[twice] / times[size], most=most))
    return out


def main() -> int:
    """Measure in turns and tell."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=800_000)
    parser.add_argument("--policy", default="deferred")
    add_destinations(parser)
    asked = parser.parse_args()
    plans = {size: sub_cluster(*size, asked.policy) for size in SIZES}
    found: dict[tuple[int, int], list[Measured]] = {size: [] for size in SIZES}
    for _ in range(asked.rounds):
        for size, plan in plans.items():
            found[size].append(measure(plan, asked.requests))
    judged = figures(found)
    runs = [[*size, *run] for size, measured in found.items() for run in measured]
    return conclude(asked, "late_binding", judged, {"runs": runs})


if __name__ == "__main__":
    sys.exit(main())
