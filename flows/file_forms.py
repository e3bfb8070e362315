"""The forms of cluster.yaml and workload.yaml: fields, their types, and what they mean.

Here: pydantic models, from which the reference and the JSON schemas are made too, and the way from
a form to those inside it. Not here: reading files (`files`), and whether values make sense together
(the core types check that).
"""

from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args, get_origin

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError


def _no_truth_value(given: object) -> object:
    """The value itself; pydantic would take `true` for 1."""
    if isinstance(given, bool):
        raise PydanticCustomError("number", "Input should be a number")
    return given


_NUMBER = BeforeValidator(_no_truth_value)
Int = Annotated[int, _NUMBER]
Accuracy = Annotated[float, Field(ge=0, le=1), _NUMBER]
PositiveInt = Annotated[int, Field(gt=0), _NUMBER]
NonNegativeInt = Annotated[int, Field(ge=0), _NUMBER]
PositiveFloat = Annotated[float, Field(gt=0), _NUMBER]


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
    cores: list[Int] | None = Field(
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
        description="Card whose table of MIG profiles applies: A100-40GB, A100-80GB, H100-80GB, "
        "H200-141GB or B200-180GB.",
        examples=["A100-40GB"],
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
        description="Equal parts a GPU may be cut into: 1 whole, 2 halves, up to 4. [1] by "
        "default.",
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
    taken_gib: PositiveFloat | None = Field(
        default=None,
        description="Memory of each GPU that models beside the plan (`serve --beside`) hold, "
        "in GiB; 0 by default.",
        examples=[8],
    )
    process_memory_gib: PositiveFloat | None = Field(
        default=None,
        description="Memory that each worker process takes beside its stage, in GiB "
        "(CUDA context, libraries).",
        examples=[0.5],
    )
    load_gib_per_s: PositiveFloat | None = Field(
        default=None,
        description="GiB of weights that are loaded per second. Planned with `--on-demand`, models "
        "may then be loaded when they are asked for.",
        examples=[6],
    )
    load_ms: PositiveFloat | None = Field(
        default=None,
        description="Time that each such load takes beside its bytes, in ms; 0 by default.",
        examples=[40],
    )
    hourly_cost: PositiveFloat | None = Field(
        default=None,
        description="Price of one GPU for one hour, in any currency. "
        "`--objective cost` needs it for every class.",
        examples=[0.71],
    )
    power_w: PositiveFloat | None = Field(
        default=None,
        description="Watts that one GPU in use draws under load, as you state them. "
        "`--objective power` needs it for every class.",
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
        description="CUDA's uuids or numbers of the GPUs (or MIG slices) of a single node, in "
        "order; 0, 1, … by default.",
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


class SizeForm(FileForm):
    """One entry of a model's `sizes`: shapes that clients may send under the model's name."""

    input_shapes: dict[str, str | PositiveInt] = Field(
        min_length=1,
        description="Input -> its sizes without the batch; the same inputs in every entry.",
        examples=[{"x": "3x48x320"}],
    )
    share: PositiveFloat | None = Field(
        default=None,
        description="Share of the model's requests; all add up to 1; equal by default.",
        examples=[0.7],
    )


class VariantForm(FileForm):
    """One entry of a model's `variants`: another model that may answer in its place."""

    name: str = Field(
        description="Name of a model as `split --name` stored it, of the same tensors.",
        examples=["net-int8"],
    )
    accuracy: Accuracy = Field(
        description="Accuracy of its answers, as you measured it.", examples=[0.752]
    )
    share: PositiveFloat | None = Field(
        default=None,
        description="Share of the requests that it is planned for, where planners give each GPUs "
        "of its own; `subclusters` decides it.",
        examples=[0.2],
    )


class VersionForm(FileForm):
    """One entry of a model's `versions`: a model that clients choose by its number."""

    version: PositiveInt = Field(description="Number in the requests of clients.", examples=[2])
    name: str = Field(
        description="Name of a model as `split --name` stored it, of the same tensors.",
        examples=["net-2026"],
    )
    share: PositiveFloat | None = Field(
        default=None,
        description="Share of the requests that it is planned for; all add up to 1; equal by "
        "default.",
        examples=[0.8],
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
    sizes: list[SizeForm] | None = Field(
        default=None,
        min_length=1,
        description="Sizes of the model under its name; one, where others are to follow. Each is "
        "planned as a model of its own, `NAME@SHAPE`.",
        examples=[
            [
                {"input_shapes": {"x": "3x48x320"}, "share": 0.7},
                {"input_shapes": {"x": "3x48x640"}, "share": 0.3},
            ]
        ],
    )
    size_of: str | None = Field(
        default=None,
        description="Name that clients ask for, where this is one of several sizes or versions, "
        "or a variant: listed apart for rates of its own.",
        examples=["reader"],
    )
    accuracy: Accuracy | None = Field(
        default=None,
        description="Accuracy of its answers, as you measured it; needed with variants.",
        examples=[0.761],
    )
    variants: list[VariantForm] | None = Field(
        default=None,
        min_length=1,
        description="Models that answer for its name too: the cheaper, the more requests come.",
        examples=[[{"name": "net-int8", "accuracy": 0.752}]],
    )
    version: PositiveInt | None = Field(
        default=None,
        description="With `size_of`: the number by which clients choose it.",
        examples=[2],
    )
    versions: list[VersionForm] | None = Field(
        default=None,
        min_length=1,
        description="Models that clients choose by number; without one the highest answers.",
        examples=[[{"version": 1, "name": "net-2025"}, {"version": 2, "name": "net-2026"}]],
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
    model: str | None = Field(
        default=None,
        description="With before or after: the model between them. `name`, which clients ask "
        "for, must differ.",
        examples=["net"],
    )
    before: str | None = Field(
        default=None,
        description="A step that runs before the model, on what clients send.",
        examples=["decode"],
    )
    after: str | None = Field(
        default=None,
        description="A step that runs after the model, on what it gives.",
        examples=["label"],
    )
    outputs: dict[str, str] | None = Field(
        default=None,
        description="With before or after: tensor of the answer -> `before.TENSOR`, "
        "`model.TENSOR` or `after.TENSOR`.",
        examples=[{"scores": "model.scores"}],
    )
    entries: list[EntryForm] | None = Field(
        default=None,
        min_length=1,
        description="Blocks at which requests come in. If listed, they are all of the demand.",
        examples=[[{"name": "tails", "block": 4, "budget_ms": 120, "rate_rps": 90}]],
    )


class StepForm(FileForm):
    """One entry of `steps`.

    A Python function that modules, `before` and `after` name as a model.
    """

    name: str = Field(description="Name of the step, as a model's.", examples=["decode"])
    python: str = Field(
        description="The function, `package.module:function`. Its inputs are its arguments "
        "by name.",
        examples=["shop_steps.pictures:decode"],
    )
    package: str = Field(
        description="Its package: a folder (with a slash) or `.py` file beside this file, which is "
        "copied; or an installed package's name.",
        examples=["steps/shop_steps"],
    )
    inputs: dict[str, str] = Field(
        min_length=1,
        description="Input -> datatype and sizes without the batch, or `BYTES`.",
        examples=[{"image": "BYTES"}],
    )
    outputs: dict[str, str] = Field(
        min_length=1,
        description="Output -> the same. Beside `NAME_rows` (INT64) or `rows`, rows of NAME vary "
        "in number; beside `NAME_shape` (INT64), in shape.",
        examples=[{"pixels": "FP32 3x224x224"}],
    )
    max_bytes: dict[str, PositiveInt] | None = Field(
        default=None,
        description="Tensor of BYTES -> its longest text. Slots have room for it; a longer one is "
        "refused.",
        examples=[{"image": 4_000_000}],
    )
    arguments: dict[str, bool | int | float | str] | None = Field(
        default=None,
        description="More arguments of the function, by name.",
        examples=[{"height": 224, "width": 224}],
    )
    samples: Path | None = Field(
        default=None,
        description="Inputs for checks and profiling: an .npz file, or for one BYTES input a "
        "folder of files. Required with BYTES.",
        examples=["pictures"],
    )
    max_batch: PositiveInt | None = Field(
        default=None, description="Largest batch; 8 by default.", examples=[4]
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
    sizes: list[SizeForm] | None = Field(
        default=None,
        min_length=1,
        description="Sizes of its model, with their shares of its rows. The module that gives the "
        "input says each row's by an output `NAME_shape`.",
        examples=[
            [
                {"input_shapes": {"x": "3x48x320"}, "share": 0.7},
                {"input_shapes": {"x": "3x48x640"}, "share": 0.3},
            ]
        ],
    )
    size_of: str | None = Field(
        default=None,
        description="Name by which others read it, where it is one of several sizes listed apart.",
        examples=["reader"],
    )
    size_by: str | None = Field(
        default=None,
        description="With `size_of`: `MODULE.TENSOR` whose rows choose among the sizes.",
        examples=["lines.line"],
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
        description="DAGs of models behind one endpoint, each with one SLO.",
        examples=[
            [{"name": "app", "slo_ms": 400, "modules": [{"name": "detect", "model": "net"}]}]
        ],
    )
    steps: list[StepForm] | None = Field(
        default=None,
        min_length=1,
        description="Python functions that serve as models. `poolpipe steps` prepares them.",
        examples=[
            [
                {
                    "name": "decode",
                    "python": "pictures:decode",
                    "package": "pictures.py",
                    "inputs": {"image": "BYTES"},
                    "max_bytes": {"image": 4_000_000},
                    "outputs": {"pixels": "FP32 3x224x224"},
                    "samples": "photos",
                }
            ]
        ],
    )


def inner_kind(kind: Any, part: int | str) -> Any:
    """The type of an item, a value or a field of a type; None where it has none of that name."""
    if get_origin(kind) is (list if isinstance(part, int) else dict):
        return get_args(kind)[-1]
    if isinstance(kind, type) and issubclass(kind, FileForm):
        field = kind.model_fields.get(str(part))
        return None if field is None else field.annotation
    if Tag(str(part)) in getattr(kind, "__metadata__", ()):
        return kind
    inner = (inner_kind(one, part) for one in get_args(kind))
    return next((one for one in inner if one is not None), None)


def form_in(kind: Any) -> type[FileForm] | None:
    """The form that a type is, or that it allows."""
    if isinstance(kind, type):
        return kind if issubclass(kind, FileForm) else None
    return next((form for form in map(form_in, get_args(kind)) if form is not None), None)
