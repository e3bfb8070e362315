"""Triton's own batcher beside PoolPipe, both served on this machine at the same absolute rates.

    .venv/bin/python -m scripts.benchmarks.adoption.rival [--seconds 10] [--out FILE]
    .venv/bin/python -m scripts.benchmarks.adoption.rival --data DIR [--problems G1-HC1-S,G4-HC1-S]

Two ONNX models that onnxruntime runs on this machine's cores, in two classes of unlike speed; or,
with the tables of the PPipe paper, published groups of three models on its testbeds of 16 GPUs,
where every vGPU waits the profiled latency. Such a plan is slowed down, times and rates alike, as
far as two cores need it, and is loaded for as many times `--seconds`, and until each model was
asked `FEWEST` times: of fewer requests one that is late may be a percent.

Triton's side is the best of its grid in the simulator, ours the plan of `--planner auto`, for which
nothing is searched (`scripts.paper.tuning`). Each is then offered shares of the planned rates of
our default plan, in rising steps, until it answers less than `ENOUGH` in time; nothing else ends
the search. Both stand beside each other and are loaded in turns. Both run a model by the same
runtime; Triton's side has its dynamic batcher in front of it (`batcher`), ours has the gateway.
"""

import argparse
import math
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from statistics import geometric_mean
from typing import Any, NamedTuple

from flows.files import read_device_classes
from flows.release.artifacts import attach_artifacts
from flows.state import ProjectState
from flows.workspace import Workspace
from scripts.benchmarks.adoption.batcher import Batcher, BatcherOptions
from scripts.benchmarks.figures import Figure, add_destinations, conclude
from scripts.benchmarks.served import Load, Served, stretched
from scripts.gpu.evidence import DONE, STAND_IN, outcome_of, run_steps
from scripts.gpu.steps import Kit
from scripts.gpu.tune import demand_of
from scripts.paper.cells import PaperData
from scripts.paper.tuning import OURS, Configuration, Demand, automatic, tuned
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.simulator.goodput import ATTAINMENT
from triton_backend.simulator.papers.triton import TRITON
from triton_backend.simulator.run import simulate

STEP = 0.2  # of the reference plan's rates, from one load to the next
ENOUGH = 0.9
FEWEST = 200  # requests of a model at each load
SERVED_FACTOR = 1.1  # added to a run by serving, as the search of Triton's side reckons
WARM_LOAD, WARM_SECONDS = 0.3, 3.0  # before the first load
CORES = "two ONNX models on cores"
PREPARED = (
    "devices",
    "models",
    "build",
    "profile",
    "workload",
)  # steps of the kit for GPU evidence
PROBLEMS = "G1-HC1-S,G1-HC2-S,G4-HC1-S,G4-HC2-S"
# A sleep on two cores of a shared host ended up to 38 ms late while a plan was served, and up to 22
# on an idle machine (watched for four minutes, and for one): a tenth of an SLO, not all its slack.
LEAST_SLO_US = 400_000
SIDES = (TRITON, OURS)
SHARES = (ATTAINMENT, 0.95)  # in time, of which a machine with other work may hold the lower alone
PORTS = 10  # between the first ones of two servers

Attained = Callable[[str, float], float]
"""The least attainment of a model, by side and load."""


class Point(NamedTuple):
    """The share in time of a side at a load."""

    side: str
    load: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """The problem that both sides serve.

    Attributes:
        reference: loads are shares of its planned rates.
        sides: the configuration of each, by its name, with the plan that is served.
        artifacts: of the plans; None where vGPUs are emulated.
        stretch: how many times slower than profiled all is.
    """

    name: str
    reference: Plan
    sides: Mapping[str, Configuration]
    artifacts: Path | None = None
    stretch: float = 1.0

    @property
    def planned_rps(self) -> float:
        """At load 1."""
        return sum(model.throughput_rps for model in self.reference.models)


def chosen(demand: Demand, reference: Plan) -> dict[str, Configuration]:
    """The tuned configuration of Triton's side, and the plan that chooses by itself of ours.

    Raises:
        InputError: no configuration of Triton holds any load.
    """
    # By exact latencies the search takes batches that fill the SLO, of which all come late here.
    theirs = tuned(demand, TRITON, reference).configuration
    if theirs is None:
        raise InputError(TRITON, "no configuration holds any load")
    ours = automatic(demand, reference).configuration
    assert ours is not None  # a plan is always named
    return {TRITON: theirs, OURS: ours}


