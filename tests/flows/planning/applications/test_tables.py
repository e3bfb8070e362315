"""Machines of lines: batches that the rows of a task fill."""

from dataclasses import replace

import pytest

from flows.planning.verify.numbers import verify_plan
from scripts.golden.problems import Made, named
from triton_backend.contract.applications import Application, Module
from triton_backend.simulator.offered import Deterministic
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions


def with_fixed_rows(made: Made) -> Made:
    """The problem where every task has as many rows as it has on average."""

    def fixed(module: Module) -> Module:
        return replace(module, max_rows=round(module.rows_per_request))

    def of(application: Application) -> Application:
        return replace(application, modules=tuple(map(fixed, application.modules)))

    workload = made.workload
    return replace(
        made, workload=replace(workload, applications=tuple(map(of, workload.applications)))
    )


@pytest.mark.parametrize("number", range(3))
def test_tasks_of_fixed_rows_fill_the_batches_of_their_stages(number: int) -> None:
    made = with_fixed_rows(named(f"applications-padded-{number:02}").make())
    plan = made.plan()
    assert verify_plan(plan, made.profiles) == []
    offered = SimOptions(arrivals=Deterministic(), duration_s=10, keep_uses=False)
    assert simulate(plan, offered).least_attainment >= 0.995
    for module in plan.applications[0].application.modules:
        rows = round(module.rows_per_request)
        for pipeline in plan.model(module.model).pipelines:
            assert rows % pipeline.batch == 0 or pipeline.batch % rows == 0
