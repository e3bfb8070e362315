"""The tensors around every stage of a plan, also where only byte counts are known.

A plan made from latency tables alone (no ONNX model behind it) names no tensors. To serve it with
emulated runtimes it is completed: one UINT8 tensor of the right size for every boundary, a small
one for the model's input and its output. Models of applications get the tensors that their modules
name, all of one size, so that any edge fits.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from triton_backend.contract.applications import (
    REQUEST,
    Application,
    ApplicationPlan,
    Module,
    check_tensors,
    widest,
)
from triton_backend.contract.entries import shares_of
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import ModelPlan, Pipeline, Plan, Stage
from triton_backend.contract.tensors import BYTES, TensorSpec, check_same_tensors
from triton_backend.contract.workload import FIRST_VERSION
from triton_backend.runtimes.base import REFUSED, counts_name, counts_of

EMULATED_INPUT_BYTES = 4096
HALF_SUFFIX = ".fp16"
EMULATED_OUTPUT_BYTES = 4000  # 1,000 FP32 scores
Specs = tuple[TensorSpec, ...]


def complete_tensors(plan: Plan, served: Plan | None = None) -> Plan:
    """The plan with inputs, outputs, every boundary and every edge named.

    What is named stays as it is.

    Args:
        plan: as a planner made it, or completed.
        served: the completed plan that it is to follow; emulated tensors of entries stay as there.

    Raises:
        InputError: tensors at the two ends of an edge of an application differ; or a model gives
            rows whose number varies (`base.counts_of`), that no module reads and of which none that
            runs it says how many there may be (`max_rows_given`); or it is served by itself
            (`check_served_alone`); or a module that always runs the same number of rows reads such
            rows of a model with files.
    """
    graphs = [planned.application for planned in plan.applications]
    named = [
        replace(
            model,
            inputs=model.inputs or _bytes_tensors(_read_names(model.name, graphs)),
            outputs=model.outputs or _given_tensors(model.name, graphs),
        )
        for model in plan.models
    ]
    before = {model.name: model for model in served.models} if served else {}
    models = {model.name: _complete_model(model, before.get(model.name)) for model in named}
    applications = tuple(_complete_application(one, models) for one in plan.applications)
    _check_rows([one.application for one in applications], models)
    _check_choices([one.application for one in applications], models)
    in_modules = {module.model for graph in graphs for module in graph.modules}
    for model in models.values():
        if model.name not in in_modules:
            check_served_alone(model.name, (spec.name for spec in model.outputs))
    return replace(plan, models=tuple(models.values()), applications=applications)


def check_served_alone(model: str, outputs: Iterable[str]) -> None:
    """A model by itself answers one row for every sample, which is what its slots have room for.

    Raises:
        InputError: its outputs have rows of their own number, as the boxes of a detector.
    """
    varying = counts_of(outputs)
    if varying:
        raise InputError(
            f"model {model!r}, output {', '.join(map(repr, varying))}",
            f"has as many rows as {', '.join(map(repr, dict.fromkeys(varying.values())))} says, "
            "not one per sample: "
            "serve it in an application, before a module that reads them or with max_rows_given "
            "(`applications:` in the "
            "workload)",
        )


def _check_rows(graphs: Iterable[Application], models: Mapping[str, ModelPlan]) -> None:
    counts = {
        name: counts_of(spec.name for spec in models[name].outputs)
        for name in dict.fromkeys(m.model for graph in graphs for m in graph.modules)
    }
    read: set[tuple[str, str]] = set()
    for graph in graphs:
        stated = [module.model for module in graph.modules if module.max_rows_given is not None]
        read |= {(model, count) for model in stated for count in counts[model].values()}
        edges = [(module, source) for module in graph.modules for source in module.inputs.values()]
        for module, source in edges:
            producer, _, tensor = source.partition(".")
            makers = () if producer == REQUEST else graph.makers(producer)
            for maker in makers:
                model = maker.model
                if tensor not in counts[model]:
                    continue
                read.add((model, counts[model][tensor]))
                _check_not_sized(graph, module, source, maker)
                if _has_files(models[model]):
                    _check_not_fixed(graph, module, source, counts[model][tensor])
    for model, varying in counts.items():
        for output, count in varying.items():
            if (model, count) not in read:
                where = f"model {model!r}, output {output!r}"
                raise InputError(
                    where,
                    f"has rows that {count!r} counts, and no module reads them: state "
                    "max_rows_given where it runs",
                )


def _has_files(model: ModelPlan) -> bool:
    """True if stages of a model are run, not emulated."""
    return any(stage.artifact for pipeline in model.pipelines for stage in pipeline.stages)


def _check_choices(graphs: Iterable[Application], models: Mapping[str, ModelPlan]) -> None:
    """Rows choose by one tensor among the same sizes, wherever these are run."""
    known: dict[tuple[str, str], tuple[str, set[tuple[int, ...]]]] = {}
    for graph in graphs:
        found: dict[str, set[tuple[int, ...]]] = {}
        for module in graph.modules:
            for tensor, source in module.inputs.items():
                inputs = models[module.model].inputs
                shapes = {spec.shape for spec in inputs if spec.name == tensor}
                if source == module.size_by:
                    found.setdefault(module.read_as, set()).update(shapes)
        chosen = {m.read_as: m.size_by or "" for m in graph.modules if m.read_as in found}
        for several, shapes in found.items():
            chooser, _, tensor = chosen[several].partition(".")
            key = graph.module(chooser).model, tensor
            other, theirs = known.setdefault(key, (several, shapes))
            if theirs != shapes:
                where = f"application {graph.name!r}, module {several!r}.sizes"
                raise InputError(where, f"are not those of {other!r}, which {tensor!r} chooses too")


def _check_not_sized(graph: Application, module: Module, source: str, maker: Module) -> None:
    """Rows have a size or a number of their own, not both: sizes are joined row by row."""
    if maker.size_of is not None or source == module.size_by:
        raise InputError(
            f"application {graph.name!r}, module {module.read_as!r}.inputs",
            f"{source!r} has rows of a number of its own, which several sizes do not serve: "
            "put a step between that gives one for each",
        )


def _check_not_fixed(graph: Application, module: Module, source: str, count: str) -> None:
    """A module with as many rows as it may have runs that many, whatever comes.

    Rows would be made up.
    """
    if 1 < module.rows_per_request == module.max_rows:
        raise InputError(
            f"application {graph.name!r}, module {module.name!r}.max_rows",
            f"is {module.max_rows}, as rows_per_request is, so that many rows always run; but "
            f"{source!r} has as "
            f"many as {count!r} says: state fewer rows_per_request, or a larger max_rows",
        )


def _read_names(model: str, graphs: Iterable[Application]) -> tuple[str, ...]:
    """Inputs of a model of applications: those that modules name, else one per module before it."""
    modules = [m for graph in graphs for m in graph.modules if m.model == model]
    named = tuple(dict.fromkeys(name for module in modules for name in module.inputs))
    if named or not modules:
        return named
    most = max(len(module.parents) for module in modules)
    return ("input",) if most < 2 else tuple(f"input_{i}" for i in range(most))  # noqa: PLR2004  # a join


def _given_tensors(model: str, graphs: Iterable[Application]) -> tuple[TensorSpec, ...]:
    """Outputs of a model of applications: those that modules or the answer read, else one.

    What a module reads that runs other rows than the one before it comes with their counts
    (`base.counts_of`), and so does what the answer alone reads of a module that states
    `max_rows_given`.
    """
    found: dict[str, bool] = {}
    used = states = False
    for graph in graphs:
        mine = [module for module in graph.modules if module.model == model]
        used = used or bool(mine)
        states = states or any(module.max_rows_given is not None for module in mine)
        for module in mine:
            for after in graph.modules:
                if module.name in after.parents:
                    name = _read_of(module, after)
                    found[name] = found.get(name, False) or rows_vary(module, after)
            for source in graph.outputs.values():
                producer, _, name = source.partition(".")
                if producer == module.read_as:
                    found.setdefault(name, False)
    if used and not found:
        found["output"] = False
    if states and not any(found.values()):
        found = {name: name not in map(counts_name, found) for name in found}
    counts = {counts_name(name) for name, vary in found.items() if vary}
    plain = _bytes_tensors(name for name in found if name not in counts)
    return (*plain, *(TensorSpec(name=name, dtype="INT64", shape=(-1,)) for name in sorted(counts)))


def _read_of(module: Module, after: Module) -> str:
    """The output of a module that another one reads, of a model without stated tensors."""
    for source in after.inputs.values():
        producer, _, name = source.partition(".")
        if producer == module.read_as:
            return name
    return f"for_{after.name}" if rows_vary(module, after) else "output"


def rows_vary(module: Module, after: Module) -> bool:
    """True if the rows that one module gives another are counted by one of its outputs.

    Not where both run the same rows, nor where the other one joins them: it runs one for each
    request.
    """
    same = (module.rows_per_request, module.max_rows) == (after.rows_per_request, after.max_rows)
    return not same and after.max_rows != 1


def _bytes_tensors(names: Iterable[str]) -> tuple[TensorSpec, ...]:
    return tuple(_bytes_tensor(name, EMULATED_INPUT_BYTES) for name in names)


def _complete_application(
    planned: ApplicationPlan, models: Mapping[str, ModelPlan]
) -> ApplicationPlan:
    """With every edge, the answer and the request's tensors named."""
    graph = planned.application
    modules = tuple(
        module if module.inputs else replace(module, inputs=_bindings(graph, module, models))
        for module in graph.modules
    )
    before = {parent for module in modules for parent in module.parents}
    last = [module for module in modules if module.name not in before]
    outputs = graph.outputs or {
        f"{module.read_as}.{spec.name}": f"{module.read_as}.{spec.name}"
        for module in last
        for spec in models[module.model].outputs
        if spec.name != REFUSED
    }
    graph = replace(graph, modules=modules, outputs=outputs)
    # A step's refusals come back with every answer; the front turns them into errors.
    refused = {
        refused_name(m.name): refused_name(m.name) for m in modules if _refuses(models[m.model])
    }
    graph = replace(graph, outputs={**outputs, **refused})
    inputs = check_tensors(graph, lambda name: (models[name].inputs, models[name].outputs))
    return replace(planned, application=graph, inputs=inputs)


