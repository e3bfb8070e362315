"""Changes of plan with work in flight, simulated: random plans, load, policies, noise, failures.

    .venv/bin/python scripts/benchmarks/scheduling/plan_changes.py [--runs 1000] [--first 0]
        [--out FILE]

Every run changes its plan one to three times. Afterwards every request has one end, the scheduler's
tables hold after every change, a worker that goes on has run one batch at a time whatever its
numbers, and with exact latencies and no failure nothing accepted was late. Runs that break a rule
are listed by seed. The cost of a change is that of `Scheduler.handle(PlanChanged)` after `prepare`,
with so many vGPUs, all of them busy.
"""

import argparse
import sys
from dataclasses import replace
from statistics import median

from flows.clock import Stopwatch
from scripts.benchmarks.figures import Figure, add_destinations, conclude
from tests.fakes.changes import check_run, random_run
from tests.fakes.plans import Own, make_plan
from triton_backend.contract.errors import PoolPipeError
from triton_backend.contract.events import Arrival, PlanChanged
from triton_backend.scheduler.scheduler import Scheduler

VGPUS = 1_000
REPEATS = 11
NAMES: tuple[str, ...] = ("wrong", "offered", "late", "exact", "changes", "in_flight", "stay")


def simulated(first: int, count: int) -> dict[str, float]:
    """Counts over the runs of seeds `first` .. `first + count`; prints what is wrong."""
    counts: dict[str, float] = dict.fromkeys(NAMES, 0.0)
    for seed in range(first, first + count):
        run = random_run(seed)
        try:
            result, wrong = check_run(run)
        except PoolPipeError as error:
            counts["wrong"] += 1
            print(f"seed {seed}: {error}", file=sys.stderr)
            continue
        counts["wrong"] += bool(wrong)
        for text in wrong:
            print(f"seed {seed}: {text}", file=sys.stderr)
        counts["offered"] += len(result.requests)
        counts["exact"] += run.exact
        counts["late"] += sum(model.late for model in result.models) if run.exact else 0
        counts["changes"] += len(result.changes)
        counts["in_flight"] += sum(change.in_flight for change in result.changes)
        counts["stay"] += sum(change.inherited for change in result.changes)
    return counts


def change_seconds() -> tuple[float, float]:
    """Median seconds of a change of plan with every vGPU busy, and of preparing it."""
    plan = make_plan([[Own(latency_us=(50_000,), gpus=VGPUS)]], slo_us=200_000)
    plans = plan, replace(plan, plan_id="next")
    scheduler = Scheduler(plan)
    for number in range(2 * VGPUS):
        scheduler.handle(Arrival(now_us=0, request_id=number, model=0, deadline_us=200_000))
    if scheduler.in_flight() != 2 * VGPUS:
        raise PoolPipeError(f"{scheduler.in_flight()} batches in flight, not {2 * VGPUS}")
    changed: list[float] = []
    prepared: list[float] = []
    for number in range(REPEATS):
        watch = Stopwatch()
        scheduler.prepare(plans[(number + 1) % 2])
        prepared.append(watch.seconds())
        watch = Stopwatch()
        scheduler.handle(PlanChanged(now_us=1, plan=plans[(number + 1) % 2]))
        changed.append(watch.seconds())
    scheduler.check_invariants()
    return median(changed), median(prepared)


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1_000)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    add_destinations(parser)
    asked = parser.parse_args()
    counts = simulated(asked.first, asked.runs)
    seconds, before = change_seconds()
    figures = [
        Figure(name="runs that break a rule", value=counts["wrong"], most=0),
        Figure(name="accepted and late, exact runs", value=counts["late"], most=0),
        Figure(name="exact runs", value=counts["exact"]),
        Figure(name="requests offered", value=counts["offered"]),
        Figure(name="changes of plan", value=counts["changes"]),
        Figure(name="batches in flight at a change", value=counts["in_flight"]),
        Figure(name="vGPUs that go on", value=counts["stay"]),
        Figure(
            name=f"a change with {2 * VGPUS} batches on {VGPUS} vGPUs",
            value=seconds * 1e3,
            unit="ms",
        ),
        Figure(name="preparing it", value=before * 1e3, unit="ms"),
    ]
    return conclude(asked, "plan_changes", figures, {"counts": counts})


if __name__ == "__main__":
    sys.exit(main())
