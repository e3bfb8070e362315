"""An application as asked for: a DAG of modules behind one endpoint with one SLO.

A module names a model. One client request of an application, a job, runs every module: a module
starts when those it comes after have ended, on so many rows as they gave it. Here: the form, and
whether it holds together. Not here: latencies and GPUs (planners), jobs (scheduler).

Every complaint names the application, the module and the field.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from triton_backend.contract.errors import InputError
from triton_backend.contract.fields import Fields, check_name
from triton_backend.contract.tensors import TensorSpec
from triton_backend.contract.units import ms_to_us, us_to_ms

REQUEST = "request"
"""The producer that stands for the client's request, as in `request.image`."""
MOST_ROWS = 100_000
_APPLICATION_FIELDS = ("name", "slo_ms", "rate_rps", "weight", "modules", "outputs")
MODULE_FIELDS = (
    "name",
    "model",
    "after",
    "rows_per_request",
    "max_rows",
    "max_rows_given",
    "optional",
    "inputs",
    "batch_building_rate_rps",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """One node of an application; checked with its application.

    Attributes:
        model: the model that it runs.
        after: the modules that it starts after; those that `inputs` read, where it is not given.
        rows_per_request: mean number of rows (samples) it runs per client request.
        max_rows: most rows of one request; None, to be refused, where it is not given beside other
            rows than one.
        max_rows_given: most rows that each of its samples gives where the run alone knows how many,
            as boxes of a detector; None where none vary, or where the modules that read them say so
            by their `max_rows`.
        optional: whether the answer may go without it.
        inputs: tensor of the model -> `request.tensor` or `module.tensor`; empty: not said, and an
            edge then moves no bytes that a plan would know of.
        batch_building_rate_rps: rate (rows/s) at which its batches are assumed to fill.
    """

    name: str
    model: str
    after: tuple[str, ...] | None = None
    rows_per_request: float = 1.0
    max_rows: int | None = None
    max_rows_given: int | None = None
    optional: bool = False
    inputs: Mapping[str, str] = field(default_factory=dict[str, str])
    batch_building_rate_rps: float | None = None

    def __post_init__(self) -> None:
        if self.after is None:
            object.__setattr__(self, "after", self.producers)
        if self.max_rows is None and self.rows_per_request == 1:
            object.__setattr__(self, "max_rows", 1)

    @property
    def producers(self) -> tuple[str, ...]:
        """The modules whose tensors it reads, each once, in the order of `inputs`."""
        named = (source.partition(".")[0] for source in self.inputs.values())
        return tuple(name for name in dict.fromkeys(named) if name != REQUEST)

    @property
    def parents(self) -> tuple[str, ...]:
        """The modules that it starts after."""
        return self.after or ()

    @property
    def givers(self) -> tuple[str, ...]:
        """The modules whose rows it runs, where its rows vary.

        Those it reads, or all it starts after.
        """
        return self.producers or self.parents

    def to_dict(self) -> dict[str, Any]:
        """Plain form, as in `workload.yaml`; what is as by default is left out."""
        out: dict[str, Any] = {"name": self.name, "model": self.model, "after": list(self.parents)}
        if self.rows_per_request != 1 or self.max_rows != 1:
            out |= {"rows_per_request": self.rows_per_request, "max_rows": self.max_rows}
        if self.max_rows_given is not None:
            out["max_rows_given"] = self.max_rows_given
        if self.optional:
            out["optional"] = True
        if self.inputs:
            out["inputs"] = dict(self.inputs)
        if self.batch_building_rate_rps is not None:
            out["batch_building_rate_rps"] = self.batch_building_rate_rps
        return out

    @classmethod
    def read(cls, fields: Fields, application: str) -> Self:
        """Inverse of `to_dict`."""
        name = fields.text("name")
        fields = Fields(fields.plain(), f"application {application!r}, module {name!r}")
        _check_known(fields, MODULE_FIELDS, "a module")
        alone = fields.has("max_rows") and not fields.has("rows_per_request")
        if alone and fields.integer("max_rows") != 1:
            raise fields.wrong("rows_per_request", "is missing beside max_rows")
        return cls(
            name=name,
            model=fields.text("model"),
            after=fields.texts("after") if fields.has("after") else None,
            rows_per_request=fields.number("rows_per_request")
            if fields.has("rows_per_request")
            else 1.0,
            max_rows=fields.integer("max_rows") if fields.has("max_rows") else None,
            max_rows_given=fields.integer("max_rows_given")
            if fields.has("max_rows_given")
            else None,
            optional=fields.has("optional") and fields.flag("optional"),
            inputs=read_bindings(fields, "inputs"),
            batch_building_rate_rps=fields.number("batch_building_rate_rps")
            if fields.has("batch_building_rate_rps")
            else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """A DAG of modules, what it must hold and how much of it is asked for.

    Attributes:
        slo_us: latency objective of a request, arrival to answer.
        rate_rps: client requests/s asked for; `weight` its share where throughput is maximised.
        outputs: name in the answer -> `module.tensor`; empty: not said.
    """

    name: str
    slo_us: int
    modules: tuple[Module, ...]
    rate_rps: float | None = None
    weight: float | None = None
    outputs: Mapping[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        self._check_demand()
        names = [module.name for module in self.modules]
        for module in self.modules:
            if names.count(module.name) > 1:
                raise self._wrong("modules", f"module {module.name!r} is listed twice")
            self._check_names(module, names)
            self._check_numbers(module)
        self._check_cycle()
        self._check_rows()
        self._check_optional()
        self._check_sources()
        for output, source in self.outputs.items():
            _check_source(f"application {self.name!r}.outputs.{output}", source, names)
            if source.startswith(f"{REQUEST}."):
                raise self._wrong(f"outputs.{output}", f"{source!r} is no module's tensor")

    def _wrong(self, name: str, reason: str, module: str | None = None) -> InputError:
        where = f"application {self.name!r}" + ("" if module is None else f", module {module!r}")
        return InputError(f"{where}.{name}", reason)

    def _check_demand(self) -> None:
        check_name("applications.name", self.name)
        if self.slo_us < 1:
            raise self._wrong("slo_ms", f"{us_to_ms(self.slo_us)} is not positive")
        for name in ("rate_rps", "weight"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise self._wrong(name, f"{value} is not a positive number")
        if not self.modules:
            raise self._wrong("modules", "there is none")

    def _check_names(self, module: Module, names: Sequence[str]) -> None:
        name = module.name
        check_name(f"application {self.name!r}.modules.name", name)
        if name == REQUEST or "." in name:
            raise self._wrong("name", f"{REQUEST!r} and names with a dot are not a module's", name)
        check_name(f"application {self.name!r}, module {name!r}.model", module.model)
        self._check_after(module, names)
        for tensor, source in module.inputs.items():
            where = f"application {self.name!r}, module {name!r}.inputs.{tensor}"
            _check_source(where, source, names)
        for producer in module.producers:
            if producer not in module.parents:
                reason = f"misses {producer!r}, whose tensors `inputs` read"
                raise self._wrong("after", reason, name)

    def _check_after(self, module: Module, names: Sequence[str]) -> None:
        name = module.name
        for parent in module.parents:
            if parent == name:
                raise self._wrong("after", "names the module itself", name)
            if parent not in names:
                known = ", ".join(names)
                raise self._wrong("after", f"no module {parent!r}; there are {known}", name)
            if module.parents.count(parent) > 1:
                raise self._wrong("after", f"{parent!r} is listed twice", name)

    def _check_numbers(self, module: Module) -> None:
        rows, most, name = module.rows_per_request, module.max_rows, module.name
        if not 0 < rows <= MOST_ROWS:
            raise self._wrong("rows_per_request", f"{rows:g} is not in (0, {MOST_ROWS}]", name)
        if most is None:
            raise self._wrong("max_rows", f"is missing; rows_per_request is {rows:g}", name)
        if not 1 <= most <= MOST_ROWS:
            raise self._wrong("max_rows", f"{most} is not within 1 and {MOST_ROWS}", name)
        if rows > most:
            reason = f"{rows:g} on average, max_rows is {most}"
            raise self._wrong("rows_per_request", reason, name)
        given = module.max_rows_given
        if given is not None and not 1 <= given <= MOST_ROWS:
            raise self._wrong("max_rows_given", f"{given} is not within 1 and {MOST_ROWS}", name)
        rate = module.batch_building_rate_rps
        if rate is not None and not 0 < rate < float("inf"):
            raise self._wrong("batch_building_rate_rps", f"{rate} is not a positive number", name)

    def _check_cycle(self) -> None:
        done: set[str] = set()
        left = {module.name: module.parents for module in self.modules}
        while left:
            free = [name for name, parents in left.items() if done.issuperset(parents)]
            if not free:
                raise self._wrong(
                    "after", f"runs in a circle: {_circle(left)}", _circle_start(left)
                )
            done.update(free)
            for name in free:
                del left[name]

    def _check_rows(self) -> None:
        """A source runs what the request brings.

        Rows from two modules pair up or meet per request.
        """
        for module in self.modules:
            if not module.parents and module.rows_per_request != 1:
                reason = f"{module.rows_per_request:g}, but a module after none runs the request"
                raise self._wrong("rows_per_request", reason, module.name)
            given = {
                name: (self.module(name).rows_per_request, self.module(name).max_rows)
                for name in module.producers
            }
            if len(set(given.values())) > 1 and module.rows_per_request != 1:
                rows = " and ".join(f"{rows[0]:g} of {name}" for name, rows in given.items())
                reason = f"reads rows that do not pair up, {rows}: only one row can join them"
                raise self._wrong("inputs", reason, module.name)

    def _check_optional(self) -> None:
        for module in self.modules:
            for parent in module.parents:
                if self.module(parent).optional and not module.optional:
                    raise self._wrong(
                        "optional", f"must be true: {parent!r} before it is", module.name
                    )

    def _check_sources(self) -> None:
        """Where tensors are said and several modules come after none, each says what it reads."""
        sources = [module for module in self.modules if not module.parents]
        if len(sources) > 1 and any(module.inputs for module in self.modules):
            for module in sources:
                if not module.inputs:
                    reason = f"must name {REQUEST}.… tensors: several modules come after none"
                    raise self._wrong("inputs", reason, module.name)

    def module(self, name: str) -> Module:
        """One module.

        Raises:
            InputError: it has none of that name.
        """
        for module in self.modules:
            if module.name == name:
                return module
        names = ", ".join(module.name for module in self.modules)
        raise self._wrong("modules", f"no module {name!r}; there are {names}")

    def rows_vary(self, module: Module) -> bool:
        """True if a request's rows of a module are what its givers say, which must agree then.

        Else they are `rows_per_request` for each sample: of a module after none, of one that always
        runs `max_rows`, and of one that joins rows which do not pair up.
        """
        rows = {(m.rows_per_request, m.max_rows) for m in map(self.module, module.givers)}
        return len(rows) == 1 and module.rows_per_request != module.max_rows

    @property
    def models(self) -> tuple[str, ...]:
        """The models it uses, each once, in the order of modules."""
        return tuple(dict.fromkeys(module.model for module in self.modules))

    def normaliser(self, objective: str = "throughput") -> float:
        """Client requests/s per unit of the objective, as for models (`ModelDemand`)."""
        first, second = self.weight, self.rate_rps
        if objective != "throughput":
            first, second = second, first
        return first or second or 1.0

    def ordered(self) -> tuple[Module, ...]:
        """Every module after those it starts after; otherwise in the order given."""
        done: dict[str, Module] = {}
        while len(done) < len(self.modules):
            for module in self.modules:
                if module.name not in done and all(parent in done for parent in module.parents):
                    done[module.name] = module
        return tuple(done.values())

    def heads(self, times: Mapping[str, float]) -> dict[str, float]:
        """By module, the greatest sum of `times` (by module) on a path that ends above it."""
        heads: dict[str, float] = {}
        for module in self.ordered():
            heads[module.name] = max((heads[p] + times[p] for p in module.parents), default=0)
        return heads

    def tails(self, times: Mapping[str, float]) -> dict[str, float]:
        """By module, the greatest sum of `times` (by module) on a path that begins below it."""
        tails: dict[str, float] = dict.fromkeys((module.name for module in self.modules), 0)
        for module in reversed(self.ordered()):
            for parent in module.parents:
                below = tails[module.name] + times[module.name]
                tails[parent] = max(tails[parent], below)
        return tails

    def through(self, times: Mapping[str, float]) -> dict[str, float]:
        """By module, the greatest sum of `times` (by module) on a path through it."""
        heads, tails = self.heads(times), self.tails(times)
        return {name: heads[name] + times[name] + tails[name] for name in heads}

    def longest(self, times: Mapping[str, float]) -> float:
        """The greatest sum of `times` (by module) on any path."""
        return max(self.through(times).values())

    def to_dict(self) -> dict[str, Any]:
        """Plain form, as in `workload.yaml`."""
        out: dict[str, Any] = {"name": self.name, "slo_ms": us_to_ms(self.slo_us)}
        out |= {n: getattr(self, n) for n in ("rate_rps", "weight") if getattr(self, n) is not None}
        out["modules"] = [module.to_dict() for module in self.modules]
        if self.outputs:
            out["outputs"] = dict(self.outputs)
        return out

    @classmethod
    def read(cls, fields: Fields) -> Self:
        """Inverse of `to_dict`."""
        name = fields.text("name")
        fields = Fields(fields.plain(), f"application {name!r}")
        _check_known(fields, _APPLICATION_FIELDS, "an application")
        return cls(
            name=name,
            slo_us=ms_to_us(fields.number("slo_ms")),
            rate_rps=fields.number("rate_rps") if fields.has("rate_rps") else None,
            weight=fields.number("weight") if fields.has("weight") else None,
            modules=tuple(Module.read(module, name) for module in fields.items("modules")),
            outputs=read_bindings(fields, "outputs"),
        )


def check_names(applications: Sequence[Application], models: Sequence[str]) -> None:
    """Check that applications can be served beside each other and beside models of those names.

    Raises:
        InputError: two have one name; both would be one endpoint.
    """
    names = [application.name for application in applications]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"application {name!r}.name", "is listed twice")
        if name in models:
            raise InputError(f"application {name!r}.name", "is a model's name too")


def check_tensors(
    application: Application,
    tensors_of: Callable[[str], tuple[Sequence[TensorSpec], Sequence[TensorSpec]]],
) -> tuple[TensorSpec, ...]:
    """Check that bindings fit the tensors of the models, as far as these are known.

    Args:
        application: the application.
        tensors_of: inputs and outputs of a model by its name; empty where they are not known.

    Returns:
        The tensors of a client request, in the order in which modules read them.

    Raises:
        InputError: a tensor that no model has, one that nothing feeds, or types or shapes (but for
            their first dimension) that differ.
    """
    request: dict[str, TensorSpec] = {}
    for module in application.modules:
        wanted = {spec.name: spec for spec in tensors_of(module.model)[0]}
        where = f"application {application.name!r}, module {module.name!r}.inputs"
        if not module.inputs or not wanted:
            continue
        for tensor, source in module.inputs.items():
            if tensor not in wanted:
                known = ", ".join(wanted)
                raise InputError(f"{where}.{tensor}", f"{module.model} reads {known} alone")
            producer, _, name = source.partition(".")
            given = request.setdefault(name, wanted[tensor]) if producer == REQUEST else None
            if producer != REQUEST:
                given = _output(application, tensors_of, source, f"{where}.{tensor}")
            if given is not None:
                _check_same(f"{where}.{tensor}", source, given, wanted[tensor])
        for tensor in wanted:
            if tensor not in module.inputs:
                raise InputError(f"{where}.{tensor}", f"is missing; {module.model} reads it")
    for output, source in application.outputs.items():
        where = f"application {application.name!r}.outputs.{output}"
        _output(application, tensors_of, source, where)
    return tuple(
        TensorSpec(name=name, dtype=spec.dtype, shape=spec.shape) for name, spec in request.items()
    )


def _output(
    application: Application,
    tensors_of: Callable[[str], tuple[Sequence[TensorSpec], Sequence[TensorSpec]]],
    source: str,
    where: str,
) -> TensorSpec | None:
    """The tensor behind `module.tensor`; None where the model's are not known."""
    producer, _, name = source.partition(".")
    model = application.module(producer).model
    given = {spec.name: spec for spec in tensors_of(model)[1]}
    if given and name not in given:
        raise InputError(where, f"{model} gives {', '.join(given)}, not {name!r}")
    return given.get(name)


def _check_same(where: str, source: str, given: TensorSpec, wanted: TensorSpec) -> None:
    if (given.dtype, given.shape[1:]) != (wanted.dtype, wanted.shape[1:]):
        raise InputError(
            where,
            f"{source} is {given.dtype} {list(given.shape[1:])} per row, "
            f"{wanted.dtype} {list(wanted.shape[1:])} is read",
        )


def _check_source(where: str, source: str, names: Sequence[str]) -> None:
    producer, dot, tensor = source.partition(".")
    if not (producer and dot and tensor):
        raise InputError(where, f"{source!r} is not module.tensor or {REQUEST}.tensor")
    if producer != REQUEST and producer not in names:
        raise InputError(where, f"no module {producer!r}; there are {', '.join(names)}")


def _check_known(fields: Fields, known: Sequence[str], what: str) -> None:
    for name in fields.plain():
        if name not in known:
            raise fields.wrong(str(name), f"is not known here; {what} has {', '.join(known)}")


def read_bindings(fields: Fields, name: str) -> dict[str, str]:
    """Names of tensors -> where they come from; none where the field is absent."""
    if not fields.has(name):
        return {}
    inner = fields.inner(name)
    return {tensor: inner.text(tensor) for tensor in fields.table(name)}


def _circle_start(parents: Mapping[str, Sequence[str]]) -> str:
    return _circle(parents).split(" ", 1)[0]


def _circle(parents: Mapping[str, Sequence[str]]) -> str:
    """One circle among modules none of which is free, as text in the order in which they run."""
    walked = list(_walk(parents))
    last = walked[-1]
    return " -> ".join(reversed(walked[walked.index(last) :]))


def _walk(parents: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Upwards from the first module until one comes again."""
    seen: set[str] = set()
    at = next(iter(parents))
    while at not in seen:
        yield at
        seen.add(at)
        at = next(parent for parent in parents[at] if parent in parents)
    yield at