def refused_name(module: str) -> str:
    """The output of an application that says what a module of a Python step refuses.

    Clients do not see it.
    """
    return f"{module}.{REFUSED}"


def _refuses(model: ModelPlan) -> bool:
    """True if outputs say what was refused, as those of Python steps do."""
    return any((spec.name, spec.dtype) == (REFUSED, BYTES) for spec in model.outputs)


def _seen_alone(model: ModelPlan) -> ModelPlan:
    """A model as clients see it."""
    if not _refuses(model):
        return model
    return replace(model, outputs=tuple(s for s in model.outputs if s.name != REFUSED))


def _bindings(
    graph: Application, module: Module, models: Mapping[str, ModelPlan]
) -> dict[str, str]:
    """Where a module reads that does not say so: the request, or the modules before it in order."""
    found: dict[str, str] = {}
    several = [name for name in map(graph.module, module.parents) if name.size_of is not None]
    if several:
        where = f"application {graph.name!r}, module {module.name!r}.inputs"
        raise InputError(where, f"must say what it reads of {several[0].size_of!r}")
    for number, wanted in enumerate(models[module.model].inputs):
        if not module.parents:
            found[wanted.name] = f"{REQUEST}.{wanted.name}"
            continue
        parent = module.parents[min(number, len(module.parents) - 1)]
        before = graph.module(parent)
        given = [
            spec.name
            for spec in models[before.model].outputs
            if (spec.dtype, spec.shape) == (wanted.dtype, wanted.shape)
        ]
        named = _read_of(before, module)
        given.sort(key=lambda name: name != named)
        if not given:
            where = f"application {graph.name!r}, module {module.name!r}.inputs.{wanted.name}"
            raise InputError(where, f"is missing, and {parent!r} gives nothing of its form")
        found[wanted.name] = f"{parent}.{wanted.name if wanted.name in given else given[0]}"
    return found