def on_cores(work: Path) -> Problem:
    """Two ONNX models, split, built and measured here, and plans of both sides.

    Raises:
        RuntimeError: a step of the kit failed.
    """
    kit = Kit(work=work, stand_in=True)
    run_steps(kit, PREPARED, (STAND_IN,))
    outcomes = [outcome_of(kit, name) for name in PREPARED]
    failed = [one for one in outcomes if one.result != DONE]
    if failed:
        raise RuntimeError(f"{failed[0].step}: {failed[0].reason}")
    demand = replace(demand_of(work), latency_factor=SERVED_FACTOR)
    reference = demand.reference()
    devices = read_device_classes(work / "cluster.yaml")
    state = ProjectState(home=work / "home")
    workspace = Workspace(state=state, warehouse=work / "warehouse.duckdb")
    sides = {
        side: replace(one, plan=attach_artifacts(workspace, one.plan, devices))
        for side, one in chosen(demand, reference).items()
    }
    return Problem(name=CORES, reference=reference, sides=sides, artifacts=state.artifacts)


def emulated(data: PaperData, name: str, most_rps: float) -> Problem:
    """A published group of models on a testbed, in slow motion.

    Raises:
        InputError: there is no such group or testbed.
    """
    group, _, cluster = name.partition("-")
    try:
        small, workload = data.cluster(cluster), data.workload(f"{group}-{cluster[:-1]}L")
    except OSError as error:
        raise InputError(f"problem {name!r}", f"no such file: {error.filename}") from error
    demand = Demand(
        profiles=data.profiles,
        cluster=small,
        workload=workload,
        seconds=10.0,
        latency_factor=SERVED_FACTOR,
    )
    reference = demand.reference()
    sides = chosen(demand, reference)
    factor = stretch_of(reference, most_rps)
    slow = stretched(reference, factor)
    return Problem(
        name=name,
        reference=slow,
        sides={
            side: replace(
                one,
                plan=stretched(one.plan, factor),
                options=replace(one.options, reference=slow),
            )
            for side, one in sides.items()
        },
        stretch=factor,
    )


def stretch_of(plan: Plan, most_rps: float) -> float:
    """How much slower two cores need a plan, in tenths."""
    rates = sum(model.throughput_rps for model in plan.models)
    need = max(1.0, rates / most_rps, LEAST_SLO_US / min(model.slo_us for model in plan.models))
    return math.ceil(10 * need) / 10


def lasts(problem: Problem, load: float, seconds: float) -> float:
    """Seconds of a load, longer as the plan is slowed down or a model has few requests in them."""
    least_rps = load * min(model.throughput_rps for model in problem.reference.models)
    return max(seconds * problem.stretch, FEWEST / least_rps)


def rising(attained: Attained, sides: Sequence[str], step: float) -> Iterator[Point]:
    """Shares of sides at loads in rising steps, in turns, each up to the first below `ENOUGH`."""
    left = list(sides)
    for number in count(1):
        load = round(step * number, 3)
        for side in tuple(left):
            share = attained(side, load)
            yield Point(side, load, share)
            if share < ENOUGH:
                left.remove(side)
        if not left:
            return


def goodput(points: Sequence[tuple[float, float]], least: float = ATTAINMENT) -> float:
    """The highest load up to which a share is in time; 0 where the first one is not."""
    held = 0.0
    for load, share in points:
        if share < least:
            break
        held = load
    return held


def server_of(
    problem: Problem, side: str, port: int
) -> AbstractContextManager[Batcher] | AbstractContextManager[Served]:
    """The server of a side's plan."""
    one = problem.sides[side]
    if side == OURS:
        options = ServeOptions(policy=one.options.policy, artifacts=problem.artifacts)
        return Served(one.plan, port, options)
    delay_share = one.options.batch_timeout_share or 0.0
    return Batcher(
        one.plan, port, BatcherOptions(delay_share=delay_share, artifacts=problem.artifacts)
    )


def measured(problem: Problem, asked: argparse.Namespace) -> Iterator[Point]:
    """Both sides served beside each other, one of them loaded at a time.

    So a machine that changes its speed does not pass for a side.
    """
    with ExitStack() as stack:
        served = {
            side: stack.enter_context(server_of(problem, side, asked.port + PORTS * number))
            for number, side in enumerate(SIDES)
        }

        def offered(side: str, load: float, seconds: float) -> dict[str, Any]:
            there = served[side]
            if isinstance(there, Batcher):
                return there.load(problem.reference, load, seconds, asked.seed)
            return _offered(there, problem.reference, load, seconds, asked.seed)

        def attained(side: str, load: float) -> float:
            summary = offered(side, load, lasts(problem, load, asked.seconds))
            shares = [row["attainment"] for row in summary["models"].values()]
            share = min((each for each in shares if each is not None), default=1.0)
            print(f"{problem.name}, {side}, load {load}: {share:.2%}", file=sys.stderr, flush=True)
            return share

        for side in SIDES:
            offered(side, WARM_LOAD, WARM_SECONDS)
        yield from rising(attained, SIDES, asked.step)


