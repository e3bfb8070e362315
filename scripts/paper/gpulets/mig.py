"""MIG slices with MPS inside: highest rates of a mix on A100s, from ParvaGPU's published table.

    .venv/bin/python scripts/paper/gpulets/mig.py --data DIR [--gpus 1,4,16] [--seconds 20]
        [--tables FOLDER]
        [--out FILE] [--warehouse FILE]

DIR holds `parvagpu_a100_mig_mps.csv`: 11 models x MIG size x batch x processes by MPS in the slice,
measured on an A100 (a run takes batch / requests/s of one process). `--tables` writes it as tables
that `poolpipe profiles import` reads, and ends.

All models have equal weights; an SLO is twice the latency of batch 32 on a whole card (7g, one
process), of which a tenth is kept free. Compared: all divisions and up to four processes in a
slice; one process in each; whole cards only (7g) with and without MPS; and the greedy of the
table's paper as far as its text fixes it: per model the slice and the process count with the most
requests/s per seventh, as many of them as fit the rate, the rest on the smallest slice that carries
it, slices placed largest first, first fit.
"""

import argparse
import csv
import math
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from flows.clock import Stopwatch
from flows.planning import PlanOptions, make_plan
from flows.planning.verify.numbers import verify_plan
from flows.preparation.profiling.csv_tables import write_tables
from scripts.benchmarks.figures import Figure, add_destinations, conclude
from triton_backend.contract.cluster import Cluster, GpuClass, NodeGroup
from triton_backend.contract.errors import InfeasibleError
from triton_backend.contract.plan import Plan
from triton_backend.contract.profiles import LatencyCell, ModelProfile, profile_from_cells
from triton_backend.contract.shares import (
    MIG_COMPUTE,
    MOST_PROCESSES,
    SOLO,
    Mig,
    MigCell,
    fits_card,
    mig_cell,
    mig_share,
)
from triton_backend.contract.workload import ModelDemand, Workload
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions

TABLE = "parvagpu_a100_mig_mps.csv"
CARD = "A100-40GB"
GPU = "A100"
WHOLE = "7g.40gb"
SLO_BATCH = 32
MARGIN = 0.1
LOAD, SIMULATED_S = 0.9, 20.0
CLOSE = 1e-4  # of the greedy's highest rate

Profiles = dict[str, ModelProfile]


def read_profiles(data: Path) -> Profiles:
    """Every model of the table; what a run of one of n processes in a slice takes."""
    cells: dict[str, list[LatencyCell]] = {}
    with (data / TABLE).open() as lines:
        for row in csv.DictReader(lines):
            compute, processes = int(row["mig_gpcs"]), int(row["mps_processes"])
            if compute not in MIG_COMPUTE or processes > MOST_PROCESSES:
                continue
            batch = int(row["batch"])
            latency_us = batch * 1e6 / float(row["throughput_per_process_rps"])
            share = mig_share(MigCell(compute, processes))
            cell = LatencyCell(GPU, share, SOLO, 0, batch, latency_us)
            cells.setdefault(row["model"], []).append(cell)
    return {name: profile_from_cells(name, own, ())[0] for name, own in sorted(cells.items())}


def cluster(gpus: int, mig: Mig) -> Cluster:
    """Cards on one node."""
    return Cluster(
        name="mig",
        gpu_classes=(GpuClass(name=GPU, vgpu_divisors=(), mig=mig),),
        nodes=(NodeGroup(count=1, gpu_class=GPU, gpus=gpus, nic_gbps=100),),
    )


def workload(profiles: Profiles) -> Workload:
    """All models at equal weights, with SLOs as gpulets sets them."""
    demands: list[ModelDemand] = []
    for name, profile in profiles.items():
        table = profile.table(GPU, mig_share(MigCell(7, 1)), SOLO)
        assert table is not None
        slo_us = round(2 * float(table.latency_us[0, SLO_BATCH - 1]))
        demands.append(ModelDemand(name=name, slo_us=slo_us, weight=1))
    return Workload(models=tuple(demands))


def ways(profiles: Profiles, asked: Workload) -> dict[str, dict[int, float]]:
    """Requests/s of one model on a slice of each size, with the best processes and batch."""
    found: dict[str, dict[int, float]] = {}
    for demand in asked.models:
        best = found.setdefault(demand.name, {})
        for key, table in profiles[demand.name].tables.items():
            cell = mig_cell(key.share)
            assert cell is not None
            for batch in table.batches:
                latency_us = math.ceil(float(table.latency_us[0, batch - 1]))
                if 2 * latency_us <= (1 - MARGIN) * demand.slo_us:
                    rate = cell.processes * batch * 1e6 / latency_us
                    best[cell.compute] = max(best.get(cell.compute, 0.0), rate)
    return found


