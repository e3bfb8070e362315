"""Problems and plans of the published evaluation, for the simulator's benchmark and reproduction.

A cell is one model of one published workload on one cluster: 6 groups x 4 clusters x 3 models.
Plans come from our planner and are kept in memory only.
"""

import csv
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from flows.planning import PlanOptions, make_plan
from flows.preparation.profiling.csv_tables import read_tables
from triton_backend.contract.arrivals import gamma_us
from triton_backend.contract.cluster import Cluster
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.contract.profiles import ModelProfile
from triton_backend.contract.units import US_PER_S, s_to_us
from triton_backend.contract.workload import ModelDemand, Workload
from triton_backend.scheduler.admission import capacity_rps
from triton_backend.simulator.goodput import ATTAINMENT, GRID
from triton_backend.simulator.scenario import SimOptions, rates_of

GROUPS = tuple(f"G{i}" for i in range(1, 7))
CLUSTERS = tuple(f"HC{i}-L" for i in range(1, 5))
PLANNERS = ("pool", "dart-r", "no-partitioning")
OVERFLOW = "pool --overflow"  # a plan of `pool` whose free GPUs run whole models beside it


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One model of one plan, offered a share of what the `pool` plan promises."""

    group: str
    cluster: str
    model: str
    plan: Plan
    reference: Plan


@dataclass(slots=True, kw_only=True)
class PaperData:
    """The folder of inputs, read, and the plans made of it so far."""

    folder: Path
    profiles: dict[str, ModelProfile]
    plans: dict[tuple[Any, ...], Plan] = field(default_factory=dict[tuple[Any, ...], Plan])

    @classmethod
    def read(cls, folder: Path) -> "PaperData":
        """Read the tables of a folder such as `data/ppipe`."""
        if not (folder / "block_latency_us.csv").exists():
            raise InputError(str(folder), "has no block_latency_us.csv; give the folder of tables")
        profiles, _ = read_tables(folder)
        return cls(folder=folder, profiles=profiles)

    def cluster(self, name: str) -> Cluster:
        """A cluster of the folder."""
        return Cluster.from_dict(_yaml(self.folder / "clusters" / f"{name}.yaml"))

    def workload(self, name: str) -> Workload:
        """A workload of the folder."""
        return Workload.from_dict(_yaml(self.folder / "workloads" / f"{name}.yaml"))

    def slos_us(self) -> dict[str, int]:
        """SLO of every model: 5 x its batch-1 latency on an L4."""
        with (self.folder / "slo_us.csv").open(newline="", encoding="utf-8") as file:
            return {row["model"]: int(float(row["slo_us"])) for row in csv.DictReader(file)}

    def group_plan(self, group: str, cluster: str, planner: str) -> Plan:
        """Plan of one published problem of three models."""
        key = (group, cluster, planner)
        if key not in self.plans:
            workload = self.workload(f"{group}-{cluster}")
            options = (
                PlanOptions(own={"overflow": True})
                if planner == OVERFLOW
                else PlanOptions(planner=planner)
            )
            self.plans[key] = make_plan(self.profiles, self.cluster(cluster), workload, options)
        return self.plans[key]

    def single_plan(self, model: str, cluster: Cluster, slo_us: int, options: PlanOptions) -> Plan:
        """Plan of one model alone; its batch-building rate is its no-partitioning throughput."""
        workload = Workload(models=(ModelDemand(name=model, slo_us=slo_us, weight=1.0),))
        return make_plan(self.profiles, cluster, workload, options)

    def cells(self, planner: str) -> Iterator[Cell]:
        """All 72 cells."""
        for group in GROUPS:
            for cluster in CLUSTERS:
                plan = self.group_plan(group, cluster, planner)
                reference = self.group_plan(group, cluster, "pool")
                for model in plan.models:
                    yield Cell(
                        group=group,
                        cluster=cluster,
                        model=model.name,
                        plan=plan,
                        reference=reference,
                    )


def ideal_load(cell: Cell, seed: int, shape: float = 1.0) -> float:
    """Highest load factor of a single server that loses no time and knows every deadline.

    Its rate is what the vGPUs of the cell's model run in whole batches, links apart; a request can
    wait as long as its SLO leaves after the shortest path of a planned batch. It knows the very
    instants that `simulate` draws for gamma gaps of `shape`. Smaller batches have more slack, and
    the first requests find every vGPU idle, so a policy may be a little better.
    """
    model = cell.plan.model(cell.model)
    number = cell.plan.models.index(model)
    slack_us = model.slo_us - min(pipeline.latency_us for pipeline in model.pipelines)
    service_us = US_PER_S / capacity_rps(cell.plan, replace(model, throughput_rps=0.0))
    options = SimOptions(reference=cell.reference, models=(cell.model,))
    for load_factor in GRID:
        rate_rps = rates_of(cell.plan, replace(options, load_factor=load_factor))[cell.model]
        rng = np.random.default_rng([seed, number])
        arrivals_us = gamma_us(rate_rps, s_to_us(options.duration_s), shape, rng)
        if _ideal_attainment(service_us, slack_us, arrivals_us) >= ATTAINMENT:
            return load_factor
    return 0.0


def _ideal_attainment(service_us: float, slack_us: float, arrivals_us: NDArray[np.int64]) -> float:
    """Share that a single server serves in time: the M/D/1 queue with impatience.

    Requests of equal size that can wait `slack_us` at most: a request is served exactly if the
    work before it is done by then.
    """
    work_us, last_us, served = 0.0, 0, 0
    for now_us in arrivals_us.tolist():
        work_us = max(0.0, work_us - (now_us - last_us))
        last_us = now_us
        if work_us <= slack_us:
            work_us += service_us
            served += 1
    return served / max(1, len(arrivals_us))


def _yaml(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text(encoding="utf-8"))