def served_models(plan: Plan) -> tuple[ModelPlan, ...]:
    """Models as clients see them: a completed plan's models, and one per application.

    A model that only modules of applications name is not seen.
    """
    modules = {m.model for one in plan.applications for m in one.application.modules}
    inner = modules - {demand.name for demand in plan.workload.models}
    models = tuple(_seen_alone(model) for model in plan.models if model.name not in inner)
    return (*models, *(_seen_as_model(plan, one) for one in plan.applications))


def served_model(plan: Plan, name: str) -> ModelPlan:
    """The client's model of a name.

    Raises:
        InputError: the plan serves nothing of that name.
    """
    for model in served_models(plan):
        if model.name == name:
            return model
    names = ", ".join(model.name for model in served_models(plan))
    raise InputError(f"plan {plan.plan_id}", f"no model {name!r}; it serves {names}")


def asked_as(plan: Plan, name: str) -> str:
    """The name under which clients ask for a served model; of one of several, that of them all."""
    return _asked_as(plan).get(name) or name


def _asked_as(plan: Plan) -> dict[str, str | None]:
    return {demand.name: demand.size_of for demand in plan.workload.models}


def endpoints(plan: Plan) -> dict[str, tuple[ModelPlan, ...]]:
    """Served models of a completed plan by the name that clients ask for: of most, one each.

    Raises:
        InputError: two sizes of a model have other inputs or outputs than each other, or the same
            shapes; variants or versions have other tensors.
    """
    versions, variants, names = plan.workload.versions, plan.workload.variants, _asked_as(plan)
    found: dict[str, tuple[ModelPlan, ...]] = {}
    for model in served_models(plan):
        name = names.get(model.name) or model.name
        found[name] = (*found.get(name, ()), model)
    for name, sizes in found.items():
        if name in versions:
            _check_same(f"version of {name!r}", sizes)
        elif name in variants:
            _check_same(f"variant of {sizes[0].name!r}", sizes)
        else:
            _check_sizes(name, sizes)
    return found


