"""Applications as a generation serves them, and what their modules read of one another.

    module A ── tensor, of a group of rows ──> module B         edges: `feeds`, `producers`
             └─ its row's shape ── chooses ──> one of B's sizes         `choices`, `chosen`

Here: what follows from the graphs of the plan. Not here: a job on its way (`gateway.applications`),
where its tensors lie (`deployment`).
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

from triton_backend.contract.applications import REQUEST, Application, Module, shape_name
from triton_backend.contract.plan import ModelPlan, Plan
from triton_backend.contract.tensors import TensorSpec
from triton_backend.runtimes.base import counts_of
from triton_backend.runtimes.stage_tensors import served_models

EDGE = 4
THE_REQUEST = -1  # in place of the module that another one reads from


class ServedApplications:
    """Of one plan.

    Args:
        all_models: every model is run as a module, those that are served by themselves too.
    """

    def __init__(self, plan: Plan, *, all_models: bool) -> None:
        self._plan = plan
        self._all_models = all_models

    @cached_property
    def retained_models(self) -> frozenset[str]:
        """Models whose outputs are retained, for any client: those that modules run."""
        if self._all_models:
            return frozenset(model.name for model in self._plan.models)
        return self._modules

    @cached_property
    def _modules(self) -> frozenset[str]:
        """Models that modules of applications run."""
        graphs = (planned.application for planned in self._plan.applications)
        return frozenset(module.model for graph in graphs for module in graph.modules)

    def answers_from_retained(self, name: str) -> bool:
        """True if a front's answers come from retained outputs.

        Those of applications and of their models.
        """
        return name in self.numbers

    @cached_property
    def graphs(self) -> tuple[Application, ...]:
        """By number: those of the plan, then their models that are served by themselves too.

        Such a model is an application of one module.
        """
        graphs = [planned.application for planned in self._plan.applications]
        names = (model.name for model in served_models(self._plan))
        alone = (self._plan.model(name) for name in names if name in self.retained_models)
        return (*graphs, *map(_alone, alone))

    @cached_property
    def numbers(self) -> Mapping[str, int]:
        """By name."""
        return {graph.name: number for number, graph in enumerate(self.graphs)}

    def graph_of(self, name: str) -> Application:
        """The application of a name that it serves."""
        return self.graphs[self.numbers[name]]

    @cached_property
    def _feeds(self) -> dict[tuple[int, int, int, int], tuple[tuple[str, str], ...]]:
        found: dict[tuple[int, int, int, int], tuple[tuple[str, str], ...]] = {}
        for number, graph in enumerate(self.graphs):
            names = {module.name: m for m, module in enumerate(graph.modules)}
            for m, module in enumerate(graph.modules):
                for tensor, source in module.inputs.items():
                    producer, _, given = source.partition(".")
                    keys = [(number, m, THE_REQUEST, 0)]
                    if producer != REQUEST:
                        keys = [
                            (number, m, names[maker.name], self.group_of(maker.model, given))
                            for maker in graph.makers(producer)
                        ]
                    for key in keys:
                        found[key] = (*found.get(key, ()), (tensor, given))
        return found

    def feeds(self, *edge: int) -> tuple[tuple[str, str], ...]:
        """An input of a module and the tensor it reads of another.

        Args:
            edge: application, module, the module that it reads (or `THE_REQUEST`), group of rows
                there.
        """
        return self._feeds.get(edge, ()) if len(edge) == EDGE else ()

    def producers(self, application: int, module: int) -> tuple[tuple[int, int], ...]:
        """The modules that a module reads, `THE_REQUEST` among them, with the group of rows."""
        keys = [key for key in self._feeds if key[:2] == (application, module)]
        return tuple(key[2:] for key in keys)

    # Rows: outputs of a module that have one per sample are group 0, those of each count another

    @cached_property
    def _counts(self) -> dict[str, dict[str, str]]:
        """Of every model of modules: outputs whose rows vary, and their counts."""
        models = (self._plan.model(name) for name in self._modules)
        return {m.name: counts_of(spec.name for spec in m.outputs) for m in models}

    def row_groups(self, model: str) -> tuple[str, ...]:
        """The counts of a model's groups of rows, those that vary; group 1 is the first of them."""
        return tuple(dict.fromkeys(self._counts.get(model, {}).values()))

    def group_of(self, model: str, output: str) -> int:
        """Which group of rows an output belongs to."""
        counts = self._counts.get(model, {}).get(output)
        return 0 if counts is None else 1 + self.row_groups(model).index(counts)

    def group_read(self, application: int, module: int, producer: int) -> int:
        """The group that says how many rows one module has of another one that it comes after."""
        groups = (key[3] for key in self._feeds if key[:3] == (application, module, producer))
        return max(groups, default=0)

    @cached_property
    def _choices(self) -> dict[str, dict[str, tuple[tuple[int, ...], ...]]]:
        """By model and output that says shapes: those of the sizes that read it, each once."""
        found: dict[str, dict[str, dict[tuple[int, ...], None]]] = {}
        for graph in self.graphs:
            for module in graph.modules:
                if module.size_by is not None:
                    chooser, _, tensor = module.size_by.partition(".")
                    mine = found.setdefault(graph.module(chooser).model, {})
                    mine.setdefault(shape_name(tensor), {})[self._shape_of(module)] = None
        return {
            model: {output: tuple(shapes) for output, shapes in outputs.items()}
            for model, outputs in found.items()
        }

    def _shape_of(self, module: Module) -> tuple[int, ...]:
        """Shape of a row that one of several sizes reads of its chooser."""
        names = [name for name, source in module.inputs.items() if source == module.size_by]
        inputs = self._plan.model(module.model).inputs
        return next(spec.shape[1:] for spec in inputs if spec.name in names)

    def choices(self, model: str) -> Mapping[str, tuple[tuple[int, ...], ...]]:
        """Outputs of a model that say its rows' shapes, and those that sizes of modules run.

        Sorted as a batch reports them: of each row, the place of its shape.
        """
        return self._choices.get(model, {})

    def shares_of(self, model: str, output: str) -> tuple[float, ...]:
        """The share of rows of each of the sizes that an output of a model chooses among."""
        known = list(self.choices(model))
        rows = [0.0] * len(self.choices(model)[output])
        for (application, m), (choice, place) in self._chosen.items():
            graph = self.graphs[application]
            chooser = graph.module(graph.modules[m].chooser or "")
            if chooser.model == model and known[choice] == output:
                rows[place] += graph.modules[m].rows_per_request * (graph.rate_rps or 1.0)
        return tuple(one / sum(rows) for one in rows)

    def chosen(self, application: int, module: int) -> tuple[int, int] | None:
        """Of a module that runs one of several sizes: which choice of its chooser, and its place.

        None of any other module.
        """
        return self._chosen.get((application, module))

    @cached_property
    def _chosen(self) -> dict[tuple[int, int], tuple[int, int]]:
        found: dict[tuple[int, int], tuple[int, int]] = {}
        for number, graph in enumerate(self.graphs):
            for m, module in enumerate(graph.modules):
                if module.size_by is not None:
                    chooser, _, tensor = module.size_by.partition(".")
                    known = self.choices(graph.module(chooser).model)
                    output = shape_name(tensor)
                    place = known[output].index(self._shape_of(module))
                    found[number, m] = list(known).index(output), place
        return found

    @cached_property
    def _drawn(self) -> dict[tuple[str, str], tuple[int, float]]:
        """By model and count.

        Most rows of a sample, and their mean, as the modules that read them say. Where none does,
        the module that gives them says the most; emulated runs then give half of it on average.
        """
        found: dict[tuple[str, str], tuple[int, float]] = {}
        for graph in self.graphs:
            for module in graph.modules:
                for source in module.inputs.values():
                    before, _, tensor = source.partition(".")
                    if before == REQUEST:
                        continue
                    producer = graph.makers(before)[0]
                    counts = self._counts[producer.model].get(tensor)
                    if counts is not None:
                        mean = module.rows_per_request / producer.rows_per_request
                        most, first = found.get((producer.model, counts), (0, mean))
                        rows = most if module.max_rows is None else max(most, module.max_rows)
                        found[producer.model, counts] = rows, first
        for module in (module for graph in self.graphs for module in graph.modules):
            given = module.max_rows_given
            if given is None:
                continue
            for counts in self.row_groups(module.model):
                most, mean = found.get((module.model, counts), (0, given / 2))
                found[module.model, counts] = max(most, given), mean
        return found

    def drawn_rows(self, model: str) -> dict[str, tuple[str, int, float]]:
        """Outputs of a model whose rows vary: their counts, most rows of a sample, and the mean."""
        return {
            output: (counts, *self._drawn[model, counts])
            for output, counts in self._counts.get(model, {}).items()
        }

    def with_room(self, model: str, outputs: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        """Outputs of a model; where rows vary, [samples, most, ...]."""
        drawn = self.drawn_rows(model)
        return tuple(
            replace(spec, shape=(-1, drawn[spec.name][1], *spec.shape[1:]))
            if spec.name in drawn
            else spec
            for spec in outputs
        )


def brought(model: ModelPlan) -> tuple[TensorSpec, ...]:
    """Every tensor that requests bring, of whatever entry."""
    of_entries = (spec for entry in model.entries for spec in entry.inputs or model.inputs)
    return tuple(dict.fromkeys(of_entries)) or model.inputs


def _alone(model: ModelPlan) -> Application:
    """A model that is served by itself, as an application of one module.

    The module reads what every entry's requests bring; a batch, what its own entry's do.
    """
    reads = {spec.name: f"{REQUEST}.{spec.name}" for spec in brought(model)}
    gives = {spec.name: f"{model.name}.{spec.name}" for spec in model.outputs}
    module = Module(name=model.name, model=model.name, inputs=reads)
    return Application(name=model.name, slo_us=model.slo_us, modules=(module,), outputs=gives)