def slices_for(best: Mapping[int, float], rate: float) -> list[int]:
    """Slices of one model by the greedy."""
    size = max(best, key=lambda compute: best[compute] / compute)
    count = math.floor(rate / best[size])
    left = rate - count * best[size]
    rest = [min(c for c in best if best[c] >= left)] if left > 1e-9 * rate else []
    return [size] * count + rest


@cache
def _fits(cut: tuple[str, ...]) -> bool:
    return fits_card(CARD, cut)


def greedy_gpus(found: Mapping[str, Mapping[int, float]], rate: float) -> int:
    """Cards that the greedy takes for every model at a rate."""
    names = {p.compute: p.name for p in Mig(card=CARD).kinds}
    slices = [size for best in found.values() for size in slices_for(best, rate)]
    cards: list[tuple[str, ...]] = []
    for size in sorted(slices, reverse=True):
        for number, card in enumerate(cards):
            wider = tuple(sorted((*card, names[size])))
            if _fits(wider):
                cards[number] = wider
                break
        else:
            cards.append((names[size],))
    return len(cards)


def greedy_rate(found: Mapping[str, Mapping[int, float]], gpus: int) -> float:
    """The highest equal rate that the greedy places."""
    low, high = 0.0, 1.0
    while greedy_gpus(found, high) <= gpus:
        low, high = high, 2 * high
    while high - low > CLOSE * high:
        middle = (low + high) / 2
        low, high = (middle, high) if greedy_gpus(found, middle) <= gpus else (low, middle)
    return low


def figures_of(profiles: Profiles, gpus: int, seconds: float) -> list[Figure]:
    """Highest equal rate of all models on so many cards, by what they may be divided into."""
    asked = workload(profiles)
    figures: list[Figure] = []

    def planned(what: str, mig: Mig) -> Plan | None:
        watch = Stopwatch()
        options = PlanOptions(planner="gpulets", slo_margin=MARGIN, time_limit_s=seconds)
        try:
            plan = make_plan(profiles, cluster(gpus, mig), asked, options)
        except InfeasibleError as error:
            figures.append(
                Figure(name=f"{gpus} A100: {what}", value=0, unit="rps", note=str(error))
            )
            return None
        wrong = verify_plan(plan, profiles)
        if wrong:
            raise AssertionError(f"{what}: {wrong[0]}")
        note = f"gap {plan.objective.gap:.3%}, {watch.seconds():.1f} s"
        figures.append(
            Figure(name=f"{gpus} A100: {what}", value=plan.objective.value, unit="rps", note=note)
        )
        print(
            f"{gpus} A100: {what}: {plan.objective.value:.1f}, {note}", file=sys.stderr, flush=True
        )
        return plan

    best = planned("all divisions, MPS in slices", Mig(card=CARD, processes=MOST_PROCESSES))
    if best is None:
        return figures
    others = {"greedy, MPS in slices": greedy_rate(ways(profiles, asked), gpus)}
    for what, mig in (
        ("all divisions, no MPS", Mig(card=CARD)),
        ("whole cards, MPS", Mig(card=CARD, profiles=(WHOLE,), processes=MOST_PROCESSES)),
        ("whole cards, no MPS", Mig(card=CARD, profiles=(WHOLE,))),
    ):
        plan = planned(what, mig)
        others[what] = 0.0 if plan is None else plan.objective.value
    figures += [
        Figure(
            name=f"{gpus} A100: exact / {what}",
            value=best.objective.value / other if other else None,
            least=1.0,
            note=f"{other:.1f} requests/s of each model",
        )
        for what, other in others.items()
    ]
    run = simulate(best, SimOptions(load_factor=LOAD, duration_s=SIMULATED_S))
    late = sum(m.late for m in run.models)
    name = f"{gpus} A100: attained at load {LOAD:g}"
    figures.append(Figure(name=name, value=100 * run.attainment, unit="%", note=f"{late} late"))
    return figures


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--gpus", default="1,4,16")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--tables", type=Path)
    add_destinations(parser)
    asked = parser.parse_args()
    profiles = read_profiles(asked.data)
    if asked.tables is not None:
        for path in write_tables(asked.tables, profiles):
            print(path)
        return 0
    figures = [
        figure
        for gpus in map(int, asked.gpus.split(","))
        for figure in figures_of(profiles, gpus, asked.seconds)
    ]
    return conclude(asked, "gpulets-mig", figures, {"gpus": asked.gpus})


if __name__ == "__main__":
    sys.exit(main())
