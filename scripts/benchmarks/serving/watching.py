"""Latency that watching adds to requests: traces, metrics that are read, copies of requests.

A real Triton server on this machine serves one emulated stage with 4 KB requests at 500 requests/s
over gRPC. Rounds of runs take turns in another order each: two of them with nothing beside, one
with `poolpipe traces --follow --sample 0.01` to a receiver of this script, one with the metrics
read every second, one in which the front copies every request with its answer. Each is compared
with the mean of the round's two plain runs, whose own difference is the noise.

    .venv/bin/python -m scripts.benchmarks.serving.watching [--rounds 5] [--seconds 10]
"""

import argparse
import contextlib
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from flows.release.server.running import ServerState
from scripts.benchmarks.figures import Figure, add_destinations, conclude
from scripts.benchmarks.gateway import RATE_QUIET, SINK, Served, load, one_stage_plan
from tests.fakes.otlp_receiver import otlp_receiver
from triton_backend.contract.units import US_PER_S
from triton_backend.runtimes.clock import SystemClock
from triton_backend.serve_folder.mirror import MirrorOrder

PLAIN, AGAIN = "nothing", "nothing, again"
TRACES, SCRAPED, COPIED = "traces of 1 % of the requests", "metrics read every second", "copies"
SHARE = 0.01
POOLPIPE = Path(sys.executable).parent / "poolpipe"
SETTLE_SECONDS = 4.0  # of a process that starts, which takes a core until it waits
QUANTILES = ("p50", "p99")
Beside = Callable[[], AbstractContextManager[None]]


class Tracer:
    """`poolpipe traces` beside a run; `received` counts the traces that came out of it."""

    def __init__(self, state: ServerState) -> None:
        self._folder = state.folder
        self.received = 0

    @contextlib.contextmanager
    def beside(self) -> Generator[None]:
        """Follow, from the block's begin to its end."""
        with otlp_receiver() as receiver:
            words = ("traces", "--otlp", receiver.url, "--follow", "--sample", str(SHARE))
            process = subprocess.Popen(
                [str(POOLPIPE), *words, "--folder", str(self._folder)],
                cwd=self._folder.parent,
                stdout=subprocess.DEVNULL,
            )
            try:
                time.sleep(SETTLE_SECONDS)
                yield
                time.sleep(SETTLE_SECONDS)  # requests that ended last are sent a moment later
            finally:
                process.terminate()
                process.wait(timeout=30)
            self.received += len(receiver.roots())


@contextlib.contextmanager
def scraped(state: ServerState) -> Generator[None]:
    """Read the metrics once a second."""
    url = f"http://127.0.0.1:{state.data['ports']['metrics']}/metrics"
    stopping = threading.Event()

    def read() -> None:
        while not stopping.wait(1.0):
            with urllib.request.urlopen(url, timeout=10) as answer:
                answer.read()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        yield
    finally:
        stopping.set()
        reader.join()


@contextlib.contextmanager
def copied(state: ServerState, requests: int) -> Generator[None]:
    """Have the front copy every request: as many are ordered as never come."""
    until_us = SystemClock().now_us() + 3_600 * US_PER_S
    order = MirrorOrder.place(state.folder, [SINK], requests, until_us)
    try:
        time.sleep(SETTLE_SECONDS)
        yield
    finally:
        order.remove(state.folder, 1)
        time.sleep(SETTLE_SECONDS)  # the front writes what it has; then that goes, too
        order.remove(state.folder, 1)


@contextlib.contextmanager
def nothing() -> Generator[None]:
    """Wait as long as the others do."""
    time.sleep(SETTLE_SECONDS)
    yield


def measured(port: int, seconds: int, rounds: int) -> tuple[list[Figure], dict[str, Any]]:
    """Latency with each beside, by round."""
    served = Served(one_stage_plan(batch=1, vgpus=4, rate_rps=RATE_QUIET), port)
    runs: dict[str, list[dict[str, float]]] = {}
    with served as state:
        tracer = Tracer(state)
        many = round(2 * RATE_QUIET * seconds)
        kinds: dict[str, Beside] = {
            PLAIN: nothing,
            TRACES: tracer.beside,
            SCRAPED: partial(scraped, state),
            AGAIN: nothing,
            COPIED: partial(copied, state, many),
        }
        load(state, served.plan_file(), RATE_QUIET, 2)  # everything is warm then
        for number in range(rounds):
            first = number % len(kinds)
            for kind in [*kinds][first:] + [*kinds][:first]:
                with kinds[kind]():
                    row = load(state, served.plan_file(), RATE_QUIET, seconds)
                runs.setdefault(kind, []).append(row["latency_ms"])
    return figures_of(runs, tracer.received), {"latency_ms": runs, "traces": tracer.received}


def figures_of(runs: dict[str, list[dict[str, float]]], traces: int) -> list[Figure]:
    """Differences of each kind from the plain runs of its round, beside theirs from each other."""
    figures: list[Figure] = []
    for quantile in QUANTILES:
        pairs = [
            (one[quantile], other[quantile])
            for one, other in zip(runs[PLAIN], runs[AGAIN], strict=True)
        ]
        noise = max(abs(one - other) for one, other in pairs)
        for kind in (TRACES, SCRAPED, COPIED):
            added = [
                row[quantile] - sum(pair) / 2 for row, pair in zip(runs[kind], pairs, strict=True)
            ]
            judged = noise if (kind, quantile) == (TRACES, "p50") else None
            name = f"added {quantile}: {kind}"
            figures.append(Figure(name=name, value=median(added), unit="ms", most=judged))
        name = f"noise of {quantile}: largest difference of two plain runs of a round"
        figures.append(Figure(name=name, value=noise, unit="ms"))
    plain = median(row["p50"] for row in (*runs[PLAIN], *runs[AGAIN]))
    figures.append(Figure(name="p50 with nothing beside", value=plain, unit="ms"))
    figures.append(Figure(name="traces received", value=traces, least=1))
    return figures


def main() -> int:
    """Run, print the table, exit 1 where a target is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--port", type=int, default=18_140)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    add_destinations(parser)
    options = parser.parse_args()
    figures, raw = measured(options.port, options.seconds, options.rounds)
    return conclude(options, "watching", figures, raw)


if __name__ == "__main__":
    sys.exit(main())
