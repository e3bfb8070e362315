"""A real Triton under load whose scheduler, or both of its processes, are killed or stopped."""

import os
import signal
from collections.abc import Iterator

import numpy as np
import psutil
import pytest

from flows.release.rollout.outcomes import read_outcomes
from scripts.benchmarks.served import FAILED, Load, Served, samples_file, small_plan
from tests.ports import free_ports
from tests.triton_backend.serving.system import wait_for
from triton_backend.contract.errors import PoolPipeError
from triton_backend.serve_folder.endpoints import Endpoints
from triton_backend.serve_folder.repository import CONTROL_MODEL, STANDBY_MODEL

pytestmark = pytest.mark.slow
MOST_SECONDS, GIVE_UP_S = 30.0, 2.0
SERVED_AFTER = 50  # requests, by the scheduler that took over
ANSWERED_US = 1_000_000  # past the deadline: a front says so within 0.1 s, a killed process never


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    made = Served(small_plan("takeover", ("alpha",)), 0)
    http, grpc, metrics = free_ports(3)
    made.ports = Endpoints(http=http, grpc=grpc, metrics=metrics)
    with made:
        yield made


def scheduler(served: Served) -> dict[str, object]:
    """The scheduler's entry in the status; empty without an answer."""
    try:
        return served.state.control("status")["scheduler"]
    except PoolPipeError:
        return {}


def in_time(served: Served) -> int:
    """Requests that were served in time, by what the fronts publish."""
    return sum(each.served for each in read_outcomes(served.state.metrics_urls).values())


def all_up(served: Served) -> bool:
    """True if every worker takes batches; False without an answer."""
    try:
        workers = served.state.control("status")["workers"]
    except PoolPipeError:
        return False
    return workers["up"] == workers["total"]


def process_of(served: Served, model: str) -> psutil.Process:
    return psutil.Process(int((served.folder / "pids" / model).read_text().split()[0]))


@pytest.mark.parametrize("fault", ["killed", "stopped", "both killed"])
def test_another_takes_over_and_no_answer_is_wrong_or_missing(served: Served, fault: str) -> None:
    wait_for(lambda: scheduler(served).get("standby") == "ready")
    before = scheduler(served)
    active, standby = str(before["active"]), {CONTROL_MODEL, STANDBY_MODEL} - {before["active"]}
    checks = [f"--check={m.name}={samples_file(served.root, m)}" for m in served.plan.models]
    plan_file = served.write_plan(served.plan, "plan")
    load = Load(
        served.state.grpc_url,
        plan_file,
        "--load-factor=0.4",
        f"--duration={MOST_SECONDS}",
        f"--give-up-s={GIVE_UP_S}",
        *checks,
    )
    wait_for(lambda: served.state.control("status")["in_flight"] > 0)
    victims = [process_of(served, active)]
    if fault == "both killed":
        victims += [process_of(served, name) for name in standby]
    for victim in victims:
        os.kill(victim.pid, signal.SIGSTOP if fault == "stopped" else signal.SIGKILL)
    if fault != "both killed":
        wait_for(lambda: {scheduler(served).get("active")} == standby)
    wait_for(lambda: all_up(served))
    known = in_time(served)
    wait_for(lambda: in_time(served) > known + SERVED_AFTER)
    load.stop()
    loaded = load.result()
    # One that was stopped never wakes.
    assert not [v for v in victims if v.is_running() and v.status() != psutil.STATUS_ZOMBIE]
    records = loaded.records
    unanswered = (records["outcome"] == FAILED) & (loaded.waited_past_deadline_us() > ANSWERED_US)
    assert not np.any(unanswered)
    assert not sum(row["checked"]["wrong"] for row in loaded.summary["models"].values())
    wait_for(lambda: scheduler(served).get("standby") == "ready")
    assert int(str(scheduler(served)["life"])) > int(str(before["life"]))
    # One whose reports came late meanwhile is taken out and back.
    wait_for(lambda: all_up(served))
