"""Files that users write and read: cluster.yaml, workload.yaml, plan.json.

Here: their form (pydantic models), text to core types, and one-line complaints that name file,
field and reason. Not here: whether the values make sense together (the core types check that).
"""

import json
import os
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal, Self, TypeVar, get_args, get_origin

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Tag,
    ValidationError,
    model_validator,
)
from pydantic_core import CoreSchema

from flows.device_class import DeviceClass
from triton_backend.contract.cluster import Cluster
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.contract.workload import Workload

Form = TypeVar("Form", bound="FileForm")
Made = TypeVar("Made")
Source = TypeVar("Source")


class FileForm(BaseModel):
    """Base of every form: an unknown field is an error, so that typing mistakes show."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class RuntimeForm(FileForm):
    """Runs a GPU class in onnxruntime, on CPU cores (`provider: cpu`) or on a GPU.

    `provider: cuda` is for cards that TensorRT does not support.
    """

    kind: Literal["onnxruntime"] = Field(
        default="onnxruntime", description="Runtime of the class.", examples=["onnxruntime"]
    )
    provider: Literal["cpu", "cuda"] = Field(
        default="cpu", description="CPU cores stand for the GPU, or a real GPU.", examples=["cuda"]
    )
    cores: list[int] | None = Field(
        default=None,
        min_length=1,
        description="CPU cores that stand for the GPUs of the class. Required with provider cpu.",
        examples=[[0, 1]],
    )
    threads: PositiveInt | None = Field(
        default=None,
        description="onnxruntime threads per stage; 1 by default. Provider cpu only.",
        examples=[2],
    )
    stretch: PositiveFloat | None = Field(
        default=None,
        description="Every run takes this many times as long as the CPU takes; 1 by default.",
        examples=[4],
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        on_cpu = [n for n in ("cores", "threads", "stretch") if getattr(self, n) is not None]
        if self.provider == "cuda" and on_cpu:
            raise ValueError(f"{on_cpu[0]} is of provider cpu alone")
        if self.provider == "cpu" and self.cores is None:
            raise ValueError("cores is missing")
        return self


class PercentsForm(FileForm):
    """Percents from `least` to 100 in equal steps."""

    step: PositiveInt = Field(description="Distance of two sizes, in percent.", examples=[10])
    least: PositiveInt | None = Field(
        default=None, description="Smallest size, in percent; `step` by default.", examples=[20]
    )


def _percents_form(given: object) -> str:
    return "steps" if isinstance(given, dict | PercentsForm) else "list"


# Distinguished before they are read, so that a complaint is about the form that was meant.
Percents = Annotated[
    Annotated[list[PositiveInt], Tag("list")] | Annotated[PercentsForm, Tag("steps")],
    Discriminator(_percents_form),
]


class MigForm(FileForm):
    """How MIG divides the cards of a class into slices."""

    card: str = Field(
        description="Card whose table of MIG profiles applies.", examples=["A100-40GB"]
    )
    profiles: list[str] | None = Field(
        default=None,
        min_length=1,
        description="Slices that the planner may use; all of the card by default.",
        examples=[["1g.5gb", "3g.20gb"]],
    )
    processes: PositiveInt | None = Field(
        default=None,
        description="Most processes (vGPUs) in one slice, by MPS: 1 to 4; 1 by default.",
        examples=[2],
    )


class GpuClassForm(FileForm):
    """One entry of `gpu_classes`; an empty one means whole GPUs run by TensorRT."""

    vgpu_divisors: list[PositiveInt] | None = Field(
        default=None,
        min_length=1,
        description="Equal parts a GPU may be cut into: 1 whole, 2 halves, up to 4. [1] by default.",
        examples=[[1, 2, 4]],
    )
    vgpu_percents: Percents | None = Field(
        default=None,
        description="Sizes of unequal parts in percent of a GPU: a list, or `{step, least}`. "
        "Excludes vgpu_divisors.",
        examples=[[20, 40, 60, 80, 100]],
    )
    max_vgpus_per_gpu: PositiveInt | None = Field(
        default=None,
        description="Most parts on one GPU. By default the largest divisor, or 2 with percents.",
        examples=[2],
    )
    partitions: list[list[PositiveInt | str]] | None = Field(
        default=None,
        description="The only ways to cut a GPU: lists of percents, or of MIG profiles. "
        "Any by default.",
        examples=[[[100], [60, 40]]],
    )
    mig: MigForm | None = Field(
        default=None,
        description="Cards are divided by MIG, in place of divisors or percents.",
        examples=[{"card": "A100-40GB"}],
    )
    memory_gib: PositiveFloat | None = Field(
        default=None,
        description="Memory of one GPU in GiB. Plans are not limited by memory without it.",
        examples=[24],
    )
    process_memory_gib: PositiveFloat | None = Field(
        default=None,
        description="Memory that each worker process takes beside its stage, in GiB "
        "(CUDA context, libraries).",
        examples=[0.5],
    )
    hourly_cost: PositiveFloat | None = Field(
        default=None,
        description="Price of one GPU for one hour, in any currency. "
        "`--objective cost` needs it for every class.",
        examples=[0.71],
    )
    power_w: PositiveFloat | None = Field(
        default=None,
        description="Power of one GPU in watts. `--objective power` needs it for every class.",
        examples=[72],
    )
    runtime: RuntimeForm | None = Field(
        default=None,
        description="onnxruntime in place of TensorRT: CPU cores that stand for a GPU, "
        "or an old card.",
        examples=[{"cores": [0], "stretch": 4}],
    )


class NodeGroupForm(FileForm):
    """One entry of `nodes`: equal machines."""

    count: PositiveInt = Field(description="Number of equal nodes.", examples=[2])
    gpu_class: str = Field(description="Name of an entry of gpu_classes.", examples=["L4"])
    gpus: PositiveInt = Field(description="GPUs of each node.", examples=[4])
    nic_gbps: PositiveFloat = Field(
        description="Rate of each node's network link, per direction, in Gbit/s.", examples=[10]
    )
    host: str | None = Field(
        default=None,
        description="Address of the host that runs the nodes, if it is not the gateway's.",
        examples=["10.0.0.2"],
    )
    name: str | None = Field(
        default=None,
        description="Name of the nodes in plans and options; that of the class by default.",
        examples=["edge"],
    )
    devices: list[str] | None = Field(
        default=None,
        description="CUDA uuids of the GPUs (or MIG slices) of a single node, in order; "
        "numbers by default.",
        examples=[["GPU-8f6a7c5e-0000-0000-0000-000000000000"]],
    )


class ClusterForm(FileForm):
    """cluster.yaml: GPU classes and nodes."""

    name: str | None = Field(
        default=None,
        description="Name of the cluster; that of the file by default.",
        examples=["lab"],
    )
    gpu_classes: dict[str, GpuClassForm | None] = Field(
        min_length=1,
        description="Kinds of GPU, by a name of your choice.",
        examples=[{"L4": {"vgpu_divisors": [1, 2]}, "P4": None}],
    )
    nodes: list[NodeGroupForm] = Field(
        min_length=1,
        description="Machines, in groups of equal ones.",
        examples=[[{"count": 2, "gpu_class": "L4", "gpus": 4, "nic_gbps": 10}]],
    )


class EntryForm(FileForm):
    """One entry of a model's `entries`: requests that start at a block within the model."""

    name: str = Field(
        description="Name of the entry, distinct within the model.", examples=["tails"]
    )
    block: NonNegativeInt = Field(
        description="First block that runs here; the client runs those before it.", examples=[4]
    )
    budget_ms: PositiveFloat = Field(
        description="Time from arrival here to the answer, in ms.", examples=[120]
    )
    rate_rps: PositiveFloat = Field(description="Rate to plan for, in requests/s.", examples=[90])
    clients: PositiveInt | None = Field(
        default=None,
        description="Number of clients that send them, for information.",
        examples=[20],
    )
    dtype: str | None = Field(
        default=None,
        description="Datatype in which tensors are sent; the model's own by default.",
        examples=["FP16"],
    )


