"""Applications of three modules on four GPUs: parts of unequal size beside equal parts.

    .venv/bin/python -m scripts.benchmarks.applications.unequal_parts [--out FILE]

The rule of the 20 workloads, written before the first run. Workload k = 0 … 19 is drawn by the
generator of the golden problems (`scripts.golden.problems`) from the seed 1000 + k: three models of
eight blocks, a detector and two modules after it, whose rows and SLO are drawn as there; four GPUs
`fast` cut into 10, 20, 25, 40, 50, 60, 75, 80 and 100 %; models are not split (`max_partitions` 1).
Its rate is (k + 1) / 21 of the highest that equal parts reach on the four GPUs, so that loads are
spread evenly from 0.05 to 0.95. No draw is left out.

Compared, by GPUs at that rate, of a plan for least cost:

    equal        every GPU has parts of one size for one module: what was planned before
    by default   the same on a class of equal parts (1, 1/2, 1/4) as it is planned by
                 default there, where batches gather by rank and machines are padded (`tc-padded`)
    one size     parts of one size on a GPU, for any modules
    unequal      parts of any sizes beside each other, for any modules

Beside them the highest rates of equal and unequal parts on all four GPUs, and what the plans of
unequal parts attain in the simulator: at equal gaps at the planned rate, and of Poisson arrivals at
0.9 of it. Neighbours on a GPU are taken not to disturb each other.
"""

import argparse
import sys
from dataclasses import asdict, dataclass, replace
from math import inf
from statistics import fmean, geometric_mean

from flows.clock import Stopwatch
from flows.planning.promises.attainment import with_attainment
from scripts.benchmarks.figures import Figure, add_destinations, conclude
from scripts.golden.problems import PERCENTS, Made, Recipe, drawn
from triton_backend.contract.errors import InfeasibleError
from triton_backend.contract.profiles import ModelProfile, ProfileKey
from triton_backend.contract.shares import LOADED, MAX_DIVISOR, SOLO, WHOLE_GPU

WORKLOADS, FIRST_SEED, GPUS = 20, 1_000, 4
RECIPE = Recipe(
    count=WORKLOADS,
    models=(3, 3),
    gpus={"fast": GPUS},
    cut="percents",
    stages=1,
    objective="cost",
    applications=True,
    rates_rps=(1.0,),
    gap=0.01,
)
EVEN = tuple(v for v in range(1, MAX_DIVISOR + 1) if 100 % v == 0)  # divisors
LIMIT_S = 8.0  # of a plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One workload: GPUs of plans for its rate, highest rates, what unequal parts attain."""

    number: int
    load: float
    rate_rps: float
    equal: float
    by_default: float
    one_size: float
    unequal: float
    bound: float
    highest_equal_rps: float
    highest_unequal_rps: float
    even: float | None
    poisson: float | None
    seconds: float


def compared(number: int) -> Compared:
    """Plan a workload every way."""
    made = drawn(RECIPE, FIRST_SEED + number)
    made = replace(made, options=replace(made.options, time_limit_s=LIMIT_S))
    free = replace(made, options=replace(made.options, objective="throughput"))
    most = free.plan()
    highest = most.objective.value / most.certificate["over_equal_parts"]
    load = (number + 1) / (WORKLOADS + 1)
    made = at_rate(made, load * highest)
    laps = Stopwatch()
    plan = made.plan()
    seconds = laps.seconds()
    attained = with_attainment(plan).attained
    price = made.cluster.gpu_class("fast").hourly_cost or 1.0
    over = plan.certificate["over_equal_parts"]
    return Compared(
        number=number,
        load=load,
        rate_rps=load * highest,
        equal=plan.objective.value / over / price if over else inf,
        by_default=gpus_of(on_equal_parts(made)),
        one_size=gpus_of(of_one_size(made)),
        unequal=plan.objective.value / price,
        bound=plan.objective.upper_bound / price,
        highest_equal_rps=highest,
        highest_unequal_rps=most.objective.value,
        even=None if attained is None else attained.even,
        poisson=None if attained is None else attained.poisson,
        seconds=seconds,
    )


def at_rate(made: Made, rate_rps: float) -> Made:
    """The problem at another rate of its application."""
    (application,) = made.workload.applications
    asked = replace(application, rate_rps=rate_rps)
    return replace(made, workload=replace(made.workload, applications=(asked,)))


