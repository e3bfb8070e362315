"""Rates of all that clients ask for, by name, in a workload, in counts and in the warehouse.

The names are those of `scheduler.policies.demand`. Not here: in a simulation (`simulated`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime

from flows.workspace import Workspace
from triton_backend.contract.entries import Entry, covering, demand_name
from triton_backend.contract.errors import InputError
from triton_backend.contract.workload import Workload
from warehouse.observations import entry_rates_between, rates_between


def with_rates(workload: Workload, rates: Mapping[str, float]) -> Workload:
    """The workload with a rate for each name; it is the weight too."""
    models = tuple(
        replace(
            model,
            entries=tuple(
                replace(entry, rate_rps=rates[demand_name(model.name, entry.name)])
                for entry in model.entries
            ),
        )
        if model.entries
        else replace(model, rate_rps=rates[model.name], weight=rates[model.name])
        for model in workload.models
    )
    applications = tuple(
        replace(asked, rate_rps=rates[asked.name], weight=rates[asked.name])
        for asked in workload.applications
    )
    return replace(workload, models=models, applications=applications)


def loads(workload: Workload, planned: Workload) -> dict[str, float]:
    """Rates of a workload by name, and of its modules whose rows vary (`traffic/cars`).

    Those of a module are of requests that have as many rows as `planned` says, which run the same
    rows/s.
    """
    found: dict[str, float] = {}
    for model in workload.models:
        if not model.entries:
            found[model.name] = model.rate_rps or 0.0
        found |= {demand_name(model.name, entry.name): entry.rate_rps for entry in model.entries}
    for one, known in zip(workload.applications, planned.applications, strict=True):
        found[one.name] = rate_rps = one.rate_rps or 0.0
        for module, foreseen in zip(one.modules, known.modules, strict=True):
            if known.rows_vary(foreseen):
                part = module.rows_per_request / foreseen.rows_per_request
                found[f"{one.name}/{module.name}"] = rate_rps * part
    return found


def requests_of(counters: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """Requests of clients so far, by name, from a gateway's counters.

    Raises:
        InputError: it does not count by name.
    """
    if "asked" not in counters:
        raise InputError(
            "the gateway", "is of a version that does not count by name; stop and serve"
        )
    return {name: int(n) for kind in ("asked", "entries") for name, n in counters[kind].items()}


def entry_of_block(entries: Iterable[Entry], name: str, block: int, budget_us: int) -> Entry | None:
    """The entry that stands for one of another list: that of its name, else of its cut.

    None where none begins at that block.
    """
    own = [entry for entry in entries if entry.block == block]
    known = [entry for entry in own if entry.name == name]
    if known or not own:
        return known[0] if known else None
    return own[covering({n: entry.budget_us for n, entry in enumerate(own)}, budget_us)]


def offered_between(
    work: Workspace, workload: Workload, since: datetime, until: datetime
) -> list[tuple[datetime, str, float]]:
    """Minute, name and rate (requests/s) of all that was offered in a period."""
    with work.open(read_only=True) as warehouse:
        rows = rates_between(warehouse, since, until)
        at_entries = entry_rates_between(warehouse, since, until) if workload.has_entries else []
    found = [(row["minute"], str(row["model"]), float(row["offered_rps"])) for row in rows]
    listed = {model.name: model.entries for model in workload.models}
    for row in at_entries:
        place = row["entry"], row["block"], row["budget_us"]
        entry = entry_of_block(listed.get(row["model"], ()), *place)
        if entry is not None:
            name = demand_name(row["model"], entry.name)
            found.append((row["minute"], name, float(row["offered_rps"])))
    return found