class ModelDemandForm(FileForm):
    """One entry of `models`."""

    name: str = Field(description="Name of a model as `split --name` stored it.", examples=["net"])
    slo_ms: PositiveFloat = Field(
        description="Latency objective from arrival to answer, in ms.", examples=[200]
    )
    weight: PositiveFloat | None = Field(
        default=None,
        description="Share of the rate when throughput is maximised: models get rates in "
        "proportion; 1 by default.",
        examples=[2],
    )
    rate_rps: PositiveFloat | None = Field(
        default=None,
        description="Rate to plan for, in requests/s. Used by the objectives cost, power, gpus "
        "and share.",
        examples=[40],
    )
    batch_building_rate_rps: PositiveFloat | None = Field(
        default=None,
        description="Rate at which batches are assumed to fill while planning; "
        "estimated by default.",
        examples=[40],
    )
    input_shapes: dict[str, str | PositiveInt] | None = Field(
        default=None,
        description="Input -> its sizes without the batch, where the ONNX file leaves them open.",
        examples=[{"images": "3x320x320"}],
    )
    input_ranges: dict[str, str] | None = Field(
        default=None,
        description="Input -> `LOW..HIGH`, both included: values that checks draw.",
        examples=[{"bytes": "0..256"}],
    )
    samples: Path | None = Field(
        default=None,
        description="An .npz file, or a folder of such, with inputs for the checks; "
        "relative to this file.",
        examples=["samples.npz"],
    )
    entries: list[EntryForm] | None = Field(
        default=None,
        min_length=1,
        description="Blocks at which requests come in. If listed, they are all of the demand.",
        examples=[[{"name": "tails", "block": 4, "budget_ms": 120, "rate_rps": 90}]],
    )


