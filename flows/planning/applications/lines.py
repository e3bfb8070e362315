"""Models that applications run, and the paths through them that must fit the SLOs.

A model alone is an application of one module. Budgets are whole µs per line: a line is a model with
all that modules, and clients of the model itself, ask of it. Here: lines, paths, room. Not here:
what a budget buys.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from math import floor

import numpy as np

from flows.planning.solver.tolerances import ROUND_OFF_US, ROUNDING
from triton_backend.contract.applications import Application, Module
from triton_backend.contract.workload import ModelDemand, Workload, lines_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """One application over lines.

    Attributes:
        kept: part of the SLO that is not kept free as a margin.
        limit_us: SLO less margin.
        lines: of every module, in topological order, the number of its line.
        parents: of every module, the places of its parents in that order.
        alone: whether it stands for a model that clients call by itself.
    """

    application: Application
    kept: float
    limit_us: int
    lines: tuple[int, ...]
    parents: tuple[tuple[int, ...], ...]
    alone: bool

    @property
    def repeated(self) -> tuple[int, ...]:
        """Lines that several of its modules name."""
        return tuple(line for line in set(self.lines) if self.lines.count(line) > 1)

    def heads(self, times: Sequence[int]) -> list[int]:
        """Of every module, the longest way to it; `times` by line."""
        heads: list[int] = []
        for parents in self.parents:
            heads.append(max((heads[p] + times[self.lines[p]] for p in parents), default=0))
        return heads

    def tails(self, times: Sequence[int]) -> list[int]:
        """Of every module, the longest way from its end; `times` by line."""
        tails = [0] * len(self.lines)
        for at in range(len(self.lines) - 1, -1, -1):
            for parent in self.parents[at]:
                tails[parent] = max(tails[parent], tails[at] + times[self.lines[at]])
        return tails

    def longest(self, times: Sequence[int]) -> int:
        """The longest path; `times` by line."""
        heads = self.heads(times)
        return max(head + times[line] for head, line in zip(heads, self.lines, strict=True))

    def critical(self, times: Sequence[int]) -> tuple[int, ...]:
        """The lines of one longest path."""
        heads = self.heads(times)
        ends = [head + times[line] for head, line in zip(heads, self.lines, strict=True)]
        at, path = int(np.argmax(ends)), list[int]()
        while True:
            path.append(self.lines[at])
            if not self.parents[at]:
                return tuple(dict.fromkeys(path))
            at = max(self.parents[at], key=ends.__getitem__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """The problem: lines by number, and the graphs over them."""

    demands: tuple[ModelDemand, ...]
    graphs: tuple[Graph, ...]

    def __len__(self) -> int:
        return len(self.demands)

    def fit(self, times: Sequence[int]) -> bool:
        """True if every path keeps its limit."""
        return all(graph.longest(times) <= graph.limit_us for graph in self.graphs)

    def room(self, times: Sequence[int]) -> list[int]:
        """Of every line, the most that its time may be while the others stay as they are."""
        room = [max(graph.limit_us for graph in self.graphs)] * len(self)
        for graph in self.graphs:
            ways = zip(graph.lines, graph.heads(times), graph.tails(times), strict=True)
            for line, head, tail in ways:
                room[line] = min(room[line], graph.limit_us - head - tail)
            for line in graph.repeated:
                room[line] = min(room[line], _room_of_repeated(graph, times, line, room[line]))
        return room

    def filled(self, times: Sequence[int]) -> list[int]:
        """Times resized so that they fill the limits; sums on any path keep them.

        A line of time l on paths of at most n grows to l · limit / n (paper: Algorithm 2, line 19):
        on a path P, no module's n is less than the length of P.
        """
        filled = [10**15] * len(self)
        for graph in self.graphs:
            ways = zip(graph.lines, graph.heads(times), graph.tails(times), strict=True)
            for line, head, tail in ways:
                through = max(1, head + times[line] + tail)
                filled[line] = min(filled[line], times[line] * graph.limit_us // through)
        return filled

    def slos_us(self, budgets_us: Sequence[int]) -> list[int]:
        """Of every line, its budget with the margin that its applications keep free, as an SLO."""
        slos = [demand.slo_us for demand in self.demands]
        for graph in self.graphs:
            for line in () if graph.alone else graph.lines:
                slos[line] = min(slos[line], floor(budgets_us[line] / graph.kept + ROUNDING))
        return slos

    def rows_at_once(self, line: int) -> float:
        """The fewest rows, by their mean, that a request of an application gives a line."""
        return min(
            module.rows_per_request
            for graph in self.graphs
            for module, its in zip(graph.application.ordered(), graph.lines, strict=True)
            if its == line
        )


def _room_of_repeated(graph: Graph, times: Sequence[int], line: int, most: int) -> int:
    """The most time of a line that several modules name, which may stand on one path."""

    def too_long(time_us: int) -> bool:
        return graph.longest([*times[:line], time_us, *times[line + 1 :]]) > graph.limit_us

    return bisect_left(range(1, most + 1), True, key=too_long) if most >= 0 else most  # noqa: FBT003


def lines_to_plan(workload: Workload, objective: str, margin_of: dict[str, float]) -> Lines:
    """The lines and graphs of a workload.

    `margin_of` says which part of an SLO is kept free, by name.
    """
    demands = lines_of(workload, objective)
    numbers = {demand.name: number for number, demand in enumerate(demands)}
    alone = tuple(
        Application(
            name=model.name,
            slo_us=model.slo_us,
            modules=(Module(name=model.name, model=model.name),),
        )
        for model in workload.models
    )
    return Lines(
        demands=demands,
        graphs=tuple(
            _graph(application, numbers, margin_of[application.name], alone=number < len(alone))
            for number, application in enumerate((*alone, *workload.applications))
        ),
    )


def _graph(
    application: Application, numbers: dict[str, int], margin: float, *, alone: bool
) -> Graph:
    modules = application.ordered()
    place = {module.name: at for at, module in enumerate(modules)}
    return Graph(
        application=application,
        kept=1 - margin,
        limit_us=int((1 - margin) * application.slo_us + ROUND_OFF_US),
        lines=tuple(numbers[module.model] for module in modules),
        parents=tuple(tuple(place[p] for p in module.parents) for module in modules),
        alone=alone,
    )