def answering(plan: Plan, name: str, version: int) -> tuple[ModelPlan, ...]:
    """Served models of a completed plan that answer for a name when asked for a version of it.

    A name without versions is version 1 of itself.
    """
    models = endpoints(plan).get(name, ())
    versions = plan.workload.versions.get(name)
    if versions is None:
        return models if version == FIRST_VERSION else ()
    chosen = versions.get(version)
    return tuple(model for model in models if chosen is not None and model.name == chosen.name)


def are_variants(models: Sequence[ModelPlan]) -> bool:
    """True if several models of one name, which has no versions, bring the same inputs."""
    return len(models) > 1 and all(model.inputs == models[0].inputs for model in models)


def _check_same(what: str, models: tuple[ModelPlan, ...]) -> None:
    """Check that variants or versions of a name take and give the same tensors."""
    first, *others = models
    for other in others:
        check_same_tensors(
            f"model {other.name!r}, {what}",
            (other.inputs, other.outputs),
            (first.inputs, first.outputs),
        )


def _check_sizes(name: str, sizes: tuple[ModelPlan, ...]) -> None:
    """Check that requests of several sizes of a model differ in shapes, and in nothing else."""
    first, *others = sizes
    shapes = [tuple(spec.shape for spec in first.inputs)]
    for size in others:
        if _kinds(size.inputs) != _kinds(first.inputs) or _kinds(size.outputs) != _kinds(
            first.outputs
        ):
            reason = f"has other tensors than {first.name!r}, beside their shapes"
            raise InputError(f"model {name!r}, size {size.name!r}", reason)
        shapes.append(tuple(spec.shape for spec in size.inputs))
        if shapes.index(shapes[-1]) < len(shapes) - 1:
            other = sizes[shapes.index(shapes[-1])].name
            reason = (
                f"has the inputs of {other!r}: a plan whose models name no tensors"
                " serves no sizes; split the model for each"
            )
            raise InputError(f"model {name!r}, size {size.name!r}", reason)


def _kinds(specs: Specs) -> list[tuple[str, str, int]]:
    return [(spec.name, spec.dtype, len(spec.shape)) for spec in specs]


def dropped_name(module: str) -> str:
    """The output that says of an optional module that it was dropped: not that it had no rows."""
    return f"{module}.dropped"


def optional_outputs(plan: Plan, name: str) -> dict[str, str]:
    """By output of an optional module, the output that says whether it was dropped."""
    return {
        output: dropped_name(module.name)
        for planned in plan.applications
        if planned.name == name
        for module in planned.application.modules
        for output, source in planned.application.outputs.items()
        if module.optional and source.partition(".")[0] == module.read_as
    }


def _seen_as_model(plan: Plan, planned: ApplicationPlan) -> ModelPlan:
    graph = planned.application
    outputs: list[TensorSpec] = []
    for output, source in graph.outputs.items():
        producer, _, tensor = source.partition(".")
        if output == refused_name(producer):
            continue
        models = [plan.model(maker.model) for maker in graph.makers(producer)]
        specs = [spec for model in models for spec in model.outputs if spec.name == tensor]
        if specs:
            outputs.append(replace(widest(f"output {output!r}", specs), name=output))
    outputs += [
        TensorSpec(name=dropped_name(module.name), dtype="BOOL", shape=(-1,))
        for module in graph.modules
        if module.optional
    ]
    return ModelPlan(
        name=planned.name,
        slo_us=graph.slo_us,
        throughput_rps=graph.rate_rps or 0.0,
        pipelines=(),
        inputs=planned.inputs,
        outputs=tuple(outputs),
    )


