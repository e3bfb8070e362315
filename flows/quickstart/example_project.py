"""The project that the quickstart runs on.

Two example models or an application, two CPU classes, a small cluster. The slow class is stretched
far enough that a whole model misses its SLO there and a part of it does not, which is the case
PoolPipe is for; both classes are stretched so that eight vGPUs, the server and the load fit two
cores.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from flows.device_class import DeviceClass
from flows.files import read_workload
from flows.preparation.building.onnxruntime import OnnxRuntimeClass
from flows.preparation.graphs.detector import MOST_BOXES, write_detector
from flows.preparation.graphs.examples import write_example
from flows.preparation.graphs.glue import BOX, CROPS, IMAGE, Crop, write_crop
from flows.preparation.profiling.measure import MeasureLimits
from flows.preparation.splitting.model import SplitModel
from flows.preparation.splitting.split import SplitChoices
from flows.quickstart.ocr import READERS, SIZES
from triton_backend.contract.applications import REQUEST, Application, Module
from triton_backend.contract.applications.sizes import AT, equal_or_given
from triton_backend.contract.cluster import Cluster, GpuClass, NodeGroup
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.contract.profiles import ModelProfile
from triton_backend.contract.shares import WHOLE_GPU
from triton_backend.contract.units import ms_to_us
from triton_backend.contract.workload import ModelDemand, Workload
from triton_backend.runtimes.stage_tensors import served_models

EXAMPLES = ("squeezenet", "shufflenet")
APPLICATION, DETECTOR, CROP = "traffic", "detector", "crop"
OCR = "ocr"
APPLICATIONS = (APPLICATION, OCR)
PICTURE = (3, 224, 224)
# Two stages of three models and the crop at once: with ten blocks each, the exact plan takes
# minutes.
APPLICATION_BLOCKS = 4
OCR_BLOCKS = {"detector": 2, "classifier": 1, "recogniser": 2}
FAST, SLOW = "fast-cpu", "slow-cpu"
FAST_STRETCH, SLOW_STRETCH = 4.0, 14.0
# Trained models of their true size: 13 busy GPUs take 1.3 cores, and leave the rest to Triton.
OCR_STRETCHES = 6.0, 12.0
GPUS, OCR_GPUS = (2, 3), (3, 5)  # of a node of either class
MAX_BATCH = 4
BLOCKS = 10
LIMITS = MeasureLimits(max_seconds=0.15, max_runs=30)
SLO_FACTOR = 5
# The rows of a request come all at once and wait for each other, which a plan's rates do not know.
APPLICATION_SLO_FACTOR = 10
# Triton, eight workers and the load share two cores: their own jitter must not decide.
SHORTEST_SLO_US = ms_to_us(200.0)
NIC_GBPS = 10.0
LOAD_FACTOR = 0.5
# The rows of a request come all at once, three processes handle each of them, on two shared cores.
APPLICATION_LOAD_FACTOR = 0.3
# A rate that a Python client, Triton and eight workers carry easily on two shared cores. A
# tiny model is planned at thousands of requests/s, which says more about the client than the plan.
MOST_RPS = 400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedModel:
    """One model to be served, or one size of it.

    `slo_us` None: chosen from its profile; `blocks`, `max_batch` None: as all. `share`: of the
    requests of `size_of`, the name that clients ask for.
    """

    name: str
    path: Path
    slo_us: int | None = None
    blocks: int | None = None
    max_batch: int | None = None
    choices: SplitChoices = field(default_factory=SplitChoices)
    size_of: str | None = None
    share: float = 1.0


def example_models(folder: Path) -> tuple[OfferedModel, ...]:
    """The two example models, written into `folder`."""
    return tuple(
        OfferedModel(name=name, path=write_example(name, folder / f"{name}.onnx"))
        for name in EXAMPLES
    )


def application_models(folder: Path) -> tuple[OfferedModel, ...]:
    """A detector, the crop behind it and two classifiers, written into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    detector = write_detector(folder / f"{DETECTOR}.onnx")
    size = (PICTURE[1], PICTURE[2])
    crop = write_crop(folder / f"{CROP}.onnx", Crop(image=PICTURE, size=size))
    return (
        OfferedModel(name=DETECTOR, path=detector, blocks=APPLICATION_BLOCKS),
        OfferedModel(name=CROP, path=crop, blocks=1),
        *(replace(model, blocks=APPLICATION_BLOCKS) for model in example_models(folder)),
    )


