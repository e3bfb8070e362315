"""The workload of a cluster: models and applications with SLOs, weights and rates.

Here too: several sizes, variants or versions of one model under one name, each of which is a model
of its own here; and how plans may account for the time in which a batch gathers (`Accounting`). Not
here: how a request finds its size (`serving.front.sizes`), its variant
(`scheduler.policies.variants`) or its version (`runtimes.stage_tensors.answering`).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum
from typing import Any, NamedTuple, Self

from triton_backend.contract.applications import (
    Application,
    Module,
    check_names,
    read_bindings,
)
from triton_backend.contract.applications.sizes import equal_or_given, read_sizes
from triton_backend.contract.applications.steps import Step, check_steps
from triton_backend.contract.entries import Entry, check_entries
from triton_backend.contract.errors import InputError
from triton_backend.contract.fields import Fields, check_name
from triton_backend.contract.units import ms_to_us, us_to_ms

GATHERING_FACTOR = 1.3
# Beyond these, or further apart, a solver's tolerances lose the smaller numbers.
LEAST_RPS, MOST_RPS = 1e-6, 1e7
MOST_STAGES = 8  # of a pipeline that a planner may be asked for: one more is ten times the work
MOST_APART = 1e6
AROUND = ("before", "after")
CHAIN = ("before", "model", "after")
OPTIONAL = ("weight", "rate_rps", "batch_building_rate_rps")
FIRST_VERSION, LAST_VERSION = 1, 10**9

GATHERING = "gathering"
TURN = "turn"
MARGIN = "margin"
WAITS = (GATHERING, TURN, MARGIN)
"""How the wait for a whole batch counts.

gathering: a batch gathers before it starts; that time is part of what the SLO less margin allows.
turn: batches of a pool start in turn, one every batch / rate of their pipeline, which counts
likewise;
    a pool promises no more than the option `utilisation` of its time.
margin: the part of the SLO or budget that is kept free pays for it.

A stage with a duty cycle gathers while it waits for its turn, whatever the plan states.
"""
RULES = ("dt", "2d", "tc-even", "tc-tail", "tc-padded")
"""At which rate a batch gathers: of its own machine (`dt`, `2d`), of all machines of its model
(`tc-even`), or of those that are ranked no better (`tc-tail`, `tc-padded`)."""


class Accounting(NamedTuple):
    """A plan's accounting of waits: one of `WAITS`, and one of `RULES` or None."""

    waits: str
    rule: str | None = None