def gpus_of(made: Made) -> float:
    """GPUs of its plan; infinitely many where there is none."""
    try:
        plan = made.plan()
    except InfeasibleError:
        return inf
    return float(sum(plan.gpus_used.values()))


def on_equal_parts(made: Made) -> Made:
    """The same on a class that is cut into equal parts, with the latencies of the same sizes."""
    (kind,) = made.cluster.gpu_classes
    equal = replace(kind, vgpu_percents=(), vgpu_divisors=EVEN)

    def loaded(profile: ModelProfile) -> ModelProfile:
        tables = {
            ProfileKey("fast", WHOLE_GPU // v, LOADED): replace(table, l2=None, dram=None)
            for v in EVEN
            if (table := profile.table("fast", WHOLE_GPU // v, SOLO)) is not None
        }
        return replace(profile, tables=tables)

    return replace(
        made,
        cluster=replace(made.cluster, gpu_classes=(equal,)),
        profiles={name: loaded(profile) for name, profile in made.profiles.items()},
        options=replace(made.options, own={}),
    )


def of_one_size(made: Made) -> Made:
    """The same where all parts of a GPU have one size."""
    (kind,) = made.cluster.gpu_classes
    ways = tuple((percent,) * (100 // percent) for percent in PERCENTS)
    equal = replace(kind, partitions=ways)
    return replace(made, cluster=replace(made.cluster, gpu_classes=(equal,)))


def figures_of(rows: list[Compared]) -> list[Figure]:
    """The comparisons over all workloads."""
    rates = [row.highest_unequal_rps / row.highest_equal_rps for row in rows]
    default = [row for row in rows if row.by_default < inf]
    attained = [row.even for row in rows if row.even is not None]
    poisson = [row.poisson for row in rows if row.poisson is not None]
    return [
        Figure(
            name="workloads in which unequal parts are dearer than equal ones",
            value=sum(row.unequal > row.equal for row in rows),
            most=0,
            note=f"of {len(rows)}",
        ),
        Figure(
            name="workloads in which unequal parts are cheaper than equal ones",
            value=sum(row.unequal < row.equal for row in rows),
            least=len(rows) / 2,
            note=f"mean GPUs {fmean(row.unequal for row in rows):.2f} and"
            f" {fmean(row.equal for row in rows):.2f}",
        ),
        Figure(
            name="workloads in which they are dearer than equal parts by default",
            value=sum(row.unequal > row.by_default for row in rows),
            note=f"cheaper in {sum(row.unequal < row.by_default for row in rows)};"
            f" {len(default)} have a plan by default",
        ),
        Figure(
            name="workloads in which they are cheaper than parts of one size for any modules",
            value=sum(row.unequal < row.one_size for row in rows),
            note=f"dearer in {sum(row.unequal > row.one_size for row in rows)}",
        ),
        Figure(
            name="highest rate over that of equal parts, geometric mean",
            value=geometric_mean(rates),
            note=f"least {min(rates):.3f}, most {max(rates):.3f}",
        ),
        Figure(
            name="plans of unequal parts that are proven",
            value=sum(row.bound >= row.unequal * (1 - RECIPE.gap) for row in rows),
            note=f"longest {max(row.seconds for row in rows):.1f} s",
        ),
        Figure(
            name="attained at equal gaps at the planned rate, worst",
            value=min(attained),
            least=0.995,
            note=f"mean {fmean(attained):.4f}",
        ),
        Figure(
            name="attained of Poisson arrivals at 0.9 of it, worst",
            value=min(poisson),
            note=f"mean {fmean(poisson):.4f}",
        ),
    ]


def main() -> int:
    """Draw, plan, compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_destinations(parser)
    asked = parser.parse_args()
    rows: list[Compared] = []
    for number in range(WORKLOADS):
        rows.append(compared(number))
        print(rows[-1], file=sys.stderr, flush=True)
    found = [{key: None if value == inf else value for key, value in asdict(row).items()}
             for row in rows]  # fmt: skip
    return conclude(asked, "unequal-parts", figures_of(rows), {"rows": found})


if __name__ == "__main__":
    sys.exit(main())
