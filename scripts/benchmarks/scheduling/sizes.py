"""Two sizes of one model under one name: served beside simulated, at three loads.

A model of two sizes, whose requests are 70 % and 30 % of the load, is planned by `pool` for two GPU
classes. The plan is served on Triton with emulated GPUs and loaded at 0.5, 0.8 and 0.95 of its
rate, by size as planned. A third size is sent over HTTP and gRPC.

Simulated are, of each load: the arrivals that the load generator draws, with SLOs less the
gateway's guard; and the requests as the gateway saw them, with the instants and deadlines of its
event files. Requests sent late by a busy machine are part of the second alone.

Reported: the differences in attainment of every size and load, which are at most 2 points; the
share of requests of the larger size; refusals of the third size that list the sizes.
"""

import argparse
import sys
import time
import urllib.error
import urllib.request
from dataclasses import replace
from typing import Any

import grpc
import numpy as np
from tritonclient import grpc as grpc_client
from tritonclient.utils import InferenceServerException

from flows.planning import PlanOptions
from flows.planning.api import make_plan
from scripts.benchmarks.figures import Figure, add_destinations, conclude
from scripts.benchmarks.served import PUBLISHED_S, Load, Served, stop_when_terminated
from triton_backend.contract.arrivals import StatedRequests
from triton_backend.contract.cluster import Cluster
from triton_backend.contract.plan import Plan
from triton_backend.contract.profiles import ModelProfile, loaded
from triton_backend.contract.tensors import TensorSpec
from triton_backend.contract.workload import Workload
from triton_backend.scheduler.measured.guard import USUAL_SHARE
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.simulator.offered import POISSON, Arrivals, Stated
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions

NAME, SHARES = "reader", {320: 0.7, 640: 0.3}
LOADS = (0.5, 0.8, 0.95)
POINTS = 2.0
SERVED = ServeOptions(guard_fraction=USUAL_SHARE)  # not measured: as simulated
WAYS = {"simulated": " less the guard", "as_seen": " as the gateway saw it"}
# So little of the SLO is kept free that requests are late or dropped at the highest load.
SLO_MS, MARGIN = 1_200, 0.1
BATCHES, BLOCKS, BOUNDARY_BYTES = 4, 4, 20_000
# Of the whole model on the fast class at batch 1, for the smaller size.
FAST_US, SLOW_TIMES = 120_000, 2.5
CLUSTER = {
    "name": "sizes",
    "gpu_classes": {"fast": {}, "slow": {}},
    "nodes": [
        {"count": 1, "gpu_class": "fast", "gpus": 3, "nic_gbps": 10},
        {"count": 1, "gpu_class": "slow", "gpus": 6, "nic_gbps": 10},
    ],
}