def derived_accounting(
    options: Mapping[str, Any], *, in_entries: bool, in_turns: bool
) -> Accounting:
    """The accounting of a plan that states none.

    Args:
        options: as the plan states them.
        in_entries: some pipeline serves an entry.
        in_turns: every stage has a duty cycle.
    """
    rule = options.get("gathering")
    if rule in RULES:
        return Accounting(GATHERING, rule)
    if "utilisation" in options:
        return Accounting(TURN)
    return Accounting(MARGIN if in_entries or in_turns else GATHERING)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDemand:
    """One model's demand.

    Attributes:
        slo_us: latency objective of a request, arrival to answer.
        weight: share in "maximise the lowest throughput / weight"; used as given.
        rate_rps: required rate (requests/s) for the cost and power objectives.
        batch_building_rate_rps: rate at which batches are assumed to fill while planning.
        entries: where its requests come in; none: block 0 with the SLO as budget. Where some are
            listed, their rates are all that is asked of the model.
        size_of: the name that clients ask for, where this is one of several sizes or versions of a
            model, or a variant of the model of that name.
        accuracy: of its answers, 0 to 1, as stated.
        version: the number by which clients choose it among the versions of `size_of`.
    """

    name: str
    slo_us: int
    weight: float | None = None
    rate_rps: float | None = None
    batch_building_rate_rps: float | None = None
    entries: tuple[Entry, ...] = ()
    size_of: str | None = None
    accuracy: float | None = None
    version: int | None = None

    def __post_init__(self) -> None:
        check_name("workload model", self.name)
        where = f"workload model {self.name!r}"
        if self.size_of is not None:
            check_name(f"{where}, size_of", self.size_of)
            if self.entries:
                reason = "a model has entries or several sizes, variants or versions"
                raise InputError(f"{where}, entries", reason)
        if self.version is not None:
            self._check_version(where, self.version)
        check_entries(self.name, self.entries)
        for entry in self.entries:
            if not LEAST_RPS <= entry.rate_rps <= MOST_RPS:
                reason = f"{entry.rate_rps:g} is not within {LEAST_RPS:g} and {MOST_RPS:g}"
                raise InputError(f"{where}, entry {entry.name}, rate_rps", reason)
            if entry.share is not None:
                reason = "is of plans: a rollout states it, no workload"
                raise InputError(f"{where}, entry {entry.name}, share", reason)
        if self.slo_us < 1:
            raise InputError(f"{where}, slo_ms", f"{us_to_ms(self.slo_us)} is not positive")
        self._check_numbers(where)

    def _check_version(self, where: str, version: int) -> None:
        """A version is a number of a folder, and of another name than the model's own."""
        if not FIRST_VERSION <= version <= LAST_VERSION:
            reason = f"{version} is not within {FIRST_VERSION} and {LAST_VERSION}"
            raise InputError(f"{where}, version", reason)
        if self.size_of is None:
            reason = "needs size_of, the name that clients ask for with that version"
            raise InputError(f"{where}, version", reason)
        if self.accuracy is not None:
            raise InputError(f"{where}, accuracy", "is of variants, and this is a version")

    def _check_numbers(self, where: str) -> None:
        """Weight and rates are positive and within bounds; of a variant they may be 0."""
        if self.accuracy is not None and not 0 <= self.accuracy <= 1:
            raise InputError(f"{where}, accuracy", f"{self.accuracy:g} is not within 0 and 1")
        given = [field for field in OPTIONAL if self.accuracy is None or getattr(self, field) != 0]
        for field in given:
            value = getattr(self, field)
            if value is not None and not 0 < value < float("inf"):
                raise InputError(f"{where}, {field}", f"{value} is not a positive number")
        for field in ("weight", "rate_rps"):
            value = getattr(self, field) if field in given else None
            if value is not None and not LEAST_RPS <= value <= MOST_RPS:
                reason = f"{value:g} is not within {LEAST_RPS:g} and {MOST_RPS:g}"
                raise InputError(f"{where}, {field}", reason)

    def normaliser(self, objective: str = "throughput") -> float:
        """Requests/s per unit of the objective.

        The weight where throughput is maximised, the rate asked for where cost or power is
        minimised; each stands in for the other where only one is given, 1 where none is. What a
        model's entries ask for, where it lists some.
        """
        if self.entries:
            return fsum(entry.rate_rps for entry in self.entries)
        first, second = self.weight, self.rate_rps
        if objective != "throughput":
            first, second = second, first
        return next((value for value in (first, second) if value is not None), 1.0)

    def gathering_us(self, batch: int) -> float:
        """Time taken to gather a batch: 1.3 (batch - 1) / batch-building rate; 0 where none."""
        if self.batch_building_rate_rps is None:
            return 0.0
        return GATHERING_FACTOR * (batch - 1) / self.batch_building_rate_rps * 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Models and applications in a stated order; names are distinct.

    `steps`: its models that are Python functions.
    """

    models: tuple[ModelDemand, ...] = ()
    applications: tuple[Application, ...] = ()
    steps: tuple[Step, ...] = ()

    def __post_init__(self) -> None:
        check_steps(self.steps)
        names = [m.name for m in self.models]
        if not names and not self.applications:
            raise InputError("workload", "names no model and no application")
        for name, times in Counter(names).items():
            if times > 1:
                raise InputError("workload, models", f"{name!r} is listed twice")
        check_names(self.applications, names)
        self._check_sizes()
        self._check_modules()
        for application in self.applications:
            for field in ("weight", "rate_rps"):
                value = getattr(application, field)
                if value is not None and not LEAST_RPS <= value <= MOST_RPS:
                    reason = f"{value:g} is not within {LEAST_RPS:g} and {MOST_RPS:g}"
                    raise InputError(f"application {application.name!r}.{field}", reason)
        asked = (*self.models, *self.applications)
        for field in ("weight", "rate_rps"):
            values = [v for m in asked if (v := getattr(m, field))]
            if values and max(values) > MOST_APART * min(values):
                least, most = min(values), max(values)
                reason = f"from {least:g} to {most:g}, more than {MOST_APART:g} times as much"
                raise InputError(f"workload, {field}", reason)

    def _check_modules(self) -> None:
        listed = {model.name for model in self.models if model.entries}
        for one in self.applications:
            for module in one.modules:
                if module.model in listed:
                    where = f"application {one.name!r}, module {module.name!r}.model"
                    raise InputError(where, f"{module.model!r} lists entries; no module can use it")

    def _check_sizes(self) -> None:
        sizes: dict[str, str | None] = {m.name: m.size_of for m in self.models}
        for name, variants in self.variants.items():
            _check_variants(name, variants)
        _check_versions(self.models)
        sizes |= dict.fromkeys([*self.variant_of, *(a.name for a in self.applications)])
        _check_sizes_of(sizes)
        answering = {one.name for own in self.variants.values() for one in own}
        modules = {
            f"application {a.name!r}, module {m.name!r}": m.model
            for a in self.applications
            for m in a.modules
        }
        for where, model in modules.items():
            if model in answering:
                reason = f"{model!r} has variants, which a module does not choose from"
                raise InputError(f"{where}.model", reason)
        _check_module_models(modules, sizes)

    @property
    def variants(self) -> dict[str, tuple[ModelDemand, ...]]:
        """Models that answer for one name by that name: its own first, then those of other names.

        Only names of which there are several.
        """
        own = {model.name: model for model in self.models}
        found: dict[str, tuple[ModelDemand, ...]] = {}
        for model in self.models:
            if model.size_of is not None and model.size_of in own and model.accuracy is not None:
                name = model.size_of
                found[name] = (*found.get(name, (own[name],)), model)
        return found

    @property
    def variant_of(self) -> dict[str, str]:
        """The name for which a variant answers, by the variant's own where that is another."""
        return {one.name: name for name, own in self.variants.items() for one in own[1:]}

    @property
    def versions(self) -> dict[str, dict[int, ModelDemand]]:
        """Models by version, ascending, of every name that clients ask for with a version."""
        found: dict[str, dict[int, ModelDemand]] = {}
        for model in sorted(self.models, key=lambda model: model.version or 0):
            if model.size_of is not None and model.version is not None:
                found.setdefault(model.size_of, {})[model.version] = model
        return found

    @property
    def has_entries(self) -> bool:
        """True if some model lists where its requests come in."""
        return any(model.entries for model in self.models)

    @property
    def is_mixed(self) -> bool:
        """True if it holds both entries and applications, which are planned apart."""
        return self.has_entries and bool(self.applications)

    def to_dict(self) -> dict[str, Any]:
        """Plain form, as in `workload.yaml`."""
        models = [
            {"name": m.name, "slo_ms": us_to_ms(m.slo_us)}
            | {f: getattr(m, f) for f in OPTIONAL if getattr(m, f) is not None}
            | ({"entries": [entry.to_workload() for entry in m.entries]} if m.entries else {})
            | ({} if m.size_of is None else {"size_of": m.size_of})
            | ({} if m.accuracy is None else {"accuracy": m.accuracy})
            | ({} if m.version is None else {"version": m.version})
            for m in self.models
        ]
        steps = {"steps": [step.to_dict() for step in self.steps]} if self.steps else {}
        if not self.applications:
            return {"models": models} | steps
        applications = [application.to_dict() for application in self.applications]
        return ({"models": models} if models else {}) | {"applications": applications} | steps

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Inverse of `to_dict`."""
        return cls.read(Fields(data))

    @classmethod
    def read(cls, fields: Fields) -> Self:
        """The same, where it stands in a file."""
        several = fields.has("applications")
        models = fields.items("models") if fields.has("models") or not several else ()
        around = [one for one in models if any(one.has(name) for name in AROUND)]
        return cls(
            models=tuple(
                demand for one in models if one not in around for demand in _read_demands(one)
            ),
            applications=(
                *map(Application.read, fields.items("applications") if several else ()),
                *map(_read_surrounded, around),
            ),
            steps=tuple(map(Step.read, fields.items("steps") if fields.has("steps") else ())),
        )


def _read_demands(fields: Fields) -> tuple[ModelDemand, ...]:
    """One model; or each of its sizes, variants or versions, with its share of weight and rates."""
    known: dict[str, Any] = {name: fields.number(name) for name in OPTIONAL if fields.has(name)}
    if fields.has("accuracy"):
        known["accuracy"] = fields.number("accuracy")
    if fields.has("entries"):
        known["entries"] = tuple(map(Entry.read, fields.items("entries")))
    if fields.has("size_of"):
        known["size_of"] = fields.text("size_of")
    if fields.has("version"):
        known["version"] = fields.integer("version")
    name, slo_us = fields.text("name"), ms_to_us(fields.number("slo_ms"))
    whole = ModelDemand(name=name, slo_us=slo_us, **known)
    if fields.has("versions"):
        return _read_versions(whole, fields)
    if fields.has("variants"):
        return _read_variants(whole, fields)
    if not fields.has("sizes"):
        return (whole,)
    if whole.size_of is not None:
        raise InputError(f"workload model {name!r}, sizes", "is a size of another model itself")
    if "weight" not in known and "rate_rps" not in known:
        known["weight"] = whole.normaliser()
    return tuple(
        replace(
            whole,
            name=size.name,
            size_of=name,
            **{field: known[field] * size.share for field in OPTIONAL if field in known},
        )
        for size in read_sizes(f"workload model {name!r}, sizes", name, fields)
    )


def _read_variants(whole: ModelDemand, fields: Fields) -> tuple[ModelDemand, ...]:
    """The field `variants` of a model: `[{name: net-int8, accuracy: 0.71, share: 0.2}, ...]`.

    Raises:
        InputError: a field is missing or wrong, some have a share and others none, or those of the
            variants leave the model nothing.
    """
    where = f"workload model {whole.name!r}, variants"
    listed = fields.items("variants")
    if fields.has("sizes") or whole.size_of is not None:
        raise InputError(where, "a model has variants, or several sizes, or is one of several")
    if whole.accuracy is None:
        raise InputError(f"workload model {whole.name!r}, accuracy", "is missing; variants have it")
    if whole.entries:
        reason = "a model has entries or several sizes, variants or versions"
        raise InputError(f"workload model {whole.name!r}, entries", reason)
    if not listed:
        raise InputError(where, "lists none")
    shares = [one.number("share") if one.has("share") else None for one in listed]
    own, given = 1.0, [0.0] * len(shares)
    if any(share is not None for share in shares):
        rest = 1 - fsum(share for share in shares if share is not None)
        own, *given = equal_or_given(where, [rest, *shares])
    demands = [
        replace(
            whole,
            name=one.text("name"),
            accuracy=one.number("accuracy"),
            size_of=whole.name,
        )
        for one in listed
    ]
    if any(one.name == whole.name for one in demands):
        raise InputError(where, f"{whole.name!r} is the model itself")
    alone = [replace(one, **dict.fromkeys(OPTIONAL)) for one in demands]
    return with_shares((whole, *alone), (own, *given))


def _read_versions(whole: ModelDemand, fields: Fields) -> tuple[ModelDemand, ...]:
    """The field `versions` of a model: `[{version: 2, name: net-2026, share: 0.8}, ...]`.

    Raises:
        InputError: a field is missing or wrong, or some have a share and others none.
    """
    where = f"workload model {whole.name!r}, versions"
    listed = fields.items("versions")
    if fields.has("sizes") or fields.has("variants") or whole.size_of is not None:
        reason = "a model has versions, or several sizes or variants, or is one of several"
        raise InputError(where, reason)
    if whole.entries:
        reason = "a model has entries or several sizes, variants or versions"
        raise InputError(f"workload model {whole.name!r}, entries", reason)
    if not listed:
        raise InputError(where, "lists none")
    shares = [one.number("share") if one.has("share") else None for one in listed]
    demands = [
        replace(
            whole,
            name=one.text("name"),
            size_of=whole.name,
            version=one.integer("version", least=FIRST_VERSION),
        )
        for one in listed
    ]
    alone = [replace(one, **dict.fromkeys(OPTIONAL)) for one in demands[1:]]
    return with_shares((demands[0], *alone), equal_or_given(where, shares))


def with_shares(
    variants: Sequence[ModelDemand], shares: Sequence[float]
) -> tuple[ModelDemand, ...]:
    """Variants of a name, each with its share, 0 or more, of what is asked of all together."""
    totals: dict[str, float] = {}
    for field in OPTIONAL:
        values = [value for one in variants if (value := getattr(one, field)) is not None]
        if values:
            totals[field] = fsum(values)
    if "weight" not in totals and "rate_rps" not in totals:
        totals["weight"] = 1.0
    return tuple(
        replace(one, **{field: total * share for field, total in totals.items()})
        for one, share in zip(variants, shares, strict=True)
    )


def _read_surrounded(fields: Fields) -> Application:
    """A model with a step before or after it: an application of two or three modules."""
    name, model = fields.text("name"), fields.text("model") if fields.has("model") else ""
    where = f"workload model {name!r}"
    if model in ("", name):
        reason = "names the model between the steps; `name`, which clients ask for, is another name"
        raise InputError(f"{where}, model", reason)
    for field in (
        "entries",
        "batch_building_rate_rps",
        "sizes",
        "size_of",
        "variants",
        "version",
        "versions",
    ):
        if fields.has(field):
            raise InputError(f"{where}, {field}", "is of a model without before and after")
    chain = [(role, fields.text(role)) for role in CHAIN if fields.has(role)]
    modules = tuple(
        Module(name=role, model=run, after=(chain[number - 1][0],) if number else ())
        for number, (role, run) in enumerate(chain)
    )
    return Application(
        name=name,
        slo_us=ms_to_us(fields.number("slo_ms")),
        rate_rps=fields.number("rate_rps") if fields.has("rate_rps") else None,
        weight=fields.number("weight") if fields.has("weight") else None,
        modules=modules,
        outputs=read_bindings(fields, "outputs"),
    )


def lines_of(workload: Workload, objective: str = "throughput") -> tuple[ModelDemand, ...]:
    """Every model with all that is asked of it: by itself, and by modules of applications.

    Models stand in the workload's order, then in that of modules. Two modules, of one application
    or of two, that name one model share its line. The rate (or weight) of a line is the sum over
    its users, rows per request counted; its SLO the least of theirs, of which a planner gives it a
    part.
    """
    lines = {
        demand.name: replace(demand, weight=demand.normaliser(objective))
        if workload.applications
        else demand
        for demand in workload.models
    }
    for application in workload.applications:
        for module in application.modules:
            rows = module.rows_per_request
            line = ModelDemand(
                name=module.model,
                slo_us=application.slo_us,
                weight=application.normaliser(objective) * rows,
                rate_rps=None if application.rate_rps is None else application.rate_rps * rows,
                batch_building_rate_rps=module.batch_building_rate_rps,
            )
            before = lines.get(module.model)
            lines[module.model] = line if before is None else _joined(before, line)
    return tuple(lines.values())


def line_factors(
    workload: Workload, factors: Mapping[str, float], objective: str
) -> dict[str, float]:
    """Times what is asked of each line, where its users ask so many times as much by name.

    Names without a factor ask as before.
    """
    asked: dict[str, float] = {}
    more: dict[str, float] = {}

    def add(line: str, user: ModelDemand | Application, rows: float) -> None:
        rate = user.normaliser(objective) * rows
        asked[line] = asked.get(line, 0.0) + rate
        more[line] = more.get(line, 0.0) + rate * factors.get(user.name, 1.0)

    for model in workload.models:
        add(model.name, model, 1.0)
    for application in workload.applications:
        for module in application.modules:
            add(module.model, application, module.rows_per_request)
    return {line: more[line] / rate if rate else 1.0 for line, rate in asked.items()}


def _joined(one: ModelDemand, other: ModelDemand) -> ModelDemand:
    def total(field: str) -> float | None:
        values = [v for line in (one, other) if (v := getattr(line, field)) is not None]
        return sum(values) if values else None

    return ModelDemand(
        name=one.name,
        slo_us=min(one.slo_us, other.slo_us),
        weight=total("weight"),
        rate_rps=total("rate_rps"),
        batch_building_rate_rps=total("batch_building_rate_rps"),
        size_of=one.size_of,
        accuracy=one.accuracy,
        version=one.version,
    )


def _check_variants(name: str, variants: Sequence[ModelDemand]) -> None:
    """Check models that answer for one name.

    Raises:
        InputError: one states no accuracy, or lists entries; two have other SLOs.
    """
    first, *others = variants
    if first.accuracy is None:
        raise InputError(f"workload model {name!r}, accuracy", "is missing; variants have it")
    if first.entries:
        reason = "a model has entries or several sizes, variants or versions"
        raise InputError(f"workload model {name!r}, entries", reason)
    for one in others:
        if one.slo_us != first.slo_us:
            reason = f"{us_to_ms(one.slo_us)}, but {us_to_ms(first.slo_us)} of {name!r}, for which"
            raise InputError(f"workload model {one.name!r}, slo_ms", f"{reason} it answers")


def _check_versions(models: Sequence[ModelDemand]) -> None:
    """Check that all models of a name have a version of their own, or none has one.

    Raises:
        InputError: one has none, or that of another.
    """
    names = {model.size_of for model in models if model.version is not None}
    seen: dict[tuple[str | None, int | None], str] = {}
    for model in models:
        if model.size_of is None or model.size_of not in names:
            continue
        if model.version is None:
            reason = f"is missing: other models of {model.size_of!r} have one"
            raise InputError(f"workload model {model.name!r}, version", reason)
        other = seen.setdefault((model.size_of, model.version), model.name)
        if other != model.name:
            reason = f"{model.version} of {model.size_of!r} is {other!r} already"
            raise InputError(f"workload model {model.name!r}, version", reason)


def _check_sizes_of(sizes: Mapping[str, str | None]) -> None:
    """Check that no model or application has the name under which clients ask for sizes.

    Args:
        sizes: every name of a workload, to the name that clients ask for where it is a size.

    Raises:
        InputError: one has.
    """
    for name, model in sizes.items():
        if model is not None and model in sizes:
            reason = f"{model!r} is the name of a model of its own too"
            raise InputError(f"workload model {name!r}, size_of", reason)


def _check_module_models(models: Mapping[str, str], sizes: Mapping[str, str | None]) -> None:
    """Check that modules of applications name a size, where a model has several.

    Args:
        models: by module in words, the model that it names.
        sizes: as in `_check_sizes_of`.

    Raises:
        InputError: one does not.
    """
    for where, model in models.items():
        own = [name for name, of in sizes.items() if of == model]
        if own:
            reason = (
                f"{model!r} is several models, and a module runs one: {', '.join(own)}"
                " (or state `sizes` in the module)"
            )
            raise InputError(f"{where}.model", reason)
