"""Processes stopped and continued, links paused, one after the other.

Is an answer another client's? Two emulated models of two stages with SLOs of 400 and of 50 ms,
inputs and boundaries of 100 KB and answers of 20 KB, all too large for a checksum, are served by
the real Triton and loaded with requests whose right answers are known. All the while a worker of
either stage, a front, a node and the scheduler are stopped for 0.2, 0.5 and 0.95 s and continued,
in turn, `--times` each; with two hosts, the link between them is down for 0.3, 1 and 1.9 s.

    .venv/bin/python scripts/faults/bench_pauses.py [--times 10] [--far [--clock-ahead 100000]]
        [--load-factor 0.5] [--out FILE]

Of all of it: wrong answers; requests late, dropped and failed; answers later than their deadline
and 100 ms, where the process that held them was not killed. A fault begins when all workers are up
after the one before.
"""

import argparse
import contextlib
import sys
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

from flows.clock import Stopwatch
from scripts.benchmarks.figures import Figure, add_destinations, conclude
from scripts.benchmarks.served import Served
from scripts.faults.bench_faults import checked_load, counted
from scripts.faults.injection import PAUSED, STOPPED, Fault
from scripts.faults.places import Far
from scripts.faults.plans import wide_plan
from scripts.faults.probe import wait_well
from triton_backend.contract.errors import PoolPipeError

REST_S = 0.5
WARM_UP_S = 2.0
SPARE_S = 0.6  # a fault, on the average


def all_up(served: Served) -> bool:
    """True if every worker is up."""
    with contextlib.suppress(PoolPipeError):
        workers = served.state.control("status")["workers"]
        return workers["up"] == workers["total"]
    return False


def pause(
    served: Served, faults: Sequence[Fault], times: int, load_factor: float
) -> dict[str, Any]:
    """Load, and all faults in turn; what became of the requests, and how often each was made."""
    each_s = sum(float(fault.name.split()[-2]) + REST_S + SPARE_S for fault in faults)
    load = checked_load(served, load_factor, WARM_UP_S + times * each_s, 0)
    time.sleep(WARM_UP_S)
    made: Counter[str] = Counter()
    watch = Stopwatch()
    for fault in [fault for _ in range(times) for fault in faults]:
        if watch.seconds() > times * each_s:
            break
        with contextlib.suppress(RuntimeError, PoolPipeError):
            fault.inject(served)
            made[fault.name] += 1
        time.sleep(REST_S)
        while watch.seconds() < times * each_s and not all_up(served):
            time.sleep(0.05)
    return counted(load.result()) | {"made": made}


def main() -> int:
    """Run, print, store; exit 1 where an answer is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--times", type=int, default=10, help="of each fault")
    add("--far", action="store_true", help="over two hosts, with the link between them")
    add("--clock-ahead", type=int, default=0, help="seconds, of the far host's monotonic clock")
    add("--only", nargs="+", help="names of faults")
    add("--load-factor", type=float, default=0.5, help="of what the plan serves")
    add("--port", type=int, default=18_630, help="the first of those used")
    add_destinations(parser)
    options = parser.parse_args()
    plan, watch = wide_plan("pauses"), Stopwatch()
    faults = PAUSED if options.far else STOPPED
    faults = [fault for fault in faults if not options.only or fault.name in options.only]
    far = partial(Far, clock_ahead_s=options.clock_ahead)
    with (far if options.far else Served)(plan, options.port) as served:
        wait_well(served)
        result = pause(served, faults, options.times, options.load_factor)
        result["whole_again"] = wait_well(served)
    made = ", ".join(f"{name} {times}" for name, times in result["made"].items())
    lost = ", ".join(f"{result[name]} {name}" for name in ("late", "dropped", "failed"))
    figures = [
        Figure(
            name="wrong answers",
            value=result["wrong"],
            most=0,
            note=f"of {result['checked']} compared; {made}",
        ),
        Figure(
            name="answers later than deadline + 100 ms",
            value=result["waited_too_long"],
            note=f"of {result['offered']}; {lost}",
        ),
        Figure(name="not whole again", value=int(not result["whole_again"]), most=0),
    ]
    return conclude(options, "pauses", figures, result | {"wall_seconds": watch.seconds()})


if __name__ == "__main__":
    sys.exit(main())
