"""The workload of a cluster: models and applications with SLOs, weights and rates.

Here too: how plans may account for the time in which a batch gathers (`Accounting`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import fsum
from typing import Any, NamedTuple, Self

from triton_backend.contract.applications import (
    Application,
    Module,
    check_names,
    read_bindings,
)
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
    """

    name: str
    slo_us: int
    weight: float | None = None
    rate_rps: float | None = None
    batch_building_rate_rps: float | None = None
    entries: tuple[Entry, ...] = ()

    def __post_init__(self) -> None:
        check_name("workload model", self.name)
        where = f"workload model {self.name!r}"
        check_entries(self.name, self.entries)
        for entry in self.entries:
            if not LEAST_RPS <= entry.rate_rps <= MOST_RPS:
                reason = f"{entry.rate_rps:g} is not within {LEAST_RPS:g} and {MOST_RPS:g}"
                raise InputError(f"{where}, entry {entry.name}, rate_rps", reason)
        if self.slo_us < 1:
            raise InputError(f"{where}, slo_ms", f"{us_to_ms(self.slo_us)} is not positive")
        for field in OPTIONAL:
            value = getattr(self, field)
            if value is not None and not 0 < value < float("inf"):
                raise InputError(f"{where}, {field}", f"{value} is not a positive number")
        for field in ("weight", "rate_rps"):
            value = getattr(self, field)
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
        return first or second or 1.0

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
        if len(set(names)) < len(names):
            raise InputError("workload", f"a model is listed twice in {names}")
        check_names(self.applications, names)
        listed = [m.name for m in self.models if m.entries]
        if listed and self.applications:
            where = f"workload model {listed[0]!r}, entries"
            raise InputError(where, "a workload has entries or applications, not both")
        for application in self.applications:
            for field in ("weight", "rate_rps"):
                value = getattr(application, field)
                if value is not None and not LEAST_RPS <= value <= MOST_RPS:
                    reason = f"{value:g} is not within {LEAST_RPS:g} and {MOST_RPS:g}"
                    raise InputError(f"application {application.name!r}.{field}", reason)
        asked = (*self.models, *self.applications)
        for field in ("weight", "rate_rps"):
            values = [v for m in asked if (v := getattr(m, field)) is not None]
            if values and max(values) > MOST_APART * min(values):
                least, most = min(values), max(values)
                reason = f"from {least:g} to {most:g}, more than {MOST_APART:g} times as much"
                raise InputError(f"workload, {field}", reason)

    @property
    def has_entries(self) -> bool:
        """True if some model lists where its requests come in."""
        return any(model.entries for model in self.models)

    def to_dict(self) -> dict[str, Any]:
        """Plain form, as in `workload.yaml`."""
        models = [
            {"name": m.name, "slo_ms": us_to_ms(m.slo_us)}
            | {f: getattr(m, f) for f in OPTIONAL if getattr(m, f) is not None}
            | ({"entries": [entry.to_workload() for entry in m.entries]} if m.entries else {})
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
            models=tuple(_read_demand(one) for one in models if one not in around),
            applications=(
                *map(Application.read, fields.items("applications") if several else ()),
                *map(_read_surrounded, around),
            ),
            steps=tuple(map(Step.read, fields.items("steps") if fields.has("steps") else ())),
        )


def _read_demand(fields: Fields) -> ModelDemand:
    known: dict[str, Any] = {name: fields.number(name) for name in OPTIONAL if fields.has(name)}
    if fields.has("entries"):
        known["entries"] = tuple(map(Entry.read, fields.items("entries")))
    slo_us = ms_to_us(fields.number("slo_ms"))
    return ModelDemand(name=fields.text("name"), slo_us=slo_us, **known)


def _read_surrounded(fields: Fields) -> Application:
    """A model with a step before or after it: an application of two or three modules."""
    name, model = fields.text("name"), fields.text("model") if fields.has("model") else ""
    where = f"workload model {name!r}"
    if model in ("", name):
        reason = "names the model between the steps; `name`, which clients ask for, is another name"
        raise InputError(f"{where}, model", reason)
    for field in ("entries", "batch_building_rate_rps"):
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
    )