def ocr_models(files: Mapping[str, Path]) -> tuple[OfferedModel, ...]:
    """The models of the OCR example, in batches of one (its workload says why).

    Recognisers are checked with real lines: to the likeliest symbols, most noise is alike.
    """
    return tuple(
        OfferedModel(
            name=name,
            path=file,
            blocks=OCR_BLOCKS[name.partition(AT)[0]],
            max_batch=1,
            choices=SplitChoices(
                input_shapes={"x": SIZES[name]},
                samples=file.with_name(f"{name}.npz") if name in READERS else None,
            ),
        )
        for name, file in files.items()
    )


def ocr_workload(path: Path, *, rows: float, shares: Mapping[str, float]) -> Workload:
    """The workload of the OCR example, with so many lines on a page on average.

    Shares are of the sizes of its recogniser, by model.
    """
    workload = read_workload(path)
    (graph,) = workload.applications
    modules = tuple(
        module
        if module.max_rows == 1
        else replace(module, rows_per_request=rows * shares.get(module.model, 1.0))
        for module in graph.modules
    )
    return replace(workload, applications=(replace(graph, modules=modules),))


def example_application(splits: Sequence[SplitModel], *, rows: float, slo_us: int) -> Application:
    """Boxes of a picture, and what both classifiers say of each box."""
    inputs = {split.name: split.inputs[0].name for split in splits}
    outputs = {split.name: split.outputs[0].name for split in splits}

    def of_boxes(name: str, model: str, reads: Mapping[str, str]) -> Module:
        return Module(
            name=name, model=model, inputs=reads, rows_per_request=rows, max_rows=MOST_BOXES
        )

    classifiers = tuple(
        of_boxes(f"by_{name}", name, {inputs[name]: f"{CROP}.{CROPS}"}) for name in EXAMPLES
    )
    crop = {IMAGE: f"{REQUEST}.image", BOX: "detect.boxes"}
    return Application(
        name=APPLICATION,
        slo_us=slo_us,
        weight=1.0,
        modules=(
            Module(name="detect", model=DETECTOR, inputs={inputs[DETECTOR]: f"{REQUEST}.image"}),
            of_boxes(CROP, CROP, crop),
            *classifiers,
        ),
        outputs={name: f"detect.{name}" for name in ("boxes", "scores", "labels")}
        | {m.model: f"{m.name}.{outputs[m.model]}" for m in classifiers},
    )


def application_slo_us(graph: Application, profiles: Mapping[str, ModelProfile]) -> int:
    """10 times what the fast class takes for the longest path at batch 1."""
    times_us = {m.name: float(_fast_us(profiles[m.model])) for m in graph.modules}
    return max(round(APPLICATION_SLO_FACTOR * graph.longest(times_us)), SHORTEST_SLO_US)


def check_models_and_slos(paths: Sequence[Path], slos_ms: Sequence[float]) -> None:
    """Hold models and SLOs against each other.

    Raises:
        InputError: they do not go together.
    """
    if bool(paths) != bool(slos_ms):
        raise InputError("quickstart", "--model and --slo-ms go together")
    if len(slos_ms) not in {1, len(paths)}:
        raise InputError(
            "--slo-ms", f"{len(slos_ms)} for {len(paths)} models; give one for all, or one each"
        )


