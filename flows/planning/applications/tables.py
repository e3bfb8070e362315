"""From profiles, cluster and workload to lines, and to the machines that each may use."""

from dataclasses import replace
from math import ceil

import numpy as np

from flows.planning.applications.lines import Lines, lines_to_plan
from flows.planning.applications.machines import Machine, ranked
from flows.planning.inputs import Problem, build_problem
from flows.planning.registry import Inputs, PlanOptions
from flows.planning.solver.arrays import Floats
from triton_backend.contract.errors import InputError
from triton_backend.contract.workload import Workload

_NO_LIMIT_US = 10**12


def demanded(workload: Workload, options: PlanOptions) -> Lines:
    """Lines and paths, with the margins of the options.

    Raises:
        InputError: a margin is given for what is not in the workload.
    """
    asked = [*workload.models, *workload.applications]
    names = {one.name for one in asked}
    for name in options.slo_margins:
        if name not in names:
            where = f"option slo_margins.{name}"
            raise InputError(where, f"no model or application of the workload ({', '.join(names)})")
    return lines_to_plan(
        workload, options.objective, {name: options.margin(name) for name in names}
    )


def line_problem(inputs: Inputs, options: PlanOptions, lines: Lines) -> Problem:
    """The lines as a problem of models without limits and without gathering."""
    models = tuple(
        replace(demand, batch_building_rate_rps=None, slo_us=_NO_LIMIT_US)
        for demand in lines.demands
    )
    free = replace(options, slo_margin=0.0, slo_margins={})
    return build_problem(inputs.profiles, inputs.cluster, Workload(models=models), free)


def least_times(problem: Problem) -> list[int]:
    """[lines] the shortest run of a whole model at batch 1 (µs); at least 1."""
    return [
        max(1, ceil(float(model.latency_us[:, 0, model.blocks, :].min()) - 1e-6))
        for model in problem.models
    ]


def machine_tables(problem: Problem, price: Floats) -> list[tuple[Machine, ...]]:
    """By line, every whole model on every GPU and batch that is measured, in rank order."""
    tables: list[tuple[Machine, ...]] = []
    for model in problem.models:
        machines: list[Machine] = []
        for row, kind in enumerate(model.types.tolist()):
            number, divisor = problem.types[kind]
            for batch in range(1, model.batches + 1):
                duration_us = float(model.latency_us[row, 0, model.blocks, batch - 1])
                if np.isfinite(duration_us):
                    machines.append(
                        Machine(
                            batch=batch,
                            duration_us=duration_us,
                            rate_rps=divisor * batch * 1e6 / duration_us,
                            price=float(price[number]),
                            gpu_class=problem.classes[number],
                            divisor=divisor,
                        )
                    )
        tables.append(ranked(machines))
    return tables


def filled_by_tasks(tables: list[tuple[Machine, ...]], lines: Lines) -> list[tuple[Machine, ...]]:
    """The tables without machines whose batches the rows of a task do not fill.

    Where a task has always as many rows, they come at once: batches of 3 for pairs hold a pair, or
    part one and wait for the next, and carry less than they are planned for. A batch is a multiple
    of the rows, or a part of them.
    """
    found = list(tables)
    for graph in lines.graphs:
        for module, line in zip(graph.application.ordered(), graph.lines, strict=True):
            rows = float(module.rows_per_request)
            if rows == module.max_rows and rows.is_integer():
                found[line] = tuple(
                    m for m in found[line] if not (m.batch % rows and rows % m.batch)
                )
    return found
