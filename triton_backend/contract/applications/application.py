"""An application as asked for: a DAG of modules behind one endpoint with one SLO.

A module names a model. One client request of an application, a job, runs every module: a module
starts when those it comes after have ended, on so many rows as they gave it. Here: the form, and
whether it holds together. Not here: latencies and GPUs (planners), jobs (scheduler).

Every complaint names the application, the module and the field.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from triton_backend.contract.applications.module import (
    REQUEST,
    Module,
    check_known,
    read_bindings,
)
from triton_backend.contract.applications.sizes import read_modules, with_sizes_before
from triton_backend.contract.errors import InputError
from triton_backend.contract.fields import Fields, check_name
from triton_backend.contract.units import ms_to_us, us_to_ms

MOST_ROWS = 100_000
_APPLICATION_FIELDS = ("name", "slo_ms", "rate_rps", "weight", "modules", "outputs")


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
        object.__setattr__(self, "modules", with_sizes_before(self.modules))
        names = [module.name for module in self.modules]
        for module in self.modules:
            if names.count(module.name) > 1:
                raise self._wrong("modules", f"module {module.name!r} is listed twice")
            self._check_names(module, names)
            self._check_numbers(module)
        self._check_cycle()
        self._check_sizes()
        self._check_rows()
        self._check_optional()
        self._check_sources()
        for output, source in self.outputs.items():
            self._check_source(f"application {self.name!r}.outputs.{output}", source)
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
            self._check_source(where, source)
        for producer in self.producers(module):
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

    def _check_source(self, where: str, source: str) -> None:
        producer, dot, tensor = source.partition(".")
        if not (producer and dot and tensor):
            raise InputError(where, f"{source!r} is not module.tensor or {REQUEST}.tensor")
        names = tuple(dict.fromkeys(module.read_as for module in self.modules))
        if producer != REQUEST and producer not in names:
            raise InputError(where, f"no module {producer!r}; there are {', '.join(names)}")

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
            if module.size_of is not None:
                continue
            given = {name: self._rows_of(name) for name in module.producers}
            if len(set(given.values())) > 1 and module.rows_per_request != 1:
                rows = " and ".join(f"{rows[0]:g} of {name}" for name, rows in given.items())
                reason = f"reads rows that do not pair up, {rows}: only one row can join them"
                raise self._wrong("inputs", reason, module.name)

    def _rows_of(self, name: str) -> tuple[float, int | None]:
        """Rows of a module by the name by which others read it, as many as its chooser's.

        Mean and most.
        """
        made = self.makers(name)[0]
        given = made if made.chooser is None else self.module(made.chooser)
        return given.rows_per_request, given.max_rows

    def _check_sizes(self) -> None:
        """A row has one size, which the module says that gives it; its readers pair up with it."""
        names = [module.name for module in self.modules]
        for module in self.modules:
            if (module.size_of is None) != (module.size_by is None):
                raise self._wrong("size_of", "and size_by go together", module.name)
            if module.size_of is not None and module.size_by is not None:
                self._check_size(module, module.size_of, module.size_by, names)
            for name in module.producers:
                several = self.makers(name)[0].size_of
                own = module.rows_per_request, module.max_rows
                own = own if module.chooser is None else self._rows_of(module.read_as)
                if several is not None and own != self._rows_of(name):
                    reason = f"{own[0]:g}, but {name!r} runs {self._rows_of(name)[0]:g}"
                    raise self._wrong("rows_per_request", reason, module.name)

    def _check_size(self, module: Module, several: str, chosen: str, names: Sequence[str]) -> None:
        check_name(f"application {self.name!r}, module {module.name!r}.size_of", several)
        if several in names or several == REQUEST or "." in several:
            raise self._wrong("size_of", f"{several!r} is another module's name", module.name)
        chooser = chosen.partition(".")[0]
        if chooser not in names or self.module(chooser).size_of is not None:
            reason = f"{chosen!r} is no tensor of a module of one size"
            raise self._wrong("size_by", reason, module.name)
        if chosen not in module.inputs.values():
            raise self._wrong("size_by", f"{chosen!r} is not among its inputs", module.name)
        first = self.makers(several)[0]
        alike = (module.size_by, module.inputs, module.max_rows)
        if alike != (first.size_by, first.inputs, first.max_rows):
            reason = f"has other inputs, size_by or max_rows than {first.name!r}"
            raise self._wrong("size_of", reason, module.name)
        for stated in ("optional", "max_rows_given"):
            if getattr(module, stated):
                raise self._wrong(stated, "is not served of several sizes", several)
        given = {self._rows_of(name) for name in (chooser, *module.producers)}
        if len(given) > 1 or module.max_rows != self.module(chooser).max_rows:
            reason = f"its rows and those it reads are not one for each of {chooser!r}"
            raise self._wrong("rows_per_request", reason, several)

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

    def makers(self, name: str) -> tuple[Module, ...]:
        """The modules whose tensors `name.tensor` are: one, or one for each size of a model.

        Raises:
            InputError: there is none.
        """
        sizes = tuple(module for module in self.modules if module.size_of == name)
        return sizes or (self.module(name),)

    def producers(self, module: Module) -> tuple[str, ...]:
        """The modules whose tensors a module reads, each size by itself."""
        return tuple(one.name for name in module.producers for one in self.makers(name))

    def givers(self, module: Module) -> tuple[str, ...]:
        """The modules whose rows a module runs, where its rows vary.

        Those it reads, or all it starts after; where sizes are chosen, the module that chooses.
        """
        if module.chooser is not None:
            return (module.chooser,)
        names = self.producers(module) or module.parents
        return tuple(dict.fromkeys(self.module(name).chooser or name for name in names))

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
        rows = {(m.rows_per_request, m.max_rows) for m in map(self.module, self.givers(module))}
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
        check_known(fields, _APPLICATION_FIELDS, "an application")
        read = cls(
            name=name,
            slo_us=ms_to_us(fields.number("slo_ms")),
            rate_rps=fields.number("rate_rps") if fields.has("rate_rps") else None,
            weight=fields.number("weight") if fields.has("weight") else None,
            modules=tuple(
                module for one in fields.items("modules") for module in read_modules(one, name)
            ),
            outputs=read_bindings(fields, "outputs"),
        )
        for stated in fields.items("modules"):
            if stated.has("sizes"):
                read._check_as_many(stated.text("name"), stated)
        return read

    def _check_as_many(self, several: str, stated: Fields) -> None:
        """A module that lists sizes runs as many rows as its chooser gives."""
        rows, _ = self._rows_of(several)
        said = stated.number("rows_per_request") if stated.has("rows_per_request") else 1.0
        if said != rows:
            chooser = self.makers(several)[0].chooser
            reason = f"{said:g}, but {chooser!r}, whose rows choose their size, runs {rows:g}"
            raise self._wrong("rows_per_request", reason, several)


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
