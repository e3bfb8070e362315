"""Models that share one pool behind a real Triton server, measured beside the simulator.

Emulated models of one stage share the vGPUs of one node under each policy, at shares of the rate
that the pool serves in planned batches. The simulator runs the same arrivals. Idle is the part of
the time in which a vGPU ran nothing, measured from what the workers report.

    .venv/bin/python scripts/benchmarks/shared_pools.py [--models 6] [--vgpus 4] [--seconds 30]
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from scripts.benchmarks.figures import Figure, add_destinations, conclude
from scripts.benchmarks.served import Load, Served
from tests.fakes.plans import hand_model, hand_pipeline, hand_plan, hand_stage
from triton_backend.contract.cluster import NodeGroup
from triton_backend.contract.plan import PlacementRun, Plan
from triton_backend.contract.tensors import TensorSpec
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.simulator.results import SimResult
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions

POLICIES = ("eager", "deferred", "turns", "reservation")
LOADS = (0.5, 0.8, 0.95)
TARGET_POINTS, TARGET_BATCH, TARGET_IDLE = 2.0, 0.05, 0.03
FIXED_US, PER_SAMPLE_US = 60_000, 15_000
BATCH, LARGEST = 8, 16
SLO_US = 1_000_000
PLANNED_SHARE = 0.9  # of what the vGPUs run in planned batches


def shared_plan(models: int, vgpus: int, policy: str) -> Plan:
    """So many models with equal rates on one pool of so many vGPUs."""
    latencies = tuple(FIXED_US + PER_SAMPLE_US * b for b in range(1, LARGEST + 1))
    place = PlacementRun(node=0, gpu=0, slot=0, gpus=vgpus)
    stage = hand_stage((0, 10), "GPU", place, latencies, batch=BATCH)
    rate_rps = PLANNED_SHARE * 1e6 * BATCH * vgpus / latencies[BATCH - 1] / models
    given = TensorSpec(name="input", dtype="UINT8", shape=(-1, 4096))
    answer = TensorSpec(name="output", dtype="UINT8", shape=(-1, 1000))
    made = [
        hand_model(
            f"model{number}",
            hand_pipeline(stage, batch=BATCH, rate_rps=rate_rps),
            slo_us=SLO_US,
            policy=policy,
            inputs=(given,),
            outputs=(answer,),
        )
        for number in range(models)
    ]
    nodes = [NodeGroup(count=1, gpu_class="GPU", gpus=vgpus, nic_gbps=10.0)]
    return hand_plan(*made, nodes=nodes, plan_id=f"shared-{policy}")


class Row(dict[str, Any]):
    """One point: policy, load factor, what was measured and what was simulated."""

    def difference(self, name: str) -> float:
        """Measured less simulated."""
        return float(self["measured"][name] - self["simulated"][name])


def points(options: argparse.Namespace) -> Iterator[Row]:
    """Every policy at every load."""
    for policy in options.policies:
        plan = shared_plan(options.models, options.vgpus, policy)
        serve = ServeOptions(guard_fraction=options.guard)
        with Served(plan, options.port, serve) as served:
            for load_factor in options.loads:
                row = Row(
                    policy=policy,
                    load_factor=load_factor,
                    measured=measured(served, plan, load_factor, options),
                    simulated=simulated(plan, load_factor, options),
                    load_average=os.getloadavg()[0],
                )
                print(row, file=sys.stderr, flush=True)
                yield row


def measured(
    served: Served, plan: Plan, load_factor: float, options: argparse.Namespace
) -> dict[str, float]:
    """What the running system attains, how large its batches are, how idle its vGPUs."""
    before, began_s = counters(served), time.monotonic()
    loaded = Load(
        served.state.grpc_url,
        served.write_plan(plan, "reference"),
        f"--load-factor={load_factor}",
        f"--duration={options.seconds}",
        f"--seed={options.seed}",
        "--give-up-s=1",
    ).result()
    seconds, after = time.monotonic() - began_s, counters(served)
    grown = {name: after[name] - before[name] for name in after}
    # The generator starts and ends outside the load; what it offered took `options.seconds`.
    span_s = min(seconds, options.seconds + SLO_US / 1e6)
    return {
        "attainment": loaded.attainment,
        "mean_batch": grown["samples"] / max(grown["batches"], 1),
        "idle": 1 - grown["busy_us"] / 1e6 / span_s / options.vgpus,
    }


def counters(served: Served) -> dict[str, float]:
    """Totals of the gateway."""
    found = served.state.control("status")["counters"]
    return {
        "batches": sum(found["batches"].values()),
        "samples": sum(found["samples"].values()),
        "busy_us": sum(found["stage_busy_us"].values()),
    }


def simulated(plan: Plan, load_factor: float, options: argparse.Namespace) -> dict[str, float]:
    """What the simulator says of the same arrivals, their deadlines less the gateway's guard."""
    slo_us = SLO_US - ServeOptions(guard_fraction=options.guard).guard_us(SLO_US)
    plan = replace(plan, models=tuple(replace(model, slo_us=slo_us) for model in plan.models))
    result = simulate(
        plan,
        SimOptions(
            policy=None, load_factor=load_factor, duration_s=options.seconds, seed=options.seed
        ),
    )
    return {
        "attainment": result.attainment,
        "mean_batch": mean_batch(result),
        "idle": 1 - busy_s(result) / (options.seconds + SLO_US / 1e6) / options.vgpus,
    }


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
        where = f"{row['policy']} at load {row['load_factor']}"
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
    options = parser.parse_args()
    rows = list(points(options))
    figures = figures_of(rows)
    return conclude(options, "shared pools", figures, {"rows": [dict(row) for row in rows]})


if __name__ == "__main__":
    sys.exit(main())