class ModuleForm(FileForm):
    """One entry of an application's `modules`: a model that runs for every request."""

    name: str = Field(description="Name of the module, without a dot.", examples=["cars"])
    model: str = Field(description="Model that it runs.", examples=["carnet"])
    after: list[str] | None = Field(
        default=None,
        description="Modules that must end first; those that `inputs` read by default.",
        examples=[["detect"]],
    )
    rows_per_request: PositiveFloat = Field(
        default=1.0,
        description="Rows (samples) per client request, on average.",
        examples=[2.4],
    )
    max_rows: PositiveInt | None = Field(
        default=None,
        description="Most rows of one request; more are left out. "
        "Required if rows_per_request is not 1.",
        examples=[16],
    )
    max_rows_given: PositiveInt | None = Field(
        default=None,
        description="Most rows that one sample produces, if only the answer reads them "
        "(a detector alone).",
        examples=[100],
    )
    optional: bool = Field(
        default=False,
        description="The request is answered without this module if it is too late.",
        examples=[True],
    )
    inputs: dict[str, str] | None = Field(
        default=None,
        description="Tensor of the model -> `request.TENSOR` or `MODULE.TENSOR`.",
        examples=[{"image": "detect.crops"}],
    )
    batch_building_rate_rps: PositiveFloat | None = Field(
        default=None,
        description="Rate, in rows/s, at which its batches are assumed to fill while planning.",
        examples=[96],
    )


class ApplicationForm(FileForm):
    """One entry of `applications`: a DAG of models behind one endpoint with one SLO."""

    name: str = Field(
        description="Name of the endpoint; no model of the workload may share it.",
        examples=["traffic"],
    )
    slo_ms: PositiveFloat = Field(
        description="Latency objective of the whole request, in ms.", examples=[400]
    )
    rate_rps: PositiveFloat | None = Field(
        default=None, description="Rate to plan for, in requests/s.", examples=[50]
    )
    weight: PositiveFloat | None = Field(
        default=None, description="Share of the rate when throughput is maximised.", examples=[1]
    )
    modules: list[ModuleForm] = Field(
        min_length=1,
        description="The nodes of the DAG.",
        examples=[[{"name": "detect", "model": "detector"}]],
    )
    outputs: dict[str, str] | None = Field(
        default=None,
        description="Tensor of the answer -> `MODULE.TENSOR`.",
        examples=[{"labels": "cars.labels"}],
    )


class _CheckedByContract:
    """Gives a field the JSON schema of `form`, and leaves the checks to the core types.

    Their complaints name application, module and field.
    """

    def __init__(self, form: type[FileForm]) -> None:
        self._form = form

    def __get_pydantic_json_schema__(self, _: CoreSchema, handler: Any) -> dict[str, Any]:
        return handler(self._form.__pydantic_core_schema__)


class WorkloadForm(FileForm):
    """workload.yaml: models and applications with their latency objectives."""

    models: list[ModelDemandForm] | None = Field(
        default=None,
        min_length=1,
        description="Models that clients call directly.",
        examples=[[{"name": "net", "slo_ms": 200}]],
    )
    applications: list[Annotated[Any, _CheckedByContract(ApplicationForm)]] | None = Field(
        default=None,
        description="DAGs of models behind one endpoint. Not together with entries.",
        examples=[
            [{"name": "app", "slo_ms": 400, "modules": [{"name": "detect", "model": "net"}]}]
        ],
    )


