"""Tuned Triton beside PoolPipe, simulated.

The highest rate at which every model answers 99 % in time.

    .venv/bin/python -m scripts.paper.against_triton --data DIR [--groups G1,G2]
        [--clusters HC1-L] [--seconds 10] [--plan-seconds S] [--processes N] [--kept FILE.jsonl]
        [--compared FILE.json ...] [--without-auto] [--out FILE.json] [--warehouse FILE]

DIR holds a folder of tables for each paper. A problem is a set of models on a cluster; all models
are loaded at once.

    HC1-L to HC4-L   groups G1 to G6 of three models (PPipe): 100 GPUs of two classes
    one class        the same groups on 100 GPUs of one class
    64 A100          37 models (Symphony)
    4 parts          seven mixes (gpulets) on 4 GPUs that may be cut into parts

Both sides get a grid search of their own on each problem (`tuning`), and the configuration that it
finds is run again with other arrivals, which are the ones reported. The plan of `--planner auto`,
which nothing is searched for, runs on these too.

The simulated Triton has one queue for each model over all servers, so no balancer in front of it
loses anything, and it rejects requests whose deadline has passed. Links cost nothing on its side,
as whole models send no feature maps. Latencies are exact on both sides.

`--plan-seconds`: each plan of either side on groups of three models; it is the best found by then,
proven or not. Without it they are proven, which takes many minutes where margins are tight.

`--compared`: problems of earlier runs, which are not done again and count in the figures.
`--kept`: a row is added to this file as soon as it is there; a run that was broken off goes on from
it. Rows of either that lack `auto` get it alone, unless `--without-auto` is given.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from math import isclose
from pathlib import Path
from statistics import geometric_mean, mean

from scripts.benchmarks.figures import Figure, add_destinations, conclude
from scripts.paper.cells import CLUSTERS, GROUPS, PaperData
from scripts.paper.gpulets import mixes
from scripts.paper.symphony import study as symphony
from scripts.paper.tuning import OURS, Demand, automatic, tuned
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.simulator.papers.triton import TRITON

ONE_CLASS = "one class"
SYMPHONY, SYMPHONY_GPUS = "64 A100", 64
PARTS, PARTS_GPUS = "4 parts", 4
PLAN_SECONDS = 20.0  # of each plan of parts, on either side: proofs of some take many minutes
ALL_MODELS = "37 models"
NAMES = {ONE_CLASS: ONE_CLASS, SYMPHONY: "symphony", PARTS: "mixes"}
TWO_CLASSES = "two classes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One group of models on one cluster; `folder` holds the tables of every paper.

    `plan_seconds` is for groups of three models; parts have `PLAN_SECONDS`.
    """

    folder: Path
    group: str
    cluster: str
    seconds: float
    plan_seconds: float | None = None

    def demand(self) -> Demand:
        """Profiles, cluster and workload."""
        if self.cluster == SYMPHONY:
            return self._symphony()
        return self._parts() if self.cluster == PARTS else self._published()

    def _published(self) -> Demand:
        """One class is 100 GPUs of HC1-L's faster one."""
        data = PaperData.read(self.folder / "ppipe")
        known = CLUSTERS[0] if self.cluster == ONE_CLASS else self.cluster
        cluster, workload = data.cluster(known), data.workload(f"{self.group}-{known}")
        if self.cluster == ONE_CLASS:
            fast = cluster.gpu_classes[0]
            node = replace(cluster.nodes[0], count=100, gpu_class=fast.name, gpus=1)
            cluster = replace(cluster, name="one", gpu_classes=(fast,), nodes=(node,))
        return Demand(
            profiles=data.profiles,
            cluster=cluster,
            workload=workload,
            seconds=self.seconds,
            plan_seconds=self.plan_seconds,
        )

    def _symphony(self) -> Demand:
        """Every model on every GPU, and in turns there."""
        rows = symphony.rows_of(self.folder / "symphony" / "profiles_A100.csv")
        profiles, cluster, workload = symphony.problem_of(rows, SYMPHONY_GPUS)
        return Demand(
            profiles=profiles,
            cluster=cluster,
            workload=workload,
            seconds=self.seconds,
            triton=("subclusters",),
            ours="subclusters",
            policies=(None,),
        )

    def _parts(self) -> Demand:
        """Triton's instances in turns on whole GPUs, or on the parts of our own plans (MPS)."""
        data = self.folder / "gpulets"
        used, workload = mixes.mix(mixes.profiles_of(data), mixes.workloads(data)[self.group])
        return Demand(
            profiles=used,
            cluster=mixes.cluster(PARTS_GPUS),
            workload=workload,
            seconds=self.seconds,
            interference={mixes.GPU: mixes.constants(data)},
            triton=("subclusters", "gpulets"),
            ours="gpulets",
            policies=(None,),
            plan_seconds=PLAN_SECONDS,
        )


