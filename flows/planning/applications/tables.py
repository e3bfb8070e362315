"""From profiles, cluster and workload to lines, and to the machines that each may use."""

from dataclasses import replace
from math import ceil

import numpy as np

from flows.planning.applications.lines import Lines, lines_to_plan
from flows.planning.applications.machines import Machine, ranked
from flows.planning.inputs import (
    NO_PERCENTS,
    ModelArrays,
    Problem,
    build_problem,
    gpu_prices,
    link_rps,
    moves_us,
)
from flows.planning.registry import Inputs
from flows.planning.solver.arrays import Floats
from flows.planning.solver.tolerances import ROUND_OFF_US
from triton_backend.contract.applications import received_bytes, sent_bytes
from triton_backend.contract.errors import InputError
from triton_backend.contract.workload import Workload
from triton_backend.scheduler.compiled import FAR


def demanded(inputs: Inputs) -> Lines:
    """Lines and paths, with the margins of the options.

    Raises:
        InputError: a margin is given for what is not in the workload.
    """
    workload, options = inputs.workload, inputs.options
    names = {one.name for one in (*workload.models, *workload.applications)}
    for name in options.slo_margins:
        if name not in names:
            where = f"option slo_margins.{name}"
            raise InputError(where, f"no model or application of the workload ({', '.join(names)})")
    return lines_to_plan(
        workload, options.objective, {name: options.margin(name) for name in names}
    )


def line_problem(inputs: Inputs, lines: Lines, percents: int = NO_PERCENTS) -> Problem:
    """The lines as a problem of models without limits and without gathering.

    `percents`: which sizes of classes cut into percents are there (`inputs.build_problem`).
    """
    models = tuple(
        replace(demand, batch_building_rate_rps=None, slo_us=FAR) for demand in lines.demands
    )
    free = replace(inputs, workload=Workload(models=models)).asking(slo_margin=0.0, slo_margins={})
    problem = build_problem(free, percents=percents)
    if not inputs.module_transfers:
        return problem
    asked = inputs.workload.applications
    rates = {a.name: a.normaliser(inputs.options.objective) for a in asked}

    def linked(model: ModelArrays) -> ModelArrays:
        """The same where vGPUs' parts of NICs carry what modules give each other, too."""
        ends = (
            float(_received(inputs, model.name)),
            sent_bytes(asked, model.name, lambda name: inputs.profiles[name].inputs, rates),
        )
        profile = inputs.profiles[model.name]
        links = [
            link_rps(
                profile,
                inputs.cluster,
                problem.classes[problem.types[kind][0]],
                problem.shares[kind],
                ends,
            )
            for kind in model.types.tolist()
        ]
        return replace(model, link_rps=np.array(links))

    return replace(problem, models=tuple(map(linked, problem.models)))


def input_times(inputs: Inputs, problem: Problem) -> list[Floats]:
    """[lines][batches] µs in which a batch's rows come from the modules before it.

    At the slowest NIC of the cluster: where modules will lie is not known. 0 where transfers
    between modules do not count.
    """
    if not inputs.module_transfers:
        return [np.zeros(model.batches) for model in problem.models]
    rate = min(inputs.cluster.nic_gbps(name) for name in problem.classes)
    return [
        moves_us(_received(inputs, model.name), range(1, model.batches + 1), rate)
        for model in problem.models
    ]


def _received(inputs: Inputs, model: str) -> int:
    return received_bytes(inputs.workload.applications, model, inputs.profiles[model].inputs)


def least_times(problem: Problem) -> list[int]:
    """[lines] the shortest run of a whole model at batch 1 (µs); at least 1."""
    return [
        max(1, ceil(float(model.latency_us[:, 0, model.blocks, :].min()) - ROUND_OFF_US))
        for model in problem.models
    ]


def machine_tables(inputs: Inputs, problem: Problem) -> list[tuple[Machine, ...]]:
    """By line, every whole model on every GPU and batch that is measured, in rank order."""
    tables: list[tuple[Machine, ...]] = []
    price = gpu_prices(inputs.cluster, inputs.options.objective)
    for model, moved_us in zip(problem.models, input_times(inputs, problem), strict=True):
        machines: list[Machine] = []
        for row, kind in enumerate(model.types.tolist()):
            number, divisor = problem.types[kind]
            for batch in range(1, model.batches + 1):
                duration_us = float(model.latency_us[row, 0, model.blocks, batch - 1])
                if np.isfinite(duration_us):
                    machines.append(
                        Machine(
                            batch=batch,
                            duration_us=duration_us + float(moved_us[batch - 1]),
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