GIVEN_INPUTS = ("input_shapes", "input_ranges", "samples")


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenInputs:
    """What a user says of a model's inputs, as texts.

    Attributes:
        shapes: `NAME=3x320x320`, without the batch.
        ranges: `NAME=LOW..HIGH`, both included.
        samples: an `.npz` file or a folder of such.
    """

    shapes: tuple[str, ...] = ()
    ranges: tuple[str, ...] = ()
    samples: Path | None = None


def read_cluster(path: Path) -> Cluster:
    """The cluster of a cluster.yaml; how its classes are run is `read_device_classes`'s.

    Raises:
        InputError: the file cannot be read or used, with field and reason.
    """
    form = _read_form(path, ClusterForm)
    data = {
        "name": form.name or path.stem,
        "gpu_classes": {
            name: {}
            if fields is None
            else fields.model_dump(exclude_none=True, exclude={"runtime"})
            for name, fields in form.gpu_classes.items()
        },
        "nodes": [group.model_dump(exclude_none=True) for group in form.nodes],
    }
    return _made(path, Cluster.from_dict, data)


def read_device_classes(path: Path) -> dict[str, DeviceClass]:
    """Classes of a cluster.yaml that onnxruntime runs: those that state a `runtime`, by name.

    Raises:
        InputError: the file cannot be read, or this machine lacks the cores named.
    """
    form = _read_form(path, ClusterForm)
    return {
        name: _made(path, _device_class, (name, fields.runtime))
        for name, fields in form.gpu_classes.items()
        if fields is not None and fields.runtime is not None
    }


def _device_class(named: tuple[str, RuntimeForm]) -> DeviceClass:
    name, runtime = named
    if runtime.provider == "cuda":
        return DeviceClass(name=name, provider=runtime.provider)
    return DeviceClass(
        name=name,
        cores=tuple(runtime.cores or ()),
        threads=runtime.threads or 1,
        stretch=1.0 if runtime.stretch is None else runtime.stretch,
    )


def read_workload(path: Path) -> Workload:
    """The workload of a workload.yaml.

    Raises:
        InputError: the file cannot be read or used, with field and reason.
    """
    form = _read_form(path, WorkloadForm)
    apart: Any = {"models": {"__all__": set(GIVEN_INPUTS)}}
    return _made(path, Workload.from_dict, form.model_dump(exclude_none=True, exclude=apart))


def read_given_inputs(path: Path) -> dict[str, GivenInputs]:
    """What a workload.yaml says of the inputs of its models, by model.

    Raises:
        InputError: the file cannot be read or used, with field and reason.
    """
    form = _read_form(path, WorkloadForm)
    return {
        model.name: GivenInputs(
            shapes=tuple(f"{name}={sizes}" for name, sizes in (model.input_shapes or {}).items()),
            ranges=tuple(f"{name}={limits}" for name, limits in (model.input_ranges or {}).items()),
            samples=model.samples and path.parent / model.samples,
        )
        for model in form.models or ()
    }


def read_plan(path: Path) -> Plan:
    """The plan of a plan.json.

    Raises:
        InputError: the file cannot be read or is not a plan, with the field.
    """
    try:
        data = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise InputError(str(path), f"not JSON: {error}") from error
    if not isinstance(data, dict):
        raise InputError(str(path), "not a plan: the file holds no object")
    return _made(path, Plan.from_dict, data)


def write_plan(path: Path, plan: Plan) -> None:
    """Write a plan.json.

    Raises:
        InputError: the file cannot be written.
    """
    write_text(path, json.dumps(plan.to_dict(), indent=1) + "\n")


