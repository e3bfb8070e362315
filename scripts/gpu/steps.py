"""The steps of `scripts/gpu/evidence.py`, in order: a row each, over commands that exist.

A step is a function that gives the command lines to run, one after the other, in processes of their
own and within the step's time. Its files lie in the kit's folder, where later steps read them.
A step imports what it alone needs: on a machine without it the others still run.

    checks    devices -> models -> build -> profile -> workload -> plan -> simulate
                                     |                               |
                                   pairs                          engines -> serve, rival
"""

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from flows.state import HOME_VARIABLE, WAREHOUSE_VARIABLE, ProjectState
from triton_backend.contract.shares import WHOLE_GPU
from triton_backend.contract.units import US_PER_MS

ROOT = Path(__file__).resolve().parents[2]
POOLPIPE = (sys.executable, "-c", "from flows.cli.main import main; main()")
BLOCKS, MAX_BATCH, BATCHES = 10, 8, (1, 4, 8)
SLO_OVER_LATENCY = 5
LOADS = (0.5, 0.8)
LOAD_SECONDS = 20
MOST_SECONDS = 480  # of a step
SLOWER = 3  # a machine without a card takes this much longer
PLANS = ("plan.json", "whole.json")  # ours, the rival's
PORT = 27_801
CELL_SECONDS = "0.2"
PARTS = {"vgpu_percents": {"step": 20}, "partitions": [[100], [60, 40]]}  # of which pairs are made


