"""Every field of `plan.json` with type, description and example, for reference and editors.

Here: the table, object by object, from what the types say of their fields, and which fields of a
file it lacks. The fields of `cluster` and `workload` are those of the files of that name
(`file_forms`). Not here: reading and writing (`plan`).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from flows.file_forms import ClusterForm, FileForm, WorkloadForm, form_in, inner_kind
from triton_backend.contract.entries import Entry
from triton_backend.contract.fields import FieldForm, form_fields
from triton_backend.contract.plan import (
    Attained,
    ModelPlan,
    Objective,
    Pipeline,
    Plan,
    Pool,
    PoolInterference,
    SeatInterference,
    Stage,
    StageMemory,
)
from triton_backend.contract.tensors import EXAMPLE, TensorSpec


def _optional(name: str, kind: str, about: str, example: Any) -> FieldForm:
    return FieldForm(name, kind, about, example, required=False)


OBJECTS: Mapping[str, tuple[FieldForm, ...]] = {
    "plan": (FieldForm("format", "integer", "Version of this form.", 2), *form_fields(Plan)),
    "objective": form_fields(Objective),
    "attained": form_fields(Attained),
    "pool": form_fields(Pool),
    "placement": (
        FieldForm("node", "text", "Name of the (first) node.", "L4-0"),
        FieldForm("gpu", "integer", "Number of the (first) GPU on the node.", 0),
        FieldForm("slot", "integer", "Number of the (first) part of the GPU.", 1),
        _optional("nodes", "integer", "Nodes of the block; 1 by default.", 8),
        _optional("gpus", "integer", "GPUs per node of the block; 1 by default.", 4),
        _optional("slots", "integer", "Parts per GPU of the block; 1 by default.", 2),
    ),
    "interference": form_fields(PoolInterference),
    "seat": form_fields(SeatInterference),
    "model": form_fields(ModelPlan),
    "entry": form_fields(Entry),
    "pipeline": form_fields(Pipeline),
    "stage": form_fields(Stage),
    "memory": form_fields(StageMemory),
    "tensor": form_fields(TensorSpec),
    "application": (
        FieldForm("name", "text", "Name of the application.", "traffic"),
        FieldForm("slo_us", "integer", "Latency objective in µs.", 400000),
        FieldForm("rate_rps", "number", "Planned rate, in requests/s.", 50),
        _optional("least_latency_us", "integer", "No plan could promise less, in µs.", 88000),
        _optional("inputs", "tensor[]", "Tensors of a request.", [EXAMPLE]),
        _optional("outputs", "table", "Tensor of the answer -> MODULE.TENSOR.", {"y": "cars.y"}),
        FieldForm("modules", "module[]", "Its modules.", []),
    ),
    "module": (
        FieldForm("name", "text", "Name of the module.", "cars"),
        FieldForm("model", "text", "Model that it runs.", "carnet"),
        _optional("after", "texts", "Modules that must end first.", ["detect"]),
        _optional("rows_per_request", "number", "Rows per request, on average.", 2.4),
        _optional("max_rows", "integer", "Most rows of one request.", 16),
        _optional("max_rows_given", "integer", "Most rows that one sample produces.", 100),
        _optional("size_of", "text", "Name of the module of which it runs one size.", "reader"),
        _optional("size_by", "text", "MODULE.TENSOR whose rows choose the size.", "lines.line"),
        _optional(
            "optional", "flag", "The request is answered without it if it is late.", example=True
        ),
        _optional("bindings", "table", "Tensor of the model -> its source.", {"x": "request.x"}),
        FieldForm(
            "budget_us", "integer", "Time that it may take, waiting included, in µs.", 150000
        ),
        _optional("tail_us", "integer", "Largest sum of budgets after it, in µs.", 0),
    ),
}

FORMS: Mapping[str, type[FileForm]] = {"cluster": ClusterForm, "workload": WorkloadForm}


class Unknown(NamedTuple):
    """A field that no object of its kind has: its path in the file, and the fields that are."""

    path: str
    known: tuple[str, ...]


def unknown_fields(data: Mapping[str, Any]) -> Iterator[Unknown]:
    """The fields of a plan of this format that the table lacks; values of any type are walked."""
    yield from _unknown_in("plan", data, "")


def _unknown_in(kind: str, data: Mapping[str, Any], path: str) -> Iterator[Unknown]:
    fields = {field.key: field for field in OBJECTS[kind]}
    for name, value in data.items():
        at = f"{path}.{name}" if path else str(name)
        if name not in fields:
            yield Unknown(at, tuple(fields))
            continue
        inner = fields[name].kind.removesuffix("[]")
        if inner in FORMS:
            yield from _unknown_in_form(FORMS[inner], value, at)
        if inner not in OBJECTS:
            continue
        several = isinstance(value, Sequence)
        for number, one in enumerate(value if several else [value]):
            if isinstance(one, Mapping):
                yield from _unknown_in(inner, one, f"{at}[{number}]" if several else at)


def _unknown_in_form(kind: Any, value: Any, path: str) -> Iterator[Unknown]:
    """Of a value whose type is a form, or allows one; what no form describes is not walked."""
    if isinstance(value, Mapping):
        for name, one in value.items():
            at = f"{path}.{name}"
            inner = inner_kind(kind, str(name))
            if inner is not None:
                yield from _unknown_in_form(inner, one, at)
            elif (form := form_in(kind)) is not None:
                yield Unknown(at, tuple(form.model_fields))
    elif isinstance(value, list):
        for number, one in enumerate(value):
            yield from _unknown_in_form(inner_kind(kind, number), one, f"{path}[{number}]")
