"""Rows per request of modules, as measured.

What a plan is made and simulated with in place of what was foreseen. Modules whose rows pair up, by
the workload, go on to pair up: they have one mean, over all of them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from flows.workspace import Workspace
from triton_backend.contract.applications import Application, Module
from triton_backend.contract.plan import Plan
from triton_backend.contract.workload import Workload
from warehouse.observations import module_rows_between

ENOUGH_SAMPLES = 100
# A module that runs `max_rows` on the mean would run as many for every request, whatever its givers
# say.
BELOW_MOST = 1 - 1e-6

Measured = Mapping[tuple[str, str], tuple[int, int]]
"""By application and module: samples of requests, and rows that the module ran for them."""


def measured_rows(work: Workspace, since: datetime, until: datetime) -> Measured:
    """Measurements of the warehouse in a period."""
    with work.open(read_only=True) as warehouse:
        found = module_rows_between(warehouse, since, until)
    return {(row["application"], row["module"]): (row["samples"], row["rows"]) for row in found}


def counted_rows(counters: Mapping[str, Mapping[str, int]]) -> Measured:
    """The same so far, from a gateway's counters."""
    rows = counters["module_rows"]
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for key, samples in counters["module_samples"].items():
        application, _, module = key.partition("/")
        found[application, module] = int(samples), int(rows.get(key, 0))
    return found


def since(now: Measured, then: Measured) -> Measured:
    """Measurements between two counts of one gateway."""
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for key, (samples, rows) in now.items():
        samples_before, rows_before = then.get(key, (0, 0))
        found[key] = samples - samples_before, rows - rows_before
    return found


def most_rows(measured: Measured, sigmas: float) -> Measured:
    """The rows that they may stand for, but for chance: so many deviations of counts more."""
    return {
        key: (samples, rows + math.ceil(sigmas * math.sqrt(rows)))
        for key, (samples, rows) in measured.items()
    }


def with_rows(applications: Sequence[Application], measured: Measured) -> tuple[Application, ...]:
    """Applications with their measured mean rows, where these vary and enough was measured."""
    return tuple(_with_rows(application, measured) for application in applications)


def rows_of(workload: Workload, planned: Workload) -> Workload:
    """A workload with the rows of one of the same applications."""
    applications = tuple(
        replace(
            one,
            modules=tuple(
                replace(module, rows_per_request=foreseen.rows_per_request)
                for module, foreseen in zip(one.modules, known.modules, strict=True)
            ),
        )
        for one, known in zip(workload.applications, planned.applications, strict=True)
    )
    return replace(workload, applications=applications)


def as_measured(plan: Plan, measured: Measured) -> Plan:
    """A plan whose requests have the rows that were measured; what it runs on is as it was."""
    graphs = with_rows([planned.application for planned in plan.applications], measured)
    applications = tuple(
        replace(planned, application=graph)
        for planned, graph in zip(plan.applications, graphs, strict=True)
    )
    return replace(plan, applications=applications)


def _with_rows(application: Application, measured: Measured) -> Application:
    modules = {module.name: module for module in application.modules}
    for group in _pairing(application):
        counts = [measured.get((application.name, module.name), (0, 0)) for module in group]
        samples, rows = map(sum, zip(*counts, strict=True))
        if samples < ENOUGH_SAMPLES:
            continue
        for module in group:
            most = (module.max_rows or 1) * BELOW_MOST
            mean = min(max(rows, 1) / samples, most)
            modules[module.name] = replace(module, rows_per_request=mean)
    return replace(application, modules=tuple(modules.values()))


def _pairing(application: Application) -> list[list[Module]]:
    """Modules whose rows vary, those together that run the same rows of a request.

    A module runs those of a giver that has as many; and givers of one module have as many as each
    other.
    """
    groups = {m.name: [m] for m in application.modules if application.rows_vary(m)}
    for module in application.modules:
        givers = [application.module(name) for name in application.givers(module)]
        same = [giver for giver in givers if _rows(giver) == _rows(module)]
        _join(groups, [module, *same])
        if len({_rows(giver) for giver in givers}) == 1:
            _join(groups, givers)
    return list({id(group): group for group in groups.values()}.values())


def _join(groups: dict[str, list[Module]], alike: Sequence[Module]) -> None:
    """Make one of the groups of modules, of those that are in any."""
    names = [module.name for module in alike if module.name in groups]
    joint = list({m.name: m for name in names for m in groups[name]}.values())
    groups |= {module.name: joint for module in joint}


def _rows(module: Module) -> tuple[float, int | None]:
    return module.rows_per_request, module.max_rows
