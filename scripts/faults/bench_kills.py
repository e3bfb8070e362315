"""tritonserver killed again and again.

Does it come back every time, and does the other one of two go on? The models of `bench_faults` are
served by the real Triton and loaded with requests whose right answers are known. Every `--every`
seconds the server is killed; with `--two-gateways` the second of two, where clients send what fails
once more. A server that keeps dying is started after pauses that double.

    .venv/bin/python scripts/faults/bench_kills.py [--times 10] [--every 60] [--two-gateways]
        [--load-factor 0.3] [--out FILE]

Of every kill: seconds until the server is ready and every model answers. Of all of it: wrong
answers, requests dropped and failed; with two servers how often the first one did not answer one of
ten probes a second.
"""

import argparse
import contextlib
import os
import signal
import sys
import threading
import time
import urllib.request
from typing import Any

from flows.clock import Stopwatch
from scripts.benchmarks.figures import Figure, add_destinations, conclude
from scripts.benchmarks.served import Served, small_plan
from scripts.faults.bench_faults import checked_load, counted
from scripts.faults.probe import PROBE_SECONDS, wait_well
from triton_backend.contract.errors import PoolPipeError
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.serve_folder.state import servers_of

WARM_UP_S = 3.0
PROBE_TIMEOUT_S = 2.0


class Other(threading.Thread):
    """Asks a server whether it lives, ten times a second, until it is ended."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._over = threading.Event()
        self.asked = self.silent = 0

    def run(self) -> None:
        """Ask."""
        while not self._over.wait(PROBE_SECONDS):
            self.asked += 1
            try:
                with urllib.request.urlopen(self._url, timeout=PROBE_TIMEOUT_S):  # noqa: S310  # our own server
                    pass
            except OSError:
                self.silent += 1

    def end(self) -> None:
        """Ask no more."""
        self._over.set()
        self.join()


def server(served: Served, number: int) -> dict[str, Any]:
    """A server's entry in the state file; empty while it has none."""
    with contextlib.suppress(PoolPipeError):
        return servers_of(served.state.data)[number] or {}
    return {}


def killed(served: Served, number: int, every_s: float) -> dict[str, Any]:
    """One kill, and what follows until the next one."""
    watch, pid = Stopwatch(), int(server(served, number)["triton_pid"])
    os.kill(pid, signal.SIGKILL)
    back_s = None
    while watch.seconds() < every_s:
        time.sleep(PROBE_SECONDS)
        now = server(served, number)
        if back_s is None and now.get("triton_pid") not in (None, pid) and now["ready"]:
            back_s = watch.seconds() if wait_well(served) else None
    return {"back_s": back_s, "load_average": os.getloadavg()[0]}


def kill_again_and_again(served: Served, options: argparse.Namespace) -> dict[str, Any]:
    """Load, and all kills; what became of the requests."""
    number = int(options.two_gateways)
    first = server(served, 0)["triton_pid"]
    seconds = WARM_UP_S + options.times * options.every
    load = checked_load(served, options.load_factor, seconds, number)
    other = Other(served.state.metrics_url) if number else None
    if other is not None:
        other.start()
    time.sleep(WARM_UP_S)
    rows: list[dict[str, Any]] = []
    for _ in range(options.times):
        rows.append(killed(served, number, options.every))
        print(f"killed, back after {rows[-1]['back_s']} s", flush=True)
    found = counted(load.result()) | {"rows": rows}
    if other is not None:
        other.end()
        same = server(served, 0)["triton_pid"] == first
        found |= {"asked": other.asked, "silent": other.silent, "other_is_the_same": same}
    return found


def main() -> int:
    """Run, print, store; exit 1 where a target is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--times", type=int, default=10, help="of the kill")
    add("--every", type=float, default=60.0, help="seconds from one kill to the next")
    add("--two-gateways", action="store_true", help="kill the second of two servers")
    add("--load-factor", type=float, default=0.3, help="of what the plan serves")
    add("--port", type=int, default=18_680, help="the first of those used")
    add_destinations(parser)
    options = parser.parse_args()
    watch = Stopwatch()
    serve = ServeOptions(gateways=1 + options.two_gateways)
    with Served(small_plan("kills"), options.port, serve) as served:
        wait_well(served)
        found = kill_again_and_again(served, options)
        found["whole_again"] = wait_well(served)
    times = [row["back_s"] for row in found["rows"]]
    lost = found["dropped"] + found["failed"]
    figures = [
        Figure(
            name="kills after which it was not back before the next",
            value=times.count(None),
            most=0,
            note=", ".join("-" if each is None else f"{each:.1f} s" for each in times),
        ),
        Figure(name="wrong answers", value=found["wrong"], most=0),
        Figure(
            name="requests dropped or failed",
            value=lost,
            note=f"of {found['offered']}, {found['late']} late, {found['sent_again']} sent again",
        ),
        Figure(name="not whole again", value=int(not found["whole_again"]), most=0),
    ]
    if options.two_gateways:
        figures += [
            Figure(
                name="probes that the other server did not answer",
                value=found["silent"],
                most=0,
                note=f"of {found['asked']}",
            ),
            Figure(
                name="the other server is another one",
                value=int(not found["other_is_the_same"]),
                most=0,
            ),
        ]
    name = "kills of one of two" if options.two_gateways else "kills"
    return conclude(options, name, figures, found | {"wall_seconds": watch.seconds()})


if __name__ == "__main__":
    sys.exit(main())