def _offered(
    served: Served, reference: Plan, load: float, seconds: float, seed: int
) -> dict[str, Any]:
    path = served.write_plan(served.plan, "plan")
    return (
        Load(
            served.state.grpc_url,
            path,
            f"--reference-plan={served.write_plan(reference, 'reference')}",
            f"--load-factor={load}",
            f"--duration={seconds:g}",
            f"--seed={seed}",
            "--give-up-s=1",
        )
        .result()
        .summary
    )


def simulated(problem: Problem, side: str, load: float, asked: argparse.Namespace) -> float:
    """The simulator's least attainment of a model under the same arrivals."""
    one = problem.sides[side]
    rules = replace(
        one.options,
        reference=problem.reference,
        load_factor=load,
        seed=asked.seed,
        duration_s=lasts(problem, load, asked.seconds),
        give_up_below=0.0,  # the search for the best stops early, a row states all
    )
    return simulate(one.plan, rules).least_attainment


def rows_of(problem: Problem, asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Both sides of a problem at every load: a row each."""
    for side, load, share in measured(problem, asked):
        yield {
            "problem": problem.name,
            "side": side,
            "chosen": problem.sides[side].name,
            "stretch": problem.stretch,
            "load": load,
            "rate_rps": load * problem.planned_rps,
            "attainment": share,
            "simulated": simulated(problem, side, load, asked),
        }


def figures_of(rows: Sequence[Mapping[str, Any]]) -> list[Figure]:
    """Goodput of each side by problem and their ratio; of several problems mean and least."""
    figures: list[Figure] = []
    problems = list(dict.fromkeys(row["problem"] for row in rows))
    for least in SHARES:
        words, ratios = f"{least:.0%} in time", list[float]()
        for problem in problems:
            held = {side: _held_rps(rows, problem, side, least) for side in SIDES}
            figures += [
                Figure(name=f"{problem}: {side}, {words}", value=held[side], unit="rps")
                for side in SIDES
            ]
            ratio = held[OURS] / held[TRITON] if held[TRITON] else None
            figures.append(Figure(name=f"{problem}: PoolPipe / Triton, {words}", value=ratio))
            ratios += [] if ratio is None else [ratio]
        if len(problems) > 1 and len(ratios) == len(problems):
            name = f"PoolPipe / Triton, {words}"
            figures += [
                Figure(name=f"{name}, mean of ratios", value=_mean(ratios)),
                Figure(name=f"{name}, least", value=min(ratios)),
            ]
    figures.append(Figure(name="problems", value=len(problems)))
    apart = [100 * abs(row["attainment"] - row["simulated"]) for row in rows]
    above = [each for each, row in zip(apart, rows, strict=True) if row["attainment"] >= ENOUGH]
    name = "served less simulated attainment, most, where 90 % are in time"
    figures.append(Figure(name=name, value=max(above, default=None), unit="points"))
    return figures


def _mean(ratios: Sequence[float]) -> float:
    return geometric_mean(ratios) if all(ratios) else 0.0


def _held_rps(rows: Sequence[Mapping[str, Any]], problem: str, side: str, least: float) -> float:
    """The rate up to which a side has a share in time."""
    mine = [row for row in rows if (row["problem"], row["side"]) == (problem, side)]
    load = goodput([(row["load"], row["attainment"]) for row in mine], least)
    return load * mine[0]["rate_rps"] / mine[0]["load"]


def main(arguments: Sequence[str]) -> int:
    """Measure, print, store; 2 on wrong input."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=Path, metavar="DIR", help="the PPipe paper's tables: emulated vGPUs")
    add("--problems", default=PROBLEMS, metavar="NAME,NAME")
    add("--most-rps", type=float, default=150.0, help="a problem is slowed down to this rate")
    add("--seconds", type=float, default=10.0, help="at each load, times how much slower it runs")
    add("--step", type=float, default=STEP, help="from one load to the next")
    add("--seed", type=int, default=1)
    add("--port", type=int, default=18_800)
    add_destinations(parser)
    asked = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    try:
        if asked.data is None:
            with tempfile.TemporaryDirectory() as folder:
                rows += rows_of(on_cores(Path(folder)), asked)
        else:
            data = PaperData.read(asked.data)
            for name in asked.problems.split(","):
                rows += rows_of(emulated(data, name, asked.most_rps), asked)
    except InputError as error:
        parser.error(str(error))
    benchmark = "triton served" if asked.data is None else "triton emulated"
    return conclude(asked, benchmark, figures_of(rows), {"rows": rows})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
