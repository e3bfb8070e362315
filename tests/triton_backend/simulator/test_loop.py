"""The simulator's event loop ends whatever its counts say, so that errors can be named."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.plans import two_stages
from triton_backend.scheduler.compiled import FAR
from triton_backend.simulator.run import prepare, run_on
from triton_backend.simulator.scenario import SimOptions
from triton_backend.simulator.world import DROPPED, SERVED

ROOT = Path(__file__).resolve().parents[3]
MISCOUNTED = """
from tests.fakes.plans import two_stages
from triton_backend.contract.errors import InvariantError
from triton_backend.simulator import run
from triton_backend.simulator.scenario import SimOptions

new_world = run.new_world

def miscounted(*args, **more):
    world = new_world(*args, **more)
    world.tables.counts["unsettled"] = 1  # nothing is listed or touched
    return world

run.new_world = miscounted
try:
    run.simulate(two_stages(), SimOptions(duration_s=0.5))
except InvariantError as error:
    print(error)
"""


@pytest.mark.slow
def test_a_count_of_what_is_to_be_settled_that_is_too_high_ends_the_run_all_the_same() -> None:
    """A process of its own, which an endless loop cannot hold."""
    command = [sys.executable, "-c", MISCOUNTED]
    plain = os.environ | {"NUMBA_DISABLE_JIT": "1"}
    ran = subprocess.run(
        command, cwd=ROOT, env=plain, capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "unsettled" in ran.stdout


def test_a_timer_that_lies_in_the_past_does_not_take_the_time_back() -> None:
    plan = two_stages()
    world = prepare(plan, SimOptions(duration_s=0.5, load_factor=0.5))
    cursor, counts = world.cursor[0], world.tables.counts[0]
    cursor["stop_us"] = 100_000
    world = run_on(world, plan)
    now_us = int(counts["now_us"])
    assert 0 < now_us < 100_000
    world.tables.queues[0]["timer_us"] = now_us - 500
    cursor["stop_us"] = now_us
    steps = int(cursor["steps"])
    world = run_on(world, plan)
    assert int(counts["now_us"]) == now_us
    assert int(cursor["steps"]) == steps
    cursor["stop_us"] = FAR
    run_on(world, plan)
    assert set(world.requests["outcome"].tolist()) <= {SERVED, DROPPED}
