"""How the planners of the paper and of its comparison split the latency among modules.

Every strategy answers with budgets by line (µs) that keep all paths, from the machines of every line in
rank order. `least_times` are the shortest worst-case latencies at full rate.

    latency_cost   Algorithm 2: from the shortest configuration of every line, switch by switch, the one
                   that saves most cost per latency. As printed it runs for ever (a switch back has the
                   same ratio), so only cheaper configurations are looked at; line 13 tests the new
                   configuration, line 15 stores it.
    throughput     the same, but the switch to the configuration of the highest throughput (Picc-tb)
    saving         the same, but the switch that saves most (InferLine)
    duration       in proportion to the duration of the configuration of the highest throughput whose
                   share fits (Scrooge)
    even           the limit through the number of modules on the longest path (Clipper)
"""

from collections.abc import Callable, Sequence
from math import ceil, inf

from flows.planning.applications.lines import Lines
from flows.planning.applications.machines import Machine

Tables = Sequence[tuple[Machine, ...]]
STRATEGIES = ("latency_cost", "throughput", "saving", "duration", "even")
_EPS = 1e-9


def switched(
    lines: Lines, tables: Tables, rates: Sequence[float], rule: str, strategy: str
) -> tuple[list[int], list[Machine]] | None:
    """Budgets and configurations by Algorithm 2 or one of its variants; None where none fits."""

    def latency(line: int, machine: Machine) -> int:
        return ceil(machine.latency_us(rule, rates[line], machine.rate_rps) - 1e-3)

    current = [
        min(table, key=lambda m: (latency(line, m), m.unit_cost))
        for line, table in enumerate(tables)
    ]
    times = [latency(line, machine) for line, machine in enumerate(current)]
    if not lines.fit(times):
        return None
    value = _VALUES[strategy]
    while True:
        room = lines.room(times)
        best: tuple[tuple[float, float], int, Machine] | None = None
        for line, table in enumerate(tables):
            for machine in table:
                saved = (current[line].unit_cost - machine.unit_cost) * rates[line]
                longer = latency(line, machine) - times[line]
                if saved <= _EPS or times[line] + longer > room[line]:
                    continue
                worth = (value(saved, longer, machine), saved)
                if best is None or worth > best[0]:
                    best = (worth, line, machine)
        if best is None:
            return times, current
        _, line, machine = best
        current[line], times[line] = machine, latency(line, machine)


def _per_latency(saved: float, longer: int, machine: Machine) -> float:
    del machine
    return inf if longer <= 0 else saved / longer


def _throughput(saved: float, longer: int, machine: Machine) -> float:
    del saved, longer
    return 1 / machine.unit_cost


def _saving(saved: float, longer: int, machine: Machine) -> float:
    del longer, machine
    return saved


_VALUES: dict[str, Callable[[float, int, Machine], float]] = {
    "latency_cost": _per_latency,
    "throughput": _throughput,
    "saving": _saving,
}


def even_budgets(lines: Lines) -> list[int]:
    """The limit of every application through the number of modules on its longest path."""
    budgets = [10**15] * len(lines)
    for graph in lines.graphs:
        depth = graph.longest([1] * len(lines))
        for line in graph.lines:
            budgets[line] = min(budgets[line], graph.limit_us // depth)
    return budgets


def by_duration(lines: Lines, tables: Tables, rule: str) -> list[int] | None:
    """In proportion to the duration of each line's configuration of the highest throughput.

    Where a share does not hold its own configuration, the line takes the next lower throughput.
    """
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
