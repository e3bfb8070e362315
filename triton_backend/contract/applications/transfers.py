"""Bytes that rows of modules bring from the modules before them, as bindings and tensors say.

A binding `module.tensor` names the tensor that moves; an edge without one moves no bytes that a
plan would know of. What comes from the client, and what goes back, is not counted, as for models.
Models are lines here: of several modules that name one, the one that brings most counts.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from triton_backend.contract.applications.application import Application
from triton_backend.contract.applications.module import REQUEST, Module
from triton_backend.contract.tensors import TensorSpec

TensorsOf = Callable[[str], Sequence[TensorSpec]]
"""Inputs of a model by its name; empty where they are not known."""


def brought_bytes(module: Module, inputs: Sequence[TensorSpec]) -> dict[str, int]:
    """By the name of a module that it reads (of sizes, that of all), bytes of one row."""
    size = {spec.name: spec.bytes_per_sample for spec in inputs}
    brought: dict[str, int] = {}
    for tensor, source in module.inputs.items():
        producer = source.partition(".")[0]
        if producer != REQUEST:
            brought[producer] = brought.get(producer, 0) + size.get(tensor, 0)
    return brought


def received_bytes(
    applications: Iterable[Application], model: str, inputs: Sequence[TensorSpec]
) -> int:
    """The most bytes that one row of a model brings from modules before it."""
    return max(
        (
            sum(brought_bytes(module, inputs).values())
            for application in applications
            for module in application.modules
            if module.model == model
        ),
        default=0,
    )


def sent_bytes(
    applications: Iterable[Application],
    model: str,
    inputs_of: TensorsOf,
    rates_rps: Mapping[str, float],
) -> float:
    """Mean bytes that modules after it fetch per row of a model that applications run.

    Args:
        applications: all of a workload or plan.
        model: the model.
        inputs_of: inputs of every model.
        rates_rps: client requests/s by application; only their ratios count.
    """
    sent = rows = 0.0
    for application in applications:
        rate = rates_rps[application.name]
        mine = {m.name: m for m in application.modules if m.model == model}
        for module in application.modules:
            rows += rate * module.rows_per_request * (module.name in mine)
            brought = brought_bytes(module, inputs_of(module.model))
            for one in mine.values():
                part = _part(application, one)
                sent += rate * module.rows_per_request * part * brought.get(one.read_as, 0)
    return sent / rows if rows else 0.0


def producing_models(applications: Iterable[Application], model: str) -> tuple[str, ...]:
    """Models whose outputs a model's modules read, each once."""
    found: dict[str, None] = {}
    for application in applications:
        for module in application.modules:
            if module.model == model:
                names = application.producers(module)
                found |= {application.module(name).model: None for name in names}
    return tuple(found)


def _part(application: Application, module: Module) -> float:
    """The share of rows that one of several sizes has of them all; 1 of a module without."""
    rows = [one.rows_per_request for one in application.makers(module.read_as)]
    return module.rows_per_request / sum(rows)