def problems_of(
    folder: Path,
    groups: Sequence[str],
    clusters: Sequence[str],
    seconds: float,
    plan_seconds: float | None = None,
) -> list[Problem]:
    """Every problem of these groups and clusters; groups are of the PPipe paper."""
    own: dict[str, Sequence[str]] = {SYMPHONY: (ALL_MODELS,)}
    if PARTS in clusters:
        own[PARTS] = tuple(mixes.workloads(folder / "gpulets"))
    return [
        Problem(
            folder=folder,
            group=group,
            cluster=cluster,
            seconds=seconds,
            plan_seconds=plan_seconds,
        )
        for cluster in clusters
        for group in own.get(cluster, groups)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The rates of both sides on one problem, in requests per second, and what was chosen.

    `auto_rps` is None for problems of a run that did not ask `--planner auto`.
    """

    group: str
    cluster: str
    seconds: float
    planned_rps: float
    triton_rps: float
    ours_rps: float
    triton_chosen: str
    ours_chosen: str
    auto_rps: float | None = None
    auto_chosen: str = ""


def compare(problem: Problem, known: Found | None, *, auto: bool) -> Found:
    """Both sides on one problem; load factor 1 is the rate of our default plan.

    Args:
        problem: what is compared on.
        known: both sides of an earlier run, which are kept where the default plan is still as
            fast: one made in a limited time may not be, and then loads mean other rates.
        auto: whether `--planner auto` is asked too.
    """
    demand = problem.demand()
    reference = demand.reference()
    found = known
    if found is None or not isclose(found.planned_rps, _planned_rps(reference)):
        found = _searched(problem, demand, reference)
    if not auto:
        return found
    chosen = automatic(demand, reference)
    rate = found.planned_rps * chosen.load
    return replace(found, auto_rps=rate, auto_chosen=chosen.name)


def _planned_rps(plan: Plan) -> float:
    return sum(model.throughput_rps for model in plan.models)


def _searched(problem: Problem, demand: Demand, reference: Plan) -> Found:
    planned = _planned_rps(reference)
    theirs, ours = (tuned(demand, side, reference) for side in (TRITON, OURS))
    return Found(
        group=problem.group,
        cluster=problem.cluster,
        seconds=problem.seconds,
        planned_rps=planned,
        triton_rps=planned * theirs.load,
        ours_rps=planned * ours.load,
        triton_chosen=theirs.name,
        ours_chosen=ours.name,
    )


def figures_of(found: Sequence[Found]) -> list[Figure]:
    """Goodput of both sides by cluster, their ratio, and on how many problems each is ahead."""
    figures: list[Figure] = []
    for cluster in (*CLUSTERS, *NAMES):
        here = [one for one in found if one.cluster == cluster]
        if not here:
            continue
        triton, ours = mean(f.triton_rps for f in here), mean(f.ours_rps for f in here)
        figures += [
            Figure(name=f"{cluster}: goodput of Triton, tuned", value=triton, unit="rps"),
            Figure(name=f"{cluster}: goodput of PoolPipe, tuned", value=ours, unit="rps"),
        ]
    for name in (TWO_CLASSES, *NAMES.values()):
        chosen = [f for f in found if NAMES.get(f.cluster, TWO_CLASSES) == name]
        if chosen:
            ahead = sum(f.triton_rps > f.ours_rps for f in chosen)
            equal = sum(f.triton_rps == f.ours_rps for f in chosen)
            rates = [(f.ours_rps, f.triton_rps) for f in chosen]
            figures += [
                *_ratios(f"{name}: PoolPipe / Triton", rates),
                Figure(name=f"{name}: problems where Triton is ahead", value=ahead),
                Figure(name=f"{name}: problems where both are equal", value=equal),
                Figure(name=f"{name}: problems", value=len(chosen)),
            ]
        asked = [(f.auto_rps, f.triton_rps) for f in chosen if f.auto_rps is not None]
        if asked:
            ahead = sum(theirs > ours for ours, theirs in asked)
            figures += [
                *_ratios(f"{name}: auto / Triton", asked),
                Figure(name=f"{name}: problems where Triton is ahead of auto", value=ahead),
                Figure(name=f"{name}: problems with auto", value=len(asked)),
            ]
    return figures


def _ratios(name: str, rates: Sequence[tuple[float, float]]) -> list[Figure]:
    """Of our rates to Triton's: the sums', the mean and the least.

    They name how many problems there were, so that runs on more are not taken for the same.
    """
    count = len(rates)
    sums = sum(ours for ours, _ in rates) / max(1e-9, sum(theirs for _, theirs in rates))
    ratios = [max(1e-9, ours) / max(1e-9, theirs) for ours, theirs in rates]
    return [
        Figure(name=f"{name}, sum of goodput of {count}", value=sums),
        Figure(name=f"{name}, mean of ratios of {count}", value=geometric_mean(ratios)),
        Figure(name=f"{name}, least of {count}", value=min(ratios)),
    ]


def read_compared(paths: Sequence[Path], seconds: float) -> list[Found]:
    """Problems of earlier runs.

    Raises:
        InputError: a file is no run of this script, or was simulated for another time.
    """
    found: list[Found] = []
    for path in paths:
        try:
            found += [Found(**row) for row in json.loads(path.read_text())["rows"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"--compared {path}", f"is no run of this script: {error}") from error
    _check_seconds("--compared", found, seconds)
    return found


def read_kept(path: Path, seconds: float) -> list[Found]:
    """Rows of a run that goes on, of a problem the latest; none where there is no file.

    Raises:
        InputError: a line is no row of this script, or was simulated for another time.
    """
    if not path.exists():
        return []
    found: dict[tuple[str, str], Found] = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            row = Found(**json.loads(line))
        except (ValueError, TypeError) as error:
            raise InputError(f"--kept {path}", f"line {number} is no row: {error}") from error
        found[row.group, row.cluster] = row
    _check_seconds("--kept", list(found.values()), seconds)
    return list(found.values())


def _check_seconds(option: str, found: Sequence[Found], seconds: float) -> None:
    other = sorted({one.seconds for one in found} - {seconds})
    if other:
        raise InputError(option, f"was simulated for {other[0]:g} s, not {seconds:g}")


def main(arguments: Sequence[str]) -> int:
    """Compare on all problems asked for; 2 on wrong input."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--groups", default=",".join(GROUPS), metavar="NAME,NAME")
    parser.add_argument("--clusters", default=",".join((*CLUSTERS, *NAMES)), metavar="NAME,NAME")
    parser.add_argument("--seconds", type=float, default=10.0, help="simulated, per point")
    parser.add_argument("--plan-seconds", type=float, help="for each plan of three models")
    parser.add_argument("--processes", type=int, help="problems at once; by default one per core")
    parser.add_argument("--compared", type=Path, nargs="+", default=[], metavar="FILE")
    parser.add_argument("--kept", type=Path, metavar="FILE")
    parser.add_argument("--without-auto", action="store_true")
    add_destinations(parser)
    asked = parser.parse_args(arguments)
    try:
        found = _compared(asked)
    except InputError as error:
        parser.error(str(error))
    rows = [asdict(one) for one in found]
    return conclude(asked, "tuned triton", figures_of(found), {"rows": rows})


def _compared(asked: argparse.Namespace) -> list[Found]:
    """All rows, those of earlier runs among them."""
    earlier = read_compared(asked.compared, asked.seconds)
    if asked.kept:
        earlier += read_kept(asked.kept, asked.seconds)
    known = {(one.group, one.cluster): one for one in earlier}
    PaperData.read(asked.data / "ppipe")
    auto = not asked.without_auto
    groups, clusters = asked.groups.split(","), asked.clusters.split(",")
    problems = problems_of(asked.data, groups, clusters, asked.seconds, asked.plan_seconds)
    todo = [
        (problem, row)
        for problem in problems
        if (row := known.get((problem.group, problem.cluster))) is None
        or (auto and row.auto_rps is None)
    ]
    with ProcessPoolExecutor(asked.processes) as pool:
        running = [pool.submit(compare, problem, row, auto=auto) for problem, row in todo]
        for done in as_completed(running):
            one = done.result()
            known[one.group, one.cluster] = one
            print(asdict(one), file=sys.stderr, flush=True)
            if asked.kept:
                with asked.kept.open("a") as file:
                    file.write(json.dumps(asdict(one)) + "\n")
    return list(known.values())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
