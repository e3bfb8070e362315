"""Real ONNX models cut by a client process behind a real Triton server, over an emulated link.

squeezenet, shufflenet and inception_v2 of the onnx wheel with seeded weights. Every cut answers as
the whole model does, in full and in half the bytes. Then the wheel's client, as a process of its
own on a device that is made so many times slower than this machine, follows a 5G trace; so do a
client that may only send its input, and one whose server is not there. Requests without an answer
count as infinitely late in medians.

    .venv/bin/python scripts/paper/graft/models.py --data DIR [--models squeezenet,…]
        [--seconds 20] [--stretch 6]
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flows.device_class import DeviceClass
from flows.preparation.building.onnxruntime import build_stage
from flows.preparation.graphs.examples import write_example
from flows.preparation.heads import CUTS_NAME, export_heads
from flows.preparation.splitting import SplitModel, extract_stage, split_model
from scripts.benchmarks.figures import Figure, add_destinations, conclude
from scripts.benchmarks.served import Served
from scripts.paper.graft.fleets import traces
from tests.fakes.plans import HandPipeline, hand_model, hand_pipeline, hand_plan, hand_stage
from triton_backend.client.device import Arrays, Device, halved, largest_error, read_input
from triton_backend.client.heads import Heads, read_heads, write_times
from triton_backend.client.server import Server
from triton_backend.contract.cluster import NodeGroup
from triton_backend.contract.entries import Entry
from triton_backend.contract.plan import PlacementRun, Plan
from triton_backend.serve_folder.settings import ServeOptions

MODELS = ("squeezenet", "shufflenet", "inception_v2")
GPU = "CPU"
MOST_ERROR, WORSE = 1e-4, 1.05
SLO = 2.0  # of the whole model on the device
LOAD = 0.4  # of what the device could do alone
NOT_HERE = "127.0.0.1:1"
NEVER_US = 10**9  # a head that no client takes
PATIENT_US = 20_000_000
TRACE = "driving_2020.02.13_15.02.01"  # 0 to 126 Mbit/s within half a minute


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A model with its heads, as a client on the slower device has them."""

    split: SplitModel
    heads: Heads
    slo_us: int
    rps: float


def prepared(name: str, root: Path, options: argparse.Namespace) -> Cut:
    """Split it, write heads for every cut, and time them."""
    path = write_example(name, root / f"{name}.onnx")
    split = split_model(path, name=name, out=root / "models", blocks=options.blocks, max_batch=1)
    folder = root / "heads" / name
    export_heads(split, folder, [1] * split.blocks)
    client(("measure", str(folder), "--stretch", str(options.stretch)))
    heads = read_heads(folder)
    own_us = [head.head_us or 0 for head in heads.cuts]
    rows = json.loads((folder / CUTS_NAME).read_text())
    for row, head_us in zip(rows, own_us, strict=True):  # blocks of the server are not stretched
        row["tail_us"] = round((own_us[-1] - head_us) / options.stretch)
    (folder / CUTS_NAME).write_text(json.dumps(rows))
    slo_us = round(SLO * own_us[-1])
    return Cut(split=split, heads=read_heads(folder), slo_us=slo_us, rps=LOAD * 1e6 / own_us[-1])


def planned(cut: Cut, root: Path) -> Plan:
    """Tails of every cut on one vGPU, one by one."""
    split = cut.split
    device = DeviceClass(name=GPU, cores=(min(os.sched_getaffinity(0)),))

    def tail(block: int) -> HandPipeline:
        built = build_stage(
            extract_stage(split, block, split.blocks),
            split.stage_inputs(block),
            split.outputs,
            device_class=device,
            max_batch=1,
            root=root / "artifacts",
        )
        tail_us = max(cut.heads.cuts[block].tail_us or 0, 1)
        place = PlacementRun(node=0, gpu=0, slot=0)
        blocks = (block, split.blocks)
        stage = hand_stage(blocks, GPU, place, (tail_us,), artifact=built.key)
        return hand_pipeline(stage, batch=1, rate_rps=0.1, entry=f"cut{block}")

    model = hand_model(
        split.name,
        *map(tail, range(split.blocks)),
        slo_us=cut.slo_us,
        entries=tuple(
            Entry(
                name=f"cut{block}",
                block=block,
                budget_us=cut.slo_us,
                rate_rps=0.1,
                inputs=split.stage_inputs(block),
            )
            for block in range(split.blocks)
        ),
        inputs=split.inputs,
        outputs=split.outputs,
        split=split.key,
        policy="eager",
    )
    return hand_plan(model, nodes=[NodeGroup(count=1, gpu_class=GPU, gpus=1, nic_gbps=10.0)])


async def errors(cut: Cut, url: str) -> Iterator[tuple[float, float]]:
    """Largest relative error of every cut, in full and in half the bytes."""
    heads, device = cut.heads, Device(cut.heads)
    inputs = read_input("random", heads.inputs)
    expected = device.run(heads.whole, inputs)
    server = Server(url, heads)

    async def error(block: int, tensors: Arrays) -> float:
        answer = await server.infer(heads.cuts[block], tensors, PATIENT_US, PATIENT_US / 1e6)
        return largest_error(answer, expected)

    found: list[tuple[float, float]] = []
    try:
        for head in heads.cuts[:-1]:
            crossing = device.run(head, inputs)
            half = halved(crossing, head.tensors)
            found.append((await error(head.block, crossing), await error(head.block, half)))
    finally:
        await server.close()
    return iter(found)


