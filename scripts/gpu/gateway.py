"""A real gateway with two pools of one vGPU each, both on the first GPU, under Poisson load."""

import json
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flows.preparation.profiling.copies import Copies
from flows.preparation.profiling.measure import MeasureLimits
from flows.preparation.profiling.statistics import summarise
from flows.preparation.splitting.extracting import extract_stage
from flows.preparation.splitting.model import SplitModel
from flows.quickstart.load_process import LoadRequest, run_load
from flows.release.server.admin import start, stop
from scripts.gpu.paths import CLASS, TensorrtPath
from tests.fakes.plans import hand_model, hand_pipeline, hand_plan, hand_stage
from triton_backend.contract.cluster import NodeGroup
from triton_backend.contract.plan import PlacementRun, Plan
from triton_backend.contract.shares import share_of_divisor
from triton_backend.contract.tensors import total_bytes_per_sample
from triton_backend.runtimes.mps import MpsDaemon
from triton_backend.serve_folder.endpoints import Endpoints
from triton_backend.serve_folder.repository import render_repository
from triton_backend.serve_folder.settings import ServeOptions

DIVISOR = 2
BATCH = 8
SLO_OVER_LATENCY = 5
LOAD_FACTOR = 0.8
LOAD_SECONDS = 10.0
NIC_GBPS = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStage:
    """One stage on half a GPU: its engine and its latency by batch."""

    blocks: tuple[int, int]
    artifact: str
    latency_us_by_batch: tuple[int, ...]


def serve_two_pools(
    path: TensorrtPath, split: SplitModel, work: Path
) -> tuple[float, dict[str, Any]]:
    """Attainment at 0.8 of the planned rate, and what else was seen.

    Raises:
        PoolPipeError: MPS, the server or the load generator does not work here.
    """
    middle = split.blocks // 2
    stages = _measure(path, split, [(0, middle), (middle, split.blocks)], work)
    plan = _plan(split, stages)
    folder = work / "serve"
    render_repository(folder, plan, ServeOptions(artifacts=work))
    (work / "plan.json").write_text(json.dumps(plan.to_dict()) + "\n")
    ports = Endpoints(http=_free_port(), grpc=_free_port(), metrics=_free_port())
    start(folder, ports)
    try:
        found = run_load(
            LoadRequest(
                plan=work / "plan.json",
                url=f"127.0.0.1:{ports.grpc}",
                duration_s=LOAD_SECONDS,
                load_factor=LOAD_FACTOR,
            )
        )
    finally:
        stop(folder)
    seen = found["models"][split.name]
    planned = {"planned_rps": plan.models[0].throughput_rps, "slo_us": plan.models[0].slo_us}
    return float(seen["attainment"]), {**planned, **seen}


def _measure(
    path: TensorrtPath, split: SplitModel, blocks: list[tuple[int, int]], work: Path
) -> list[MeasuredStage]:
    """Latency of each stage on one of two vGPUs while the other is busy too."""
    daemon = MpsDaemon.in_folder(work / "mps", ())
    folders = [path.artifact(extract_stage(split, *pair)) for pair in blocks]
    limits = {
        name: getattr(MeasureLimits(), name)
        for name in ("warm_up", "min_runs", "max_runs", "max_seconds", "interval")
    }
    daemon.start()
    try:
        with Copies(daemon.environment("0", share_of_divisor(DIVISOR))) as copies:
            latencies: list[tuple[int, ...]] = []
            for folder in folders:
                copies.load(folder, share_of_divisor(DIVISOR), DIVISOR)
                means = [summarise(copies.measure(b, limits)).mean_us for b in range(1, BATCH + 1)]
                latencies.append(tuple(int(np.ceil(us)) for us in np.maximum.accumulate(means)))
    finally:
        daemon.stop()
    return [
        MeasuredStage(blocks=pair, artifact=folder.name, latency_us_by_batch=table)
        for pair, folder, table in zip(blocks, folders, latencies, strict=True)
    ]


def _plan(split: SplitModel, measured: list[MeasuredStage]) -> Plan:
    """Two pools of one vGPU each on one GPU, written by hand: what is served is given here."""
    boundary = split.stage_outputs(measured[0].blocks[1])
    sizes = (total_bytes_per_sample(boundary), 0)
    stages = tuple(
        hand_stage(
            stage.blocks,
            CLASS,
            PlacementRun(node=0, gpu=0, slot=number, gpus=1),
            stage.latency_us_by_batch,
            vgpu_divisor=DIVISOR,
            boundary_bytes_per_sample=sizes[number],
            boundary=boundary if number == 0 else (),
            artifact=stage.artifact,
        )
        for number, stage in enumerate(measured)
    )
    pipeline = hand_pipeline(*stages, batch=BATCH)
    model = hand_model(
        split.name,
        pipeline,
        slo_us=SLO_OVER_LATENCY * pipeline.pipeline.latency_us,
        inputs=split.inputs,
        outputs=split.outputs,
    )
    node = NodeGroup(count=1, gpu_class=CLASS, gpus=1, nic_gbps=NIC_GBPS)
    return hand_plan(model, nodes=[node], plan_id="gpu-check")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
