"""Applications from elsewhere: a Triton ensemble's `config.pbtxt`, a KServe InferenceGraph.

Text in, an `Application` out, with what could not be said here named in notes. Neither format knows
SLOs or rows, so the SLO is asked for, and every module runs one row per request until
`workload.yaml` says more.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flows.preparation.triton_repository.configuration import read_configuration
from triton_backend.contract.applications import REQUEST, Application, Module
from triton_backend.contract.errors import InputError
from triton_backend.contract.fields import Fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """An application, and what of its source it does not express."""

    application: Application
    notes: tuple[str, ...] = ()


def from_triton(text: str, where: str, slo_us: int) -> Imported:
    """The application of a Triton ensemble.

    Raises:
        InputError: the text is no model configuration, with the line, or the model is no ensemble.
    """
    read = read_configuration(text, where)
    for name, line in read.unknown:
        raise InputError(f"{where}, line {line}", f'has no field named "{name}"')
    return from_ensemble(read.message, where, slo_us)


def from_ensemble(config: Any, where: str, slo_us: int) -> Imported:
    """The application of an ensemble's `inference.ModelConfig`.

    Raises:
        InputError: the model is no ensemble, or its tensors do not fit together.
    """
    steps = list(config.ensemble_scheduling.step)
    if not steps:
        raise InputError(f"{where}, ensemble_scheduling", "has no step; is it an ensemble?")
    if not all(step.model_name for step in steps):
        raise InputError(f"{where}, step.model_name", "is missing")
    given = {tensor.name: f"{REQUEST}.{tensor.name}" for tensor in config.input}
    names = _distinct([step.model_name for step in steps])
    for step, module in zip(steps, names, strict=True):
        for output, tensor in sorted(step.output_map.items()):
            if tensor in given:
                raise InputError(f"{where}, step {module}", f"{tensor!r} has two producers")
            given[tensor] = f"{module}.{output}"
    modules: list[Module] = []
    for step, module in zip(steps, names, strict=True):
        for tensor in step.input_map.values():
            if tensor not in given:
                raise InputError(f"{where}, step {module}", f"no step gives {tensor!r}")
        bound = {own: given[tensor] for own, tensor in sorted(step.input_map.items())}
        modules.append(Module(name=module, model=step.model_name, inputs=bound))
    outputs = {tensor.name: given.get(tensor.name, "") for tensor in config.output}
    application = Application(
        name=config.name or "ensemble", slo_us=slo_us, modules=tuple(modules), outputs=outputs
    )
    return Imported(application=application, notes=tuple(_triton_notes(config, steps)))


def _triton_notes(config: Any, steps: list[Any]) -> Iterator[str]:
    for step in steps:
        if step.model_version not in (-1, 0):  # 0: not stated
            yield f"{step.model_name}: model_version {step.model_version} is not kept"
    known = {"name", "platform", "backend", "input", "output", "ensemble_scheduling"}
    for field, _ in config.ListFields():
        if field.name not in known:
            yield f"{field.name} is not kept"


def _distinct(models: list[str]) -> list[str]:
    """Names of modules: their models', numbered where one is taken; dots are for tensors."""
    names: list[str] = []
    for model in models:
        names.append(_free(model, names))
    return names


def _free(stem: str, taken: Sequence[str]) -> str:
    """The first name of a module that no other one has."""
    name = stem.replace(".", "-")
    numbered = (name, *(f"{name}-{number}" for number in range(2, len(taken) + 2)))
    return next(one for one in numbered if one not in taken)


# KServe


def from_kserve(data: object, where: str, slo_us: int) -> Imported:
    """The application of a KServe InferenceGraph of sequences and ensembles.

    Raises:
        InputError: it is none, a name is not known, or nodes call one another in a circle.
    """
    try:
        return _from_kserve(data, slo_us)
    except InputError as error:
        raise InputError(where, str(error)) from error


def _from_kserve(data: object, slo_us: int) -> Imported:
    fields = Fields(data)
    if fields.text("kind") != "InferenceGraph":
        raise fields.wrong("kind", f"{fields.text('kind')!r} is not InferenceGraph")
    nodes = fields.inner("spec").named("nodes")
    if "root" not in nodes:
        raise InputError("spec.nodes", f"has no root; it has {', '.join(nodes) or 'none'}")
    graph = _Graph(nodes)
    graph.follow("root", (), ())
    application = Application(
        name=fields.inner("metadata").text("name"),
        slo_us=slo_us,
        modules=tuple(graph.modules),
    )
    return Imported(application=application, notes=tuple(dict.fromkeys(graph.notes)))


class _Graph:
    """Walks the nodes of an InferenceGraph and collects modules."""

    def __init__(self, nodes: Mapping[str, Fields]) -> None:
        self.nodes = nodes
        self.modules: list[Module] = []
        self.notes: list[str] = []

    def follow(self, name: str, after: tuple[str, ...], above: tuple[str, ...]) -> tuple[str, ...]:
        """Add the modules of a node; returns those that it ends with."""
        if name in above:
            circle = " -> ".join((*above, name))
            raise InputError(f"spec.nodes.{name}", f"nodes call one another in a circle: {circle}")
        node = self.nodes[name]
        kind = node.text("routerType")
        if kind not in ("Sequence", "Ensemble"):
            reason = f"{kind} routes by request; jobs run every module (Sequence, Ensemble)"
            raise node.wrong("routerType", reason)
        ends: tuple[str, ...] = after
        joined: list[str] = []
        for step in node.items("steps"):
            last = self._step(step, ends if kind == "Sequence" else after, (*above, name))
            joined += last
            ends = last
        return tuple(dict.fromkeys(joined)) if kind == "Ensemble" else ends

    def _step(
        self, step: Fields, after: tuple[str, ...], above: tuple[str, ...]
    ) -> tuple[str, ...]:
        for name in ("condition", "weight"):
            if step.has(name):
                reason = "cannot be kept: a module runs for every request, with no rows or more"
                raise step.wrong(name, reason)
        if step.has("data"):
            self.notes.append(f"data: {step.text('data')} is not kept; say `inputs` of modules")
        if step.has("dependency") and step.text("dependency") == "Soft":
            self.notes.append("dependency: Soft is not kept; say `optional` of modules")
        if step.has("nodeName"):
            target = step.text("nodeName")
            if target not in self.nodes:
                raise step.wrong(
                    "nodeName", f"no node {target!r}; there are {', '.join(self.nodes)}"
                )
            return self.follow(target, after, above)
        if step.has("serviceUrl"):
            raise step.wrong("serviceUrl", "names no model; only serviceName does")
        model = step.text("serviceName")
        stem = step.text("name") if step.has("name") else model
        name = _free(stem, [module.name for module in self.modules])
        self.modules.append(Module(name=name, model=model, after=after))
        return (name,)