def _complete_model(model: ModelPlan, served: ModelPlan | None) -> ModelPlan:
    inputs = model.inputs or (_bytes_tensor("input", EMULATED_INPUT_BYTES),)
    outputs = model.outputs or (_bytes_tensor("output", _answer_bytes(model)),)
    sent = {entry.block: entry.inputs for entry in (served.entries if served else ())}
    entries = tuple(
        entry
        if entry.inputs
        else replace(entry, inputs=_cut(model, entry.block, inputs, sent.get(entry.block, ())))
        for entry in model.entries
    )
    cuts = {entry.block: entry.inputs for entry in entries}
    pipelines = tuple(_complete_pipeline(pipeline, cuts, outputs) for pipeline in model.pipelines)
    return replace(model, inputs=inputs, outputs=outputs, entries=entries, pipelines=pipelines)


def _complete_pipeline(pipeline: Pipeline, cuts: Mapping[int, Specs], outputs: Specs) -> Pipeline:
    """With every boundary named.

    At the block of an entry as there, because both may board one shared batch.
    """
    last = len(pipeline.stages) - 1

    def boundary(i: int, stage: Stage) -> Specs:
        if i == last:
            return outputs
        unnamed = (_bytes_tensor(f"boundary_{i}", stage.boundary_bytes_per_sample),)
        return stage.boundary or cuts.get(stage.blocks[1], unnamed)

    stages = tuple(
        replace(stage, boundary=boundary(i, stage)) for i, stage in enumerate(pipeline.stages)
    )
    return replace(pipeline, stages=stages)


def _cut(model: ModelPlan, block: int, inputs: Specs, sent: Specs) -> Specs:
    """The tensors that cross before a block.

    Those of a stage that ends there, else the one that clients send already, else one of its size.
    """
    if block == 0:
        return inputs
    ending = [s for p in model.pipelines for s in p.stages[:-1] if s.blocks[1] == block]
    for stage in ending:
        if stage.boundary:
            return stage.boundary
    if [spec.name for spec in sent] == [_emulated_cut(block)]:
        return sent
    size = ending[0].boundary_bytes_per_sample if ending else EMULATED_INPUT_BYTES
    return (_bytes_tensor(_emulated_cut(block), size),)


def _emulated_cut(block: int) -> str:
    """The name of the tensor that stands for all that cross before a block without artifacts."""
    return f"cut_{block}"


def _answer_bytes(model: ModelPlan) -> int:
    known = (p.stages[-1].boundary_bytes_per_sample for p in model.pipelines)
    return max(known, default=0) or EMULATED_OUTPUT_BYTES


def _bytes_tensor(name: str, size: int) -> TensorSpec:
    return TensorSpec(name=name, dtype="UINT8", shape=(-1, max(size, 1)))


def request_tensors(model: ModelPlan) -> dict[TensorSpec, bool]:
    """Every tensor that a request of a completed plan may bring, and whether it may be left out.

    Raises:
        InputError: a name stands for different tensors at two entries.
    """
    cuts = [entry.inputs for entry in model.entries] or [model.inputs]
    found: dict[TensorSpec, bool] = {}
    by_name: dict[str, TensorSpec] = {}
    halves = half_tensors(model)
    halved = set(halves.values())
    for spec in (spec for cut in cuts for spec in cut):
        if by_name.setdefault(spec.name, spec) != spec:
            raise InputError(f"model {model.name!r}, entries", f"{spec.name!r} is two tensors")
        found[spec] = spec.name in halved or not all(spec in cut for cut in cuts)
    return found | dict.fromkeys(halves, True)


def half_tensors(model: ModelPlan) -> dict[TensorSpec, str]:
    """Tensors that a client of a model with entries may send as FP16, under own names.

    None where entries share its requests: clients know nothing of those.
    """
    if shares_of(model.entries):
        return {}
    names = {spec.name for entry in model.entries for spec in entry.inputs}
    return {
        replace(spec, name=spec.name + HALF_SUFFIX, dtype="FP16"): spec.name
        for entry in model.entries
        for spec in entry.inputs
        if spec.dtype == "FP32" and spec.name + HALF_SUFFIX not in names
    }