def own_models(
    paths: Sequence[Path],
    slos_ms: Sequence[float],
    sizes: Sequence[Sequence[SplitChoices]] = (),
    shares: Sequence[float] = (),
) -> tuple[OfferedModel, ...]:
    """A user's models under names that Triton accepts; one SLO is that of all of them.

    Sizes, where given, are those of each; shares are of its requests, equal where none is given.

    Raises:
        InputError: models and SLOs do not go together, or two models have one name.
    """
    check_models_and_slos(paths, slos_ms)
    found: dict[str, list[OfferedModel]] = {}
    slos = [*slos_ms] * (len(paths) // len(slos_ms))
    for path, slo_ms, chosen in zip(
        paths, slos, sizes or [[SplitChoices()]] * len(paths), strict=True
    ):
        if not slo_ms > 0:
            raise InputError("--slo-ms", f"{slo_ms} is not positive")
        name = re.sub(r"[^A-Za-z0-9_.-]", "_", path.stem).lstrip("_.-") or "model"
        if name in found:
            raise InputError(f"--model {path}", f"{found[name][0].path} is called {name!r} too")
        several = len(chosen) > 1
        given = shares if several and shares else [None] * len(chosen)
        found[name] = [
            OfferedModel(
                name=one.named(name),
                path=path,
                slo_us=ms_to_us(slo_ms),
                choices=one,
                size_of=name if several else None,
                share=share,
            )
            for one, share in zip(chosen, equal_or_given("--size-share", given), strict=True)
        ]
    return tuple(one for sizes_of_model in found.values() for one in sizes_of_model)


def example_classes(application: str | None = None) -> dict[str, OnnxRuntimeClass]:
    """The two CPU classes: the first and the last core this process may use."""
    cores = sorted(os.sched_getaffinity(0))
    by_fast, by_slow = OCR_STRETCHES if application == OCR else (FAST_STRETCH, SLOW_STRETCH)
    fast = DeviceClass(name=FAST, cores=(cores[0],), stretch=by_fast)
    slow = DeviceClass(name=SLOW, cores=(cores[-1],), stretch=by_slow)
    return {
        FAST: OnnxRuntimeClass(
            device=fast, parts=GpuClass(name=FAST, vgpu_divisors=(1, 2)).parts()
        ),
        SLOW: OnnxRuntimeClass(device=slow),
    }


def example_cluster(application: str | None = None) -> Cluster:
    """One node with two fast GPUs, two nodes with three slow ones each; more for `ocr`."""
    classes = example_classes(application)
    fast, slow = OCR_GPUS if application == OCR else GPUS
    return Cluster(
        name="quickstart",
        gpu_classes=tuple(
            GpuClass(name=name, vgpu_divisors=tuple(WHOLE_GPU // share for share, _ in c.parts))
            for name, c in classes.items()
        ),
        nodes=(
            NodeGroup(count=1, gpu_class=FAST, gpus=fast, nic_gbps=NIC_GBPS),
            NodeGroup(count=2, gpu_class=SLOW, gpus=slow, nic_gbps=NIC_GBPS),
        ),
    )


def with_slo(model: OfferedModel, profile: ModelProfile) -> OfferedModel:
    """The model with an SLO: its own, else 5 times the fast class's latency at batch 1."""
    if model.slo_us is not None:
        return model
    return replace(model, slo_us=max(SLO_FACTOR * _fast_us(profile), SHORTEST_SLO_US))


def _fast_us(profile: ModelProfile) -> int:
    fast = profile.table(FAST, WHOLE_GPU)
    if fast is None:
        raise InputError(f"profile of {profile.name!r}", f"not measured on class {FAST!r}")
    return int(fast.stage_latency_us((0, profile.blocks))[0])


def offered_share(plan: Plan, asked: float | None) -> float:
    """Load factor to offer: as asked, else half the plan or less, as much as goes well here."""
    if asked is not None:
        return asked
    share = APPLICATION_LOAD_FACTOR if plan.applications else LOAD_FACTOR
    planned_rps = sum(model.throughput_rps for model in served_models(plan))
    return min(share, MOST_RPS / planned_rps) if planned_rps > 0 else share


def workload_of(models: tuple[OfferedModel, ...]) -> Workload:
    """Equal weights of models; of sizes, by their shares."""
    return Workload(
        models=tuple(
            ModelDemand(
                name=m.name,
                slo_us=m.slo_us or SHORTEST_SLO_US,
                weight=m.share,
                size_of=m.size_of,
            )
            for m in models
        )
    )