class NotRun(Exception):  # noqa: N818 - not an error
    """A step that cannot be made here, with the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command line of a step.

    Attributes:
        words: the program and its arguments.
        out: a file of the kit's folder that gets its stdout; else the step's log does.
        always: run also where an earlier one of the step failed.
    """

    words: tuple[str, ...]
    out: str | None = None
    always: bool = False

    def __str__(self) -> str:
        """As a user would type it."""
        own = len(POOLPIPE) if self.words[: len(POOLPIPE)] == POOLPIPE else 1
        return " ".join(("poolpipe" if own > 1 else "python", *self.words[own:]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Kit:
    """The folder and the machine of a run.

    Attributes:
        work: everything that steps leave.
        stand_in: CPU cores stand in for cards; nothing of it is evidence about GPUs.
        models: examples that are split, planned and served.
    """

    work: Path
    stand_in: bool
    models: tuple[str, ...] = ("squeezenet", "shufflenet")

    @property
    def environment(self) -> dict[str, str]:
        """Of its commands: state and warehouse in the kit's folder."""
        own = {
            HOME_VARIABLE: str(self.work / "home"),
            WAREHOUSE_VARIABLE: str(self.work / "warehouse.duckdb"),
        }
        return dict(os.environ) | own

    def file(self, name: str) -> str:
        """A file of its folder."""
        return str(self.work / name)

    def json(self, name: str) -> Any:
        """The object that a command printed into a file of the folder; None without one."""
        path = self.work / name
        return json.loads(path.read_text()) if path.exists() and path.stat().st_size else None

    def limit_s(self, step: "Step") -> int:
        """Of a step here; limits are those of a machine with a card."""
        return min(MOST_SECONDS, step.limit_s * (SLOWER if self.stand_in else 1))

    @property
    def runtime(self) -> tuple[str, ...]:
        """Options that name what builds and runs stages."""
        return ("--runtime", "onnxruntime" if self.stand_in else "tensorrt")

    @property
    def gpus(self) -> tuple[str, ...]:
        """Options that name the card of each class that is measured."""
        if self.stand_in:
            return ()
        nodes = yaml.safe_load((self.work / "cluster.yaml").read_text())["nodes"]
        pairs = [f"{node['gpu_class']}={node['devices'][0]}" for node in nodes]
        return tuple(word for pair in pairs for word in ("--gpu", pair))


def poolpipe(*words: str, out: str | None = None, always: bool = False) -> Command:
    """A `poolpipe` command."""
    return Command(words=(*POOLPIPE, *words), out=out, always=always)


def _checks(kit: Kit) -> Iterator[Command]:
    if kit.stand_in:
        raise NotRun("there is no card here")
    words = ("-m", "scripts.gpu.check", "--quick", "--work", kit.file("check"))
    yield Command(words=(sys.executable, *words, "--json", kit.file("check.json")))


def _devices(kit: Kit) -> Iterator[Command]:
    if not kit.stand_in:
        yield poolpipe("devices", "--cluster-file", kit.file("cluster.yaml"))
        return
    from flows.quickstart.example_project import example_classes, example_cluster

    cluster = example_cluster().to_dict()
    for name, made in example_classes().items():
        device = made.device
        cores = {"cores": list(device.cores), "stretch": device.stretch}
        cluster["gpu_classes"][name]["runtime"] = cores
    (kit.work / "cluster.yaml").write_text(yaml.safe_dump(cluster, sort_keys=False))


def _models(kit: Kit) -> Iterator[Command]:
    from flows.preparation.graphs.examples import write_example

    for name in kit.models:
        source = write_example(name, kit.work / f"{name}.onnx")
        sizes = ("--blocks", str(BLOCKS), "--max-batch", str(MAX_BATCH))
        yield poolpipe("split", str(source), "--name", name, *sizes)


def _batches() -> tuple[str, ...]:
    return tuple(word for batch in BATCHES for word in ("--batch", str(batch)))


def _build(kit: Kit) -> Iterator[Command]:
    cluster = ("--cluster", kit.file("cluster.yaml"))
    yield poolpipe("build", *kit.models, *cluster, *kit.runtime, *_batches())


def _profile(kit: Kit) -> Iterator[Command]:
    cluster = ("--cluster", kit.file("cluster.yaml"))
    how = (*kit.runtime, *kit.gpus, *_batches(), "--seconds", CELL_SECONDS)
    yield poolpipe("profile", *kit.models, *cluster, *how)


def _pairs(kit: Kit) -> Iterator[Command]:
    """Parts in percent of the first class, alone and side by side.

    No law is fitted to them: that needs utilisations, which no step measures.
    """
    document = yaml.safe_load((kit.work / "cluster.yaml").read_text())
    name, whole = next(iter(document["gpu_classes"].items()))
    parts = {key: whole[key] for key in ("memory_gib", "runtime", "power_w") if key in whole}
    parts |= PARTS
    nodes = [node for node in document["nodes"] if node["gpu_class"] == name]
    document |= {"gpu_classes": {name: parts}, "nodes": nodes}
    (kit.work / "parts.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    how = ("--cluster", kit.file("parts.yaml"), *kit.runtime, *kit.gpus[:2])
    if kit.stand_in:
        yield poolpipe("profile", *kit.models, *how, "--batch", "1", "--seconds", CELL_SECONDS)
    engines = () if kit.stand_in else _batches()  # those that are built already
    yield poolpipe("profile", *kit.models, *how, *engines, "--pairs", "--seconds", CELL_SECONDS)


def _write_workload(kit: Kit) -> None:
    """Each model's SLO: so many times what the fastest class takes for all of it, batch 1."""
    from flows.files import read_cluster, read_workload
    from flows.planning.stored_plans import load_profiles
    from flows.workspace import Workspace

    path = kit.work / "workload.yaml"
    document: dict[str, Any] = {"models": [{"name": n, "slo_ms": 1_000} for n in kit.models]}
    path.write_text(yaml.safe_dump(document))
    cluster = read_cluster(kit.work / "cluster.yaml")
    state = ProjectState(home=kit.work / "home")
    workspace = Workspace(state=state, warehouse=kit.work / "warehouse.duckdb")
    profiles, _ = load_profiles(workspace, cluster, read_workload(path))
    for model in document["models"]:
        profile = profiles[model["name"]]
        whole = (profile.table(each.name, WHOLE_GPU) for each in cluster.gpu_classes)
        took_us = [int(t.stage_latency_us((0, profile.blocks))[0]) for t in whole if t is not None]
        model["slo_ms"] = round(SLO_OVER_LATENCY * min(took_us) / US_PER_MS, 3)
    path.write_text(yaml.safe_dump(document))


def _workload(kit: Kit) -> Iterator[Command]:
    _write_workload(kit)
    yield from ()


def _plan(kit: Kit) -> Iterator[Command]:
    """The plan, and the rival: whole models, Triton's batcher tuned for them in the simulator."""
    workload = ("--workload", kit.file("workload.yaml"))
    cluster = ("--cluster", kit.file("cluster.yaml"))
    yield poolpipe("plan", *cluster, *workload, "-o", kit.file("plan.json"))
    yield poolpipe("verify", kit.file("plan.json"))
    yield Command(words=(sys.executable, "-m", "scripts.gpu.tune", "--work", str(kit.work)))
    margin = ("--slo-margin", str(kit.json("rival.json")["slo_margin"]))
    whole = ("--planner", "no-partitioning", *margin, "--cluster", kit.file("rival.yaml"))
    yield poolpipe("plan", *whole, *workload, "-o", kit.file("whole.json"))
    yield poolpipe("verify", kit.file("whole.json"))


def _engines(kit: Kit) -> Iterator[Command]:
    """Of both plans, without which GPUs are emulated; the rival's hold the largest batch."""
    if kit.stand_in:  # `plan` names them already
        for name in PLANS:
            (kit.work / f"served-{name}").write_bytes((kit.work / name).read_bytes())
        return
    for name, policy in zip(PLANS, ((), ("--policy", "deferred")), strict=True):
        yield poolpipe("engines", kit.file(name), *policy, "-o", kit.file(f"served-{name}"))


def _loads(kit: Kit) -> Iterator[tuple[float, tuple[str, ...]]]:
    """Each load, and the options that offer that share of the plan's rates to any plan."""
    for load in LOADS:
        share = ("--load-factor", str(load), "--reference-plan", kit.file("plan.json"))
        yield load, (*share, "--duration", str(LOAD_SECONDS), "--json")


def _simulate(kit: Kit) -> Iterator[Command]:
    """Both plans under the same absolute rates: the rival by a simulated Triton's own batcher."""
    delay = ("--batch-timeout-share", str(kit.json("rival.json")["delay_share"]))
    for load, how in _loads(kit):
        yield poolpipe("simulate", kit.file("plan.json"), *how, out=f"simulated-{load}.json")
        rival = (kit.file("whole.json"), *how, "--policy", "triton", *delay)
        yield poolpipe("simulate", *rival, out=f"simulated-rival-{load}.json")


def _check_served(kit: Kit, name: str) -> str:
    """The file of a plan that real stages serve.

    Raises:
        NotRun: Triton is not here, or stages of the plan would be emulated.
    """
    if find_spec("pytriton") is None:
        raise NotRun("nvidia-pytriton, which brings Triton, is not installed")
    models = kit.json(f"served-{name}")["models"]
    stages = [s for model in models for p in model["pipelines"] for s in p["stages"]]
    if any(stage.get("artifact") is None for stage in stages):
        raise NotRun(f"stages of {name} have no engine, and would be emulated")
    return kit.file(f"served-{name}")


def _serve(kit: Kit) -> Iterator[Command]:
    plan = _check_served(kit, PLANS[0])
    ports = (f"--{kind}-port={PORT + n}" for n, kind in enumerate(("http", "grpc", "metrics")))
    yield poolpipe("stop")  # of a run that was killed
    yield poolpipe("serve", plan, *ports)
    for load, how in _loads(kit):
        yield poolpipe("load", plan, *how, out=f"served-{load}.json")
    yield poolpipe("stop", always=True)


def _rival(kit: Kit) -> Iterator[Command]:
    """Whole models on the same cards at the same absolute rates, behind Triton's own batcher."""
    words = ("-m", "scripts.benchmarks.adoption.batcher", _check_served(kit, PLANS[1]))
    loads = ("--load", *map(str, LOADS))
    files = ("--out", *(kit.file(f"served-rival-{load}.json") for load in LOADS))
    delay = ("--delay-share", str(kit.json("rival.json")["delay_share"]))
    artifacts = ("--artifacts", str(ProjectState(home=kit.work / "home").artifacts))
    how = ("--seconds", str(LOAD_SECONDS), "--port", str(PORT))
    reference = ("--reference", kit.file("plan.json"))
    yield Command(
        words=(sys.executable, *words, *reference, *loads, *files, *delay, *artifacts, *how)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step.

    Attributes:
        does: in a few words, for the list and the page.
        limit_s: after which its processes are ended; never above eight minutes.
        commands: what it runs. Raises NotRun.
        needs: steps that must be done before.
    """

    does: str
    limit_s: int
    commands: Callable[[Kit], Iterator[Command]]
    needs: Sequence[str] = field(default=())


STEPS: Mapping[str, Step] = {
    "checks": Step(does="all of scripts.gpu.check, quickly", limit_s=280, commands=_checks),
    "devices": Step(does="list the cards, write cluster.yaml", limit_s=20, commands=_devices),
    "models": Step(does="split two example models", limit_s=80, commands=_models),
    "build": Step(
        does="build engines of every block and whole model",
        limit_s=240,
        commands=_build,
        needs=("devices", "models"),
    ),
    "profile": Step(
        does="measure every block on every class and equal part (MPS)",
        limit_s=240,
        commands=_profile,
        needs=("build",),
    ),
    "workload": Step(
        does="set SLOs from the profiles", limit_s=20, commands=_workload, needs=("profile",)
    ),
    "plan": Step(
        does="plan models in stages; tune Triton with whole ones; verify both",
        limit_s=130,
        commands=_plan,
        needs=("workload",),
    ),
    "simulate": Step(
        does="simulate both plans, whole models by Triton's batcher",
        limit_s=60,
        commands=_simulate,
        needs=("plan",),
    ),
    "engines": Step(
        does="build the engines of both plans", limit_s=150, commands=_engines, needs=("plan",)
    ),
    "serve": Step(
        does="serve the plan on Triton under load", limit_s=90, commands=_serve, needs=("engines",)
    ),
    "rival": Step(
        does="serve whole models behind Triton's batcher at the same rates",
        limit_s=90,
        commands=_rival,
        needs=("engines",),
    ),
    "pairs": Step(
        does="measure pairs of models on unequal parts",
        limit_s=100,
        commands=_pairs,
        needs=("build",),
    ),
}