def check_writable(path: Path | None, *, makes_folders: bool = False) -> None:
    """Refuse a file that could not be written after a long run; None is none.

    Raises:
        InputError: it is a folder, or its own folder is not there (and is not made) or takes no
            files.
    """
    if path is None:
        return
    if path.is_dir():
        raise InputError(str(path), "cannot be written: Is a directory")
    folder = path.parent
    while makes_folders and not folder.exists():
        folder = folder.parent
    if not folder.is_dir():
        raise InputError(str(path), f"cannot be written: there is no folder {folder}")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise InputError(str(path), "cannot be written: Permission denied")


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all: what was there before stays until the new one is complete.

    Raises:
        InputError: the file cannot be written.
    """
    target = path.resolve()
    try:
        if target.exists() and not target.is_file():
            target.write_text(text, encoding="utf-8")  # a pipe or a device; a folder refuses
            return
        with TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as scratch:
            unfinished = Path(scratch) / target.name
            unfinished.write_text(text, encoding="utf-8")
            if target.exists():
                unfinished.chmod(target.stat().st_mode & 0o777)
            unfinished.replace(target)
    except OSError as error:
        raise InputError(str(path), f"cannot be written: {error.strerror}") from error


def _made(path: Path, make: Callable[[Source], Made], data: Source) -> Made:
    """What the core makes of the data; its complaints name the file."""
    try:
        return make(data)
    except InputError as error:
        raise InputError(str(path), str(error)) from error


def read_yaml(path: Path) -> Any:
    """What a YAML file holds.

    Raises:
        InputError: the file cannot be read, or is not YAML, with the line.
    """
    try:
        return yaml.load(read_text(path), Loader=_Loader)  # noqa: S506 - a SafeLoader, see below
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = str(path) if mark is None else f"{path}, line {mark.line + 1}"
        raise InputError(where, f"not YAML: {error.problem}") from error
    except yaml.YAMLError as error:
        raise InputError(str(path), f"not YAML: {' '.join(str(error).split())}") from error


def _read_form(path: Path, form: type[Form]) -> Form:
    data = read_yaml(path)
    try:
        return form.model_validate(data)
    except ValidationError as error:
        raise _complaint(path, form, error) from error


def _complaint(path: Path, form: type[FileForm], error: ValidationError) -> InputError:
    """The first error in one line, `file, nodes[0].gpus: reason`, and the second where there are two.

    What is missing is often there under a name that nobody knows.
    """
    first, *more = (_fault(form, one) for one in error.errors(include_url=False))
    field, reason = first
    if len(more) == 1:
        reason += f" (and {': '.join(filter(None, more[0]))})"
    elif more:
        reason += f" (and {len(more)} more)"
    return InputError(f"{path}, {field}" if field else str(path), reason)


def _fault(form: type[FileForm], error: Mapping[str, Any]) -> tuple[str, str]:
    """Field and reason of one error."""
    loc: tuple[int | str, ...] = error["loc"]
    field = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in loc).lstrip(".")
    reason = " ".join(str(error["msg"]).split())
    if error["type"] == "missing":
        reason = "is missing"
    elif error["type"] == "extra_forbidden":
        near = get_close_matches(str(loc[-1]), _fields_at(form, loc[:-1]), n=1)
        reason = "no such field" + (f"; did you mean {near[0]}?" if near else "")
    elif not isinstance(error["input"], (dict, list)):
        reason = f"{reason}, not {error['input']!r}"
    return field, reason


def _fields_at(form: type[FileForm], loc: tuple[int | str, ...]) -> list[str]:
    """Fields of the form that a place in a file has; none where it is no form's."""
    kind: Any = form
    for part in loc:
        kind = _inner(kind, part)
    found = _form_in(kind)
    return [] if found is None else list(found.model_fields)


def _inner(kind: Any, part: int | str) -> Any:
    """The type of an item, a value or a field of a type; None where it has none of that name."""
    if get_origin(kind) is (list if isinstance(part, int) else dict):
        return get_args(kind)[-1]
    if isinstance(kind, type) and issubclass(kind, FileForm):
        field = kind.model_fields.get(str(part))
        return None if field is None else field.annotation
    if Tag(str(part)) in getattr(kind, "__metadata__", ()):
        return kind
    inner = (_inner(one, part) for one in get_args(kind))
    return next((one for one in inner if one is not None), None)


def _form_in(kind: Any) -> type[FileForm] | None:
    """The form that a type is, or that it allows."""
    if isinstance(kind, type):
        return kind if issubclass(kind, FileForm) else None
    return next((form for form in map(_form_in, get_args(kind)) if form is not None), None)


def read_text(path: Path) -> str:
    """The text of a file.

    Raises:
        InputError: there is none, or it cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise InputError(str(path), "no such file") from error
    except OSError as error:
        raise InputError(str(path), f"cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(str(path), "is not a text file") from error


class _Loader(yaml.SafeLoader):
    """Safe YAML that refuses a key given twice, which the plain loader settles silently."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:  # noqa: FBT001, FBT002 - the base class's signature
        seen: set[object] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key!r} is given twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)