def profile(width: int) -> ModelProfile:
    """Time in proportion to the width; 0.6 of that of a whole batch is there at batch 1."""
    whole_us = FAST_US * width / 320
    of_batch = np.array([0.6 + 0.4 * batch for batch in range(1, BATCHES + 1)])
    fast = np.outer(np.full(BLOCKS, whole_us / BLOCKS), of_batch)
    size = width // 320

    def tensor(name: str, *shape: int) -> tuple[TensorSpec, ...]:
        return (TensorSpec(name=name, dtype="UINT8", shape=(-1, *shape)),)

    return ModelProfile(
        name=f"{NAME}@3x48x{width}",
        tables=loaded({("fast", 1): fast, ("slow", 1): fast * SLOW_TIMES}),
        boundary_bytes=(BOUNDARY_BYTES * size,) * (BLOCKS - 1),
        inputs=tensor("x", 3, 48, width),
        outputs=tensor("y", width // 8),
        boundaries=tuple(tensor(f"b{i}", BOUNDARY_BYTES * size) for i in range(BLOCKS - 1)),
    )


def plan_of_sizes() -> Plan:
    """The plan, from the workload as users write it."""
    sizes = [
        {"input_shapes": {"x": f"3x48x{width}"}, "share": share} for width, share in SHARES.items()
    ]
    workload = Workload.from_dict({"models": [{"name": NAME, "slo_ms": SLO_MS, "sizes": sizes}]})
    profiles = {found.name: found for found in map(profile, SHARES)}
    return make_plan(profiles, Cluster.from_dict(CLUSTER), workload, PlanOptions(slo_margin=MARGIN))


def simulated(plan: Plan, arrivals: Arrivals, **how: Any) -> dict[str, float]:
    """Attainment (%) by size; the gateway's policy and admission."""
    asked = SimOptions(policy=None, admission=True, arrivals=arrivals, **how)
    return {row.name: 100 * row.outcome.attainment for row in simulate(plan, asked).models}


def less_guard(plan: Plan) -> Plan:
    """SLOs as the gateway announces them to the scheduler."""
    kept = (replace(m, slo_us=m.slo_us - SERVED.guard_us(m.slo_us)) for m in plan.models)
    return replace(plan, models=tuple(kept))


def as_seen(served: Served, before: int, count: int) -> Stated:
    """Requests as the gateway saw them, the first at 0; `before` others came before these.

    Raises:
        RuntimeError: its event files do not have them.
    """
    time.sleep(PUBLISHED_S)  # they are written meanwhile
    requests = list(served.requests())[before:]
    if len(requests) != count:
        raise RuntimeError(f"the event files have {len(requests)} of {count} requests")
    begin_us = requests[0]["now_us"]
    rows = StatedRequests(
        arrival_us=np.array([one["now_us"] - begin_us for one in requests]),
        deadline_us=np.array([one["deadline_us"] - one["now_us"] for one in requests]),
        samples=np.array([one["samples"] for one in requests]),
        models=tuple(served.plan.models[one["model"]].name for one in requests),
        entries=("",) * len(requests),
    )
    return Stated(requests=rows)


def compared(
    served: Served, load: float, before: int, asked: argparse.Namespace
) -> dict[str, dict[str, Any]]:
    """By size: offered, and attainment measured and simulated (%) in both ways.

    `before` requests were sent before.
    """
    path = served.write_plan(served.plan, "plan")
    options = (f"--load-factor={load}", f"--duration={asked.seconds}", f"--seed={asked.seed}")
    measured = Load(served.state.grpc_url, path, *options).result().summary["models"]
    how = {"duration_s": asked.seconds, "seed": asked.seed}
    drawn = simulated(less_guard(served.plan), POISSON, load_factor=load, **how)
    requests = as_seen(served, before, sum(one["offered"] for one in measured.values()))
    how["duration_s"] += SLO_MS / 1e3  # requests that were sent late
    seen = simulated(served.plan, requests, **how)
    return {
        name: {
            "offered": row["offered"],
            "failed": row["failed"],
            "measured": 100 * row["attainment"],
            "simulated": drawn[name],
            "as_seen": seen[name],
        }
        for name, row in measured.items()
    }


def refusals(served: Served) -> list[str]:
    """Answers to a third size over HTTP and gRPC, with the status before each."""
    body = b'{"inputs": [{"name": "x", "datatype": "UINT8", "shape": [1, 3, 48, 8], "data": %s}]}'
    ones = str([1] * (3 * 48 * 8)).encode()
    url = f"http://{served.state.http_url}/v2/models/{NAME}/infer"
    said: list[str] = []
    try:
        urllib.request.urlopen(urllib.request.Request(url, body % ones))  # our own
    except urllib.error.HTTPError as error:
        said.append(f"{error.code} {error.read().decode()}")
    given = grpc_client.InferInput("x", [1, 3, 48, 8], "UINT8")
    given.set_data_from_numpy(np.ones((1, 3, 48, 8), np.uint8))
    try:
        grpc_client.InferenceServerClient(served.state.grpc_url).infer(NAME, [given])
    except InferenceServerException as error:
        said.append(f"{error.status()} {error.message()}")
    return said


def figures_of(rows: dict[float, dict[str, dict[str, Any]]], said: list[str]) -> list[Figure]:
    """Differences, the share of the larger size, refusals."""
    found: list[Figure] = []
    for load, sizes in rows.items():
        words = "; ".join(
            f"{name} {one['measured']:.2f} % measured, {one['simulated']:.2f} % simulated,"
            f" {one['as_seen']:.2f} % as seen"
            for name, one in sizes.items()
        )
        for way, said_so in WAYS.items():
            worst = max(abs(one["measured"] - one[way]) for one in sizes.values())
            name = f"load {load:g}: measured apart from simulated{said_so}, worst size"
            found.append(Figure(name=name, value=worst, unit="points", most=POINTS, note=words))
    offered = {
        name: sum(sizes[name]["offered"] for sizes in rows.values())
        for name in next(iter(rows.values()))
    }
    share = offered[f"{NAME}@3x48x640"] / sum(offered.values())
    failed = sum(one["failed"] for sizes in rows.values() for one in sizes.values())
    statuses = ("400", f"StatusCode.{grpc.StatusCode.INVALID_ARGUMENT.name}")
    listed = sum(
        text.startswith(statuses) and all(f"3x48x{width}" in text for width in SHARES)
        for text in said
    )
    return [
        *found,
        *(
            Figure(
                name=f"measured apart from simulated{said_so}, worst of sizes and loads",
                value=max(
                    abs(one["measured"] - one[way]) for r in rows.values() for one in r.values()
                ),
                unit="points",
                most=POINTS,
            )
            for way, said_so in WAYS.items()
        ),
        Figure(name="share of requests of the larger size", value=share, note="planned: 0.3"),
        Figure(name="requests failed", value=failed, most=0),
        Figure(name="third size refused with the list, of HTTP and gRPC", value=listed, least=2),
    ]


def main() -> int:
    """Serve, load, compare; exit code 1 where a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=18_200, help="HTTP; gRPC and metrics follow")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each load")
    parser.add_argument("--seed", type=int, default=0)
    add_destinations(parser)
    asked = parser.parse_args()
    stop_when_terminated()
    plan = plan_of_sizes()
    rows: dict[float, dict[str, dict[str, Any]]] = {}
    with Served(plan, asked.port, SERVED) as served:
        for load in LOADS:
            before = sum(one["offered"] for sizes in rows.values() for one in sizes.values())
            rows[load] = compared(served, load, before, asked)
        said = refusals(served)
    details = {"loads": {f"{load:g}": sizes for load, sizes in rows.items()}, "refusals": said}
    return conclude(asked, "sizes", figures_of(rows, said), details)


if __name__ == "__main__":
    sys.exit(main())
