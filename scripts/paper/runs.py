"""Many simulations at once, a process per core: load factors and attainments of plans.

A `Run` is one plan under one set of options; what is asked of it is a function at the top level of
a module, so that another process can do it. Results come in the order of the runs.
"""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self, TypeVar

from triton_backend.contract.plan import ModelPlan, Plan
from triton_backend.contract.units import US_PER_S, us_to_s
from triton_backend.scheduler.policies.registry import SIMULATOR_ONLY
from triton_backend.simulator.goodput import ATTAINMENT, GRID
from triton_backend.simulator.results import SimResult
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions, rates_of

Answer = TypeVar("Answer")

COUNT_MARGIN = 0.95  # a draw offers at least so much of its mean: more than four deviations


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A plan, and how it is loaded."""

    plan: Plan
    options: SimOptions

    def at(self, load_factor: float) -> "Run":
        """The same at another load."""
        return replace(self, options=replace(self.options, load_factor=load_factor))


class Found(NamedTuple):
    """The highest load factor of a run, and its exact simulations' offered and late requests."""

    load_factor: float
    offered: int
    late: int


@dataclass(slots=True)
class Runner:
    """A pool of processes; use it as a context manager."""

    processes: int | None = None  # a core each
    pool: ProcessPoolExecutor = field(init=False)

    def __enter__(self) -> Self:
        self.pool = ProcessPoolExecutor(self.processes or os.cpu_count())
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.shutdown(cancel_futures=True)

    def map(self, ask: Callable[[Run], Answer], runs: Iterable[Run]) -> list[Answer]:
        """Ask every run."""
        return list(self.pool.map(ask, runs, chunksize=2))


def highest_load(run: Run) -> Found:
    """Highest load factor of `GRID` at which every loaded model attains 99 %; 0 where none does.

    Searched from above, like `sim.goodput`, but loads that the vGPUs cannot carry are not tried.
    """
    offered = late = 0
    for load_factor in GRID:
        if beyond_vgpus(run.at(load_factor)):
            continue
        result = _simulate(run.at(load_factor))
        offered += len(result.requests)
        if run.options.policy not in SIMULATOR_ONLY:
            late += sum(model.late for model in result.models)
        if min(model.attainment for model in result.models) >= ATTAINMENT:
            return Found(load_factor, offered, late)
    return Found(0.0, offered, late)


def attainment(run: Run) -> float:
    """Attainment over all loaded models."""
    return _simulate(run).attainment


def utilisation(run: Run) -> dict[str, float]:
    """Busy share of each class's GPUs."""
    return _simulate(run).utilisation


def beyond_vgpus(run: Run) -> bool:
    """True if a loaded model is offered more than its vGPUs can run at their best batch sizes."""
    options = run.options
    return any(
        COUNT_MARGIN * ATTAINMENT * rate * options.duration_s
        > _most(run.plan, run.plan.model(name), options)
        for name, rate in rates_of(run.plan, options).items()
    )


def _most(plan: Plan, model: ModelPlan, options: SimOptions) -> float:
    """More requests than a model's vGPUs can answer in a run, in time or not."""
    seconds = options.duration_s + us_to_s(model.slo_us)
    return sum(
        min(
            plan.pool_of(stage).vgpus
            * max(
                batch + batch * seconds * US_PER_S / latency
                for batch, latency in enumerate(stage.latency_us_by_batch[: pipeline.batch], 1)
            )
            for stage in pipeline.stages
        )
        for pipeline in model.pipelines
    )


def _simulate(run: Run) -> SimResult:
    return simulate(run.plan, replace(run.options, keep_uses=False))
