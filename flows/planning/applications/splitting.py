"""How the latency of an application is split among its modules (Piccolo, Algorithm 2).

From the shortest configuration of every line, switch by switch, the one that is worth most, until
none saves and fits. As printed the algorithm runs for ever (a switch back has the same ratio), so
only cheaper configurations are looked at; line 13 tests the new configuration, line 15 stores it.

    latency_cost   a switch is worth what it saves per latency (Algorithm 2)
    throughput     a switch is worth the throughput of its configuration (Picc-tb)
"""

from collections.abc import Callable, Sequence
from functools import partial
from math import ceil, inf

from flows.planning.applications.lines import Lines
from flows.planning.applications.machines import Machine
from flows.planning.solver.tolerances import ROUNDING

Tables = Sequence[tuple[Machine, ...]]
"""Machines of every line, in rank order."""
Split = Callable[[Lines, Tables, Sequence[float], str], Sequence[int] | None]
"""Budgets by line (us) that keep all paths; None where none do.

From lines, their machines, their rates (rows/s) and how worst-case latency is counted (`machines`).
"""
Worth = Callable[[float, int, Machine], float]
"""A switch: price saved, latency added (us), the machine switched to."""


def by_switches(
    lines: Lines, tables: Tables, rates: Sequence[float], rule: str, value: Worth
) -> Sequence[int] | None:
    """Budgets that switches of the highest worth end with, enlarged to fill all paths."""
    found = switched(lines, tables, rates, rule, value)
    return None if found is None else lines.filled(found[0])


def switched(
    lines: Lines, tables: Tables, rates: Sequence[float], rule: str, value: Worth
) -> tuple[list[int], list[Machine]] | None:
    """Latencies (us) and configurations of every line after the last switch.

    None where none fits.
    """

    def latency(line: int, machine: Machine) -> int:
        return ceil(machine.latency_us(rule, rates[line], machine.rate_rps) - 1e-3)

    current = [
        min(table, key=lambda m: (latency(line, m), m.unit_cost))
        for line, table in enumerate(tables)
    ]
    times = [latency(line, machine) for line, machine in enumerate(current)]
    if not lines.fit(times):
        return None
    while True:
        room = lines.room(times)
        best: tuple[tuple[float, float], int, Machine] | None = None
        for line, table in enumerate(tables):
            for machine in table:
                saved = (current[line].unit_cost - machine.unit_cost) * rates[line]
                longer = latency(line, machine) - times[line]
                if saved <= ROUNDING or times[line] + longer > room[line]:
                    continue
                worth = (value(saved, longer, machine), saved)
                if best is None or worth > best[0]:
                    best = (worth, line, machine)
        if best is None:
            return times, current
        _, line, machine = best
        current[line], times[line] = machine, latency(line, machine)


def per_latency(saved: float, longer: int, machine: Machine) -> float:
    """The saving per added latency."""
    del machine
    return inf if longer <= 0 else saved / longer


def _per_unit(saved: float, longer: int, machine: Machine) -> float:
    del saved, longer
    return 1 / machine.unit_cost


latency_cost: Split = partial(by_switches, value=per_latency)
"""Budgets by Algorithm 2."""
throughput: Split = partial(by_switches, value=_per_unit)
"""Budgets by switches to the configurations of the highest throughput."""
