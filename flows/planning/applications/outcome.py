"""From budgets and machines to what a planner answers with."""

from collections.abc import Sequence
from dataclasses import replace
from math import ceil

import numpy as np

from flows.planning.applications.lines import Lines
from flows.planning.applications.machines import MachineSet
from flows.planning.applications.tables import least_times
from flows.planning.certificate import objective_of
from flows.planning.inputs import Problem
from flows.planning.placement import whole_gpus
from flows.planning.registry import (
    Inputs,
    Outcome,
    PlannedPipeline,
    PlannedStage,
    Trace,
)
from flows.planning.solver.tolerances import ROUNDING
from triton_backend.contract.applications import ApplicationPlan, check_tensors
from triton_backend.contract.errors import InfeasibleError
from triton_backend.contract.plan import DEFAULT_POLICY
from triton_backend.contract.tensors import TensorSpec
from triton_backend.contract.units import us_to_ms


def answer(
    decided: Outcome, inputs: Inputs, lines: Lines, problem: Problem, times: Sequence[int]
) -> Outcome:
    """The decision, with budgets that fill the limits up.

    Args:
        decided: pipelines of lines, and what these are promised.
        inputs: what was asked.
        options: how.
        lines: paths and limits.
        problem: the lines as models.
        times: by line, what its slowest way takes with gathering (µs).
    """
    budgets = [max(time, budget) for time, budget in zip(times, lines.filled(times), strict=True)]
    level = 1.0 if inputs.options.objective != "throughput" else decided.objective.value
    least = least_times(problem)

    def tensors_of(model: str) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
        profile = inputs.profiles[model]
        return profile.inputs, profile.outputs

    return replace(
        decided,
        lines=tuple(
            replace(demand, slo_us=slo_us)
            for demand, slo_us in zip(lines.demands, lines.slos_us(budgets), strict=True)
        ),
        applications=tuple(
            ApplicationPlan(
                application=replace(
                    graph.application,
                    rate_rps=level * graph.application.normaliser(inputs.options.objective),
                ),
                budgets_us={
                    module.name: budgets[line]
                    for module, line in zip(graph.application.ordered(), graph.lines, strict=True)
                },
                least_latency_us=graph.longest(least),
                inputs=check_tensors(graph.application, tensors_of),
            )
            for graph in lines.graphs
            if not graph.alone
        ),
    )


def decided_by_sets(
    problem: Problem,
    lines: Lines,
    sets: Sequence[MachineSet],
    bound: float,
    trace: Trace,
    gathering: str,
) -> Outcome:
    """Machines of every line, which the cluster must have, as a decision at least cost.

    Raises:
        InfeasibleError: the cluster has fewer GPUs; the message names the class.
    """
    rates = [demand.rate_rps or 0.0 for demand in lines.demands]
    made = pipelines_of_sets(problem, sets, rates)
    require_gpus(problem, made)
    cost = sum(served.cost for served in sets)
    return Outcome(
        pipelines=made,
        promised_rps=tuple(rates),
        objective=objective_of("cost", -cost, -min(cost, bound)),
        trace=trace,
        policy="throughput-cost" if gathering.startswith("tc") else DEFAULT_POLICY,
        gathering_rule=gathering,
    )


def pipelines_of_sets(
    problem: Problem, sets: Sequence[MachineSet], rates: Sequence[float]
) -> tuple[PlannedPipeline, ...]:
    """Groups of machines as pipelines of one stage; clients' rate fills the highest ranks first."""
    made: list[PlannedPipeline] = []
    for line, served in enumerate(sets):
        left = rates[line]
        for group in served.groups:
            machine = group.machine
            vgpus = ceil(group.machines * machine.divisor * (1 - ROUNDING))
            rate = min(left, group.rate_rps)
            left -= rate
            stage = PlannedStage(
                blocks=(0, problem.models[line].blocks),
                gpu_class=machine.gpu_class,
                divisor=machine.divisor,
                vgpus=vgpus,
            )
            made.append(
                PlannedPipeline(
                    model=line,
                    batch=machine.batch,
                    rate_rps=rate,
                    stages=(stage,),
                    occupied_vgpus=group.machines * machine.divisor,
                )
            )
    return tuple(made)


def require_gpus(problem: Problem, pipelines: Sequence[PlannedPipeline]) -> None:
    """Check that the cluster has the GPUs.

    Raises:
        InfeasibleError: it has fewer; the message names the class.
    """
    needed = whole_gpus(
        (stage.gpu_class, pipeline.model, stage.divisor, stage.vgpus)
        for pipeline in pipelines
        for stage in pipeline.stages
    )
    for gpu_class, there in zip(problem.classes, np.asarray(problem.gpus).tolist(), strict=True):
        if needed[gpu_class] > there:
            raise InfeasibleError(
                f"gpu_classes.{gpu_class}",
                f"the plan takes {needed[gpu_class]} GPUs, the cluster has {there};"
                " --gathering fixed plans within limits",
            )


def out_of_reach(lines: Lines, problem: Problem) -> InfeasibleError:
    """An error for the application farthest beyond its SLO, with its least latency."""
    least = least_times(problem)
    graph = max(lines.graphs, key=lambda graph: graph.longest(least) / graph.limit_us)
    name = graph.application.name
    what = f"model {name!r}" if graph.alone else f"application {name!r}"
    limit = f"{us_to_ms(graph.limit_us):.3f} ms of {us_to_ms(graph.application.slo_us):.3f} ms"
    latency = f"{us_to_ms(graph.longest(least)):.3f} ms"
    if graph.longest(least) > graph.limit_us:
        return InfeasibleError(what, f"SLO less margin is {limit}, its least latency is {latency}")
    there = zip(problem.gpus.tolist(), problem.classes, strict=True)
    gpus = ", ".join(f"{count} of {gpu_class}" for count, gpu_class in there)
    modules = "it" if graph.alone else f"its {len(graph.application.modules)} modules together"
    return InfeasibleError(
        what,
        f"its least latency, {latency}, is within SLO less margin, {limit};"
        f" the GPUs are too few for {modules}: {gpus}",
    )
