"""How the systems compared with Piccolo split an application's latency among its modules.

    saving         Algorithm 2's switches, but the one that saves most (InferLine)
    by_duration    in proportion to the duration of the configuration of the highest throughput
                   whose share fits (Scrooge)
    even           the limit through the number of modules on the longest path (Clipper)

Each is a `Split` of `flows.planning.applications.splitting`.
"""

from collections.abc import Sequence
from functools import partial
from math import ceil

from flows.planning.applications.lines import Lines
from flows.planning.applications.machines import Machine
from flows.planning.applications.splitting import Split, Tables, by_switches


def _saved(saved: float, longer: int, machine: Machine) -> float:
    del longer, machine
    return saved


saving: Split = partial(by_switches, value=_saved)
"""Budgets by switches that save most."""


def even(lines: Lines, tables: Tables, rates: Sequence[float], rule: str) -> Sequence[int]:
    """The limit of every application through the number of modules on its longest path."""
    del tables, rates, rule
    budgets = [10**15] * len(lines)
    for graph in lines.graphs:
        depth = graph.longest([1] * len(lines))
        for line in graph.lines:
            budgets[line] = min(budgets[line], graph.limit_us // depth)
    return budgets


def by_duration(
    lines: Lines, tables: Tables, rates: Sequence[float], rule: str
) -> Sequence[int] | None:
    """In proportion to the duration of each line's configuration of the highest throughput.

    Where a share does not hold its own configuration, the line takes the next lower throughput.
    """
    del rates
    orders = [sorted(table, key=lambda m: (m.unit_cost, m.duration_us)) for table in tables]
    at = [0] * len(tables)
    while True:
        chosen = [order[number] for order, number in zip(orders, at, strict=True)]
        budgets = lines.filled([ceil(machine.duration_us) for machine in chosen])
        short = [
            line
            for line, machine in enumerate(chosen)
            if machine.latency_us(rule, machine.rate_rps, machine.rate_rps) > budgets[line]
        ]
        if not short:
            return budgets
        movable = [line for line in short if at[line] + 1 < len(orders[line])] or [
            line for line in range(len(at)) if at[line] + 1 < len(orders[line])
        ]
        if not movable:
            return None
        line = max(movable, key=lambda number: chosen[number].duration_us)
        at[line] += 1