def client(command: tuple[str, ...]) -> dict[str, Any]:
    """The client as a process of its own; what it printed."""
    words = [sys.executable, "-m", "triton_backend.client", *command, "--json"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout)


def input_only(heads: Heads) -> Path:
    """The heads of a client that has but one cut, its input, and no model of its own."""
    folder = heads.folder.with_name(f"{heads.folder.name}-input")
    folder.mkdir(exist_ok=True)
    for file in heads.folder.iterdir():
        if not (folder / file.name).exists():
            os.link(file, folder / file.name)
    cuts = folder / CUTS_NAME
    text = cuts.read_text()
    cuts.unlink()  # not the one linked
    cuts.write_text(text)
    write_times(folder, [0] + [NEVER_US] * (len(heads.cuts) - 1))
    return folder


def runs(cut: Cut, url: str, trace: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The client that chooses, in full and in half, the one that sends all and the one alone."""
    how = (
        *("--rps", f"{min(cut.rps, options.most_rps):.3f}", "--slo-ms", f"{cut.slo_us / 1e3:.1f}"),
        *("--duration", f"{options.seconds:g}", "--link", str(trace)),
        *("--stretch", f"{options.stretch:g}"),
    )
    folder = str(cut.heads.folder)
    return {
        "chosen": client(("run", folder, "--url", url, *how)),
        "chosen, half the bytes": client(("run", folder, "--url", url, "--half", *how)),
        "all remote": client(("run", str(input_only(cut.heads)), "--url", url, *how)),
        "all local": client(("run", folder, "--url", NOT_HERE, *how)),
    }


def median_ms(run: dict[str, Any]) -> float:
    """Of all requests; one without an answer took for ever."""
    took = [np.inf if r["total_us"] is None else r["total_us"] / 1e3 for r in run["requests"]]
    return float(np.median(took))


def write_trace(path: Path, options: argparse.Namespace) -> Path:
    """A stretch of a recorded link."""
    rates = traces(options.data)[options.trace][
        options.begin : options.begin + int(options.seconds) + 2
    ]
    rows = [f"{at},{rate:.3f}" for at, rate in enumerate(rates)]
    path.write_text("\n".join(["time_s,mbit_per_s", *rows]) + "\n")
    return path


def measured(name: str, root: Path, options: argparse.Namespace) -> list[Figure]:
    """All of one model."""
    cut = prepared(name, root, options)
    trace = write_trace(root / "link.csv", options)
    serve = ServeOptions(artifacts=root / "artifacts")
    with Served(planned(cut, root), options.port, serve) as served:
        both = list(asyncio.run(errors(cut, served.state.grpc_url)))
        ran = runs(cut, served.state.grpc_url, trace, options)
    medians = {how: median_ms(run) for how, run in ran.items()}
    alone = min(medians["all local"], medians["all remote"])
    cuts, asked = ran["chosen"]["cuts"], ran["chosen"]["asked"]
    load = f"machine load {os.getloadavg()[0]:.1f}"
    return [
        Figure(
            name=f"{name}: largest error of {len(both)} cuts",
            value=max(full for full, _ in both),
            most=MOST_ERROR,
        ),
        Figure(name=f"{name}: the same in half the bytes", value=max(half for _, half in both)),
        Figure(
            name=f"{name}: largest error of the client's requests",
            value=ran["chosen"]["max_error"],
            most=MOST_ERROR,
            note=f"in half the bytes {ran['chosen, half the bytes']['max_error']:.2g}",
        ),
        Figure(
            name=f"{name}: p50 over the better of all local and all remote",
            value=medians["chosen"] / alone,
            most=WORSE,
            note=f"{', '.join(f'{how} {ms:.1f}' for how, ms in medians.items())} ms; {load}",
        ),
        Figure(
            name=f"{name}: served in time",
            value=100 * ran["chosen"]["attainment"],
            unit="%",
            note=f"all remote {100 * ran['all remote']['attainment']:.1f}, all local"
            f" {100 * ran['all local']['attainment']:.1f} %; cuts {cuts}, moved"
            f" {ran['chosen']['changes']} times, asked {asked}",
        ),
    ]


def main() -> int:
    """Run, print, store."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=Path, required=True, metavar="DIR")
    add("--models", default=",".join(MODELS), metavar="LIST")
    add("--blocks", type=int, default=8)
    add("--seconds", type=float, default=20.0)
    add("--stretch", type=float, default=6.0, help="how much slower the device is")
    add("--most-rps", type=float, default=8.0)
    add("--trace", default=TRACE, metavar="NAME", help="of the 5G traces")
    add("--begin", type=int, default=5, metavar="S", help="within the trace")
    add("--port", type=int, default=18_770)
    add_destinations(parser)
    options = parser.parse_args()
    figures: list[Figure] = []
    for name in options.models.split(","):
        with tempfile.TemporaryDirectory(prefix="poolpipe-graft-") as root:
            figures += measured(name, Path(root), options)
    return conclude(options, "graft models", figures)


if __name__ == "__main__":
    sys.exit(main())
