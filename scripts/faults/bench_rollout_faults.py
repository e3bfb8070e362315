"""Steps x faults: processes killed at each step of a rollout under load, and what is left.

One table row per step, one column per fault: the plan in force at the end (old or new), and the
requests lost (never answered) beside those open when the process was killed. Late requests, and
those refused because no worker could serve them in time, are counted in the raw rows. The end state
must be one whole plan. Flows run through a real Prefect server and worker, which are killed too and
started again by `operations up`, and the next rollout goes through them. The load begins before
each rollout and ends after its end state was seen whole.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from flows.clock import Stopwatch, now_utc
from flows.deployments import local as operations
from flows.release.rollout.outcomes import read_outcomes
from flows.release.server import admin
from scripts.benchmarks.figures import Figure, add_destinations, exit_code, show, store
from scripts.benchmarks.served import DROPPED, FAILED, LATE, Load, stop_when_terminated
from scripts.faults import rollout_faults as faults
from triton_backend.contract.errors import PoolPipeError
from triton_backend.serve_folder.endpoints import Endpoints
from triton_backend.serve_folder.repository import render_repository
from triton_backend.serve_folder.settings import ServeOptions
from warehouse.plans import add_plan

LOAD_FACTOR, GIVE_UP_S = 0.4, 2.0
LEAD_REQUESTS, TAIL_SECONDS, LONGEST_SECONDS = 20, 1.0, 300.0
ANSWERED_US = 1_000_000  # past the deadline: a front says so within 0.1 s, a killed process never


def cell(live: faults.Live, step: str, fault: str, folder: Path) -> dict[str, Any]:
    """One rollout with one fault, under load.

    Raises:
        AssertionError: a mixture of plans serves at the end, or the load ended before.
        OSError, PoolPipeError, RuntimeError: a step never came, or nothing serves again.
    """
    going = faults.begin(live, step, folder)
    old, new = live.status()["plan_id"], going.plan.plan_id
    (going.begin_by_prefect if fault in faults.BY_PREFECT else going.begin_here)()
    load = begin_load(live)
    try:
        going.reach()
        struck_us = time.monotonic_ns() // 1000
        row: dict[str, Any] = {"step": step, "fault": fault}
        strike(live, going, fault)
        going.wait()
        in_force = faults.whole(live)
        healed_us = time.monotonic_ns() // 1000
        time.sleep(TAIL_SECONDS)
    finally:
        load.stop()
        loaded = load.result()
    begun, done = loaded.records["intended_us"], loaded.records["done_us"]
    at = struck_us - loaded.started_us
    if begun.max() < healed_us - loaded.started_us:
        raise AssertionError(f"the load ended after {LONGEST_SECONDS:g} s, before all was well")
    outcomes = loaded.records["outcome"]
    lost = (outcomes == FAILED) & (loaded.waited_past_deadline_us() > ANSWERED_US)
    row |= {
        "plan": {old: "old", new: "new"}[in_force],
        "offered": len(outcomes),
        "open": int(((begun <= at) & (done > at)).sum()),
        "lost": int(lost.sum()),
        "late": int((outcomes == LATE).sum()),
        "refused": int(((outcomes == DROPPED) | (outcomes == FAILED)).sum() - lost.sum()),
        "healed_after_s": (healed_us - struck_us) / 1e6,
        "messages": loaded.summary["messages"],
        "said": going.failures,
    }
    return row


def begin_load(live: faults.Live) -> Load:
    """Load, once its first requests were answered."""
    before = answered(live)
    load = Load(
        live.state.grpc_url,
        live.work.state.home / "plan.json",
        f"--load-factor={LOAD_FACTOR}",
        f"--duration={LONGEST_SECONDS}",
        f"--give-up-s={GIVE_UP_S}",
    )
    faults.wait_until("the load begins", lambda: answered(live) >= before + LEAD_REQUESTS)
    return load


def answered(live: faults.Live) -> int:
    """Requests that have ended since the gateway started."""
    return sum(each.ended for each in read_outcomes(live.state.metrics_urls).values())


def strike(live: faults.Live, going: faults.Going, fault: str) -> None:
    """The fault, and what a supervisor does about it while the rollout goes on."""
    going.strike(fault)
    going.go_on()
    if live.place is not None and fault in {faults.WORKER, faults.SERVER}:
        faults.restart_prefect(live.place)


def as_figures(rows: list[dict[str, Any]]) -> list[Figure]:
    """One figure per cell: requests lost, at most those open on the killed process."""
    return [
        Figure(
            name=f"{row['fault']} killed after {row['step']}: requests lost",
            value=None if "broken" in row else row["lost"],
            most=row.get("open", 0) if row["fault"] not in faults.BY_PREFECT else 0,
            note=row.get("broken")
            or f"{row['plan']} plan; of {row['offered']}: late {row['late']}, refused "
            f"{row['refused']}",
        )
        for row in rows
    ]


def table(rows: list[dict[str, Any]]) -> str:
    """Steps down, faults across."""
    found = {(row["step"], row["fault"]): row for row in rows}
    lines = [f"{'after':<10}" + "".join(f"{fault:>22}" for fault in faults.FAULTS)]
    for step in faults.STEPS:
        cells = [found.get((step, fault)) for fault in faults.FAULTS]
        lines.append(f"{step:<10}" + "".join(f"{words(each):>22}" for each in cells))
    return "\n".join(lines)


def words(row: dict[str, Any] | None) -> str:
    """One cell."""
    if row is None:
        return "-"
    return "BROKEN" if "broken" in row else f"{row['plan']}, {row['lost']} of {row['open']}"


def cells_of(asked: argparse.Namespace) -> list[tuple[str, str]]:
    """Steps and faults asked for, by step; all without a word."""
    steps, wanted = asked.step or faults.STEPS, asked.fault or faults.FAULTS
    every = [(step, fault) for step in faults.STEPS for fault in faults.FAULTS]
    if asked.cell:
        return [each for each in every if ":".join(each) in asked.cell]
    return [each for each in every if each[0] in steps and each[1] in wanted]


def run(asked: argparse.Namespace, home: Path) -> list[dict[str, Any]]:
    """Every cell asked for."""
    plans = faults.emulated_plans()
    work = faults.project(home)
    with work.open() as warehouse:
        for plan in plans:
            add_plan(warehouse, plan, now_utc())
    (home / "plan.json").write_text(json.dumps(plans[0].to_dict()))
    render_repository(work.state.serve, plans[0], ServeOptions())
    ports = Endpoints(http=asked.port, grpc=asked.port + 1, metrics=asked.port + 2)
    cells = cells_of(asked)
    needs_prefect = any(fault in faults.BY_PREFECT for _, fault in cells)
    rows: list[dict[str, Any]] = []
    place = faults.start_prefect(home, asked.port + 10) if needs_prefect else None
    try:
        state = admin.start(work.state.serve, ports)
        live = faults.Live(work=work, state=state, plans=plans, place=place)
        for step, fault in cells:
            watch = Stopwatch()
            try:
                folder = home / f"{step}-{fault}".replace(" ", "-")
                row = cell(live, step, fault, folder)
            except (AssertionError, OSError, PoolPipeError, RuntimeError) as error:
                row = {"step": step, "fault": fault, "broken": str(error)}
            rows.append(row | {"seconds": watch.seconds()})
            print(rows[-1], flush=True)
    finally:
        admin.stop(work.state.serve)
        if place is not None:
            operations.down(place)
    return rows


def main() -> int:
    """Run, print, store."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--step", action="append", choices=faults.STEPS)
    parser.add_argument("--fault", action="append", choices=faults.FAULTS)
    parser.add_argument("--cell", action="append", metavar="STEP:FAULT", help="only these")
    parser.add_argument(
        "--port", type=int, default=23_100, help="of HTTP; the next 12 are used too"
    )
    add_destinations(parser)
    asked = parser.parse_args()
    stop_when_terminated()
    home = Path(tempfile.mkdtemp(prefix="poolpipe-faults-"))
    try:
        rows = run(asked, home)
    except (KeyboardInterrupt, SystemExit):
        shutil.rmtree(home)
        raise
    figures = as_figures(rows)
    show(figures)
    print(table(rows))
    store(asked, "rollout faults", figures, {"rows": rows})
    if any("broken" in row for row in rows):
        print(f"left for inspection: {home}")
        return 1
    shutil.rmtree(home)
    return exit_code(figures)


if __name__ == "__main__":
    sys.exit(main())
