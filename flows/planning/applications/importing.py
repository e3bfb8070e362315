"""Applications from elsewhere: a Triton ensemble's `config.pbtxt`, a KServe InferenceGraph.

Text in, an `Application` out, with what could not be said here named in notes. Neither format knows SLOs
or rows, so the SLO is asked for, and every module runs one row per request until `workload.yaml` says more.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from triton_backend.contract.applications import REQUEST, Application, Module
from triton_backend.contract.errors import InputError
from triton_backend.contract.fields import Fields

_TOKEN = re.compile(
    r'\s+|#[^\n]*|(?P<text>"(?:[^"\\]|\\.)*")|(?P<sign>[{}\[\]:,;])|(?P<word>[^\s{}\[\]:,;"#]+)'
)
_DEEPEST = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """An application, and what of its source it does not express."""

    application: Application
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class _Message:
    """A protobuf message as text writes it: every field with all its values, in order."""

    fields: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])

    def texts(self, name: str) -> list[str]:
        return [value for value in self.fields.get(name, []) if isinstance(value, str)]

    def messages(self, name: str) -> "list[_Message]":
        return [value for value in self.fields.get(name, []) if isinstance(value, _Message)]


def from_triton(text: str, where: str, slo_us: int) -> Imported:
    """The application of a Triton ensemble.

    Raises:
        InputError: the text is no model configuration, or the model is no ensemble.
    """
    tokens = _tokens(text, where)
    config = _message(tokens, where, 0)
    steps = [step for s in config.messages("ensemble_scheduling") for step in s.messages("step")]
    if not steps:
        raise InputError(f"{where}, ensemble_scheduling", "has no step; is it an ensemble?")
    name = (config.texts("name") or [""])[0]
    given = {tensor: f"{REQUEST}.{tensor}" for tensor in _names(config, "input")}
    names = _distinct([_one(step, "model_name", where) for step in steps])
    for step, module in zip(steps, names, strict=True):
        for output, tensor in _map(step, "output_map", where).items():
            if tensor in given:
                raise InputError(f"{where}, step {module}", f"{tensor!r} has two producers")
            given[tensor] = f"{module}.{output}"
    modules: list[Module] = []
    for step, module in zip(steps, names, strict=True):
        inputs = _map(step, "input_map", where)
        for tensor in inputs.values():
            if tensor not in given:
                raise InputError(f"{where}, step {module}", f"nobody gives {tensor!r}")
        bound = {own: given[tensor] for own, tensor in inputs.items()}
        model = _one(step, "model_name", where)
        modules.append(Module(name=module, model=model, inputs=bound))
    outputs = {tensor: given.get(tensor, "") for tensor in _names(config, "output")}
    application = Application(
        name=name or "ensemble", slo_us=slo_us, modules=tuple(modules), outputs=outputs
    )
    return Imported(application=application, notes=tuple(_triton_notes(config, steps)))


def _triton_notes(config: _Message, steps: list[_Message]) -> Iterator[str]:
    for step in steps:
        for version in step.texts("model_version"):
            if version != "-1":
                yield f"{step.texts('model_name')[0]}: model_version {version} is not kept"
    known = {"name", "platform", "backend", "input", "output", "ensemble_scheduling"}
    for name in config.fields:
        if name not in known:
            yield f"{name} is not kept"


def _names(config: _Message, what: str) -> list[str]:
    return [name for tensor in config.messages(what) for name in tensor.texts("name")]


def _one(step: _Message, name: str, where: str) -> str:
    values = step.texts(name)
    if len(values) != 1:
        raise InputError(f"{where}, step.{name}", f"stands {len(values)} times, not once")
    return values[0]


def _map(step: _Message, name: str, where: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for entry in step.messages(name):
        key, value = entry.texts("key"), entry.texts("value")
        if len(key) != 1 or len(value) != 1:
            raise InputError(f"{where}, step.{name}", "is no key with a value")
        found[key[0]] = value[0]
    return found


def _distinct(models: list[str]) -> list[str]:
    """Names of modules: their models', numbered where one comes again; dots are for tensors."""
    seen: dict[str, int] = {}
    names: list[str] = []
    for model in models:
        name = model.replace(".", "-")
        seen[name] = seen.get(name, 0) + 1
        names.append(name if seen[name] == 1 else f"{name}-{seen[name]}")
    return names


def _tokens(text: str, where: str) -> list[str]:
    tokens: list[str] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            line = text.count("\n", 0, at) + 1
            raise InputError(f"{where}, line {line}", f"{text[at : at + 20]!r} cannot be read")
        at = match.end()
        if match.lastgroup:
            tokens.append(match.group())
    return tokens[::-1]


def _message(tokens: list[str], where: str, depth: int) -> _Message:
    """Fields up to the closing brace; tokens are taken from the end of the list."""
    if depth > _DEEPEST:
        raise InputError(where, f"nests deeper than {_DEEPEST} levels")
    message = _Message()
    while tokens:
        name = tokens.pop()
        if name == "}" and depth:
            return message
        if name in ",;":
            continue
        if not name[0].isalpha():
            raise InputError(where, f"{name!r} stands where a field's name should")
        colon = bool(tokens) and tokens[-1] == ":"
        if colon:
            tokens.pop()
        values = _values(tokens, where, depth, name)
        message.fields.setdefault(name, []).extend(values)
    if depth:
        raise InputError(where, "ends within a message")
    return message


def _values(tokens: list[str], where: str, depth: int, name: str) -> list[Any]:
    if not tokens:
        raise InputError(f"{where}, {name}", "has no value")
    first = tokens.pop()
    if first == "{":
        return [_message(tokens, where, depth + 1)]
    if first != "[":
        if first in "}]:,;":
            raise InputError(f"{where}, {name}", f"has {first!r} where its value should be")
        return [_plain(first)]
    values: list[Any] = []
    while tokens and tokens[-1] != "]":
        if tokens[-1] == ",":
            tokens.pop()
        else:
            values += _values(tokens, where, depth + 1, name)
    if not tokens:
        raise InputError(f"{where}, {name}", "ends within a list")
    tokens.pop()
    return values


def _plain(token: str) -> str:
    return re.sub(r"\\(.)", r"\1", token[1:-1]) if token[0] == '"' else token


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
        self.counts: dict[str, int] = {}

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
        stem = (step.text("name") if step.has("name") else model).replace(".", "-")
        self.counts[stem] = self.counts.get(stem, 0) + 1
        name = stem if self.counts[stem] == 1 else f"{stem}-{self.counts[stem]}"
        self.modules.append(Module(name=name, model=model, after=after))
        return (name,)
