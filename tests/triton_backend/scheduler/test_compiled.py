"""Kernels give the same answers compiled and as plain Python, and are compiled once for all processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.interpreters import ROOT, printed_by

PROGRAM = """
import json
from tests.fakes.plans import Own, make_plan, two_stages
from triton_backend.scheduler.scheduler import Scheduler
from triton_backend.contract.events import *
from triton_backend.scheduler.policies.registry import POLICIES
from triton_backend.simulator.scenario import PlanChange, SimOptions
from triton_backend.simulator.failures import Failure
from triton_backend.simulator.run import simulate
out = []
one = make_plan([[Own(latency_us=(3_000, 5_000, 6_500, 8_000), gpus=4)]], slo_us=50_000)
other = make_plan([[Own(latency_us=(9_000, 9_500))]], slo_us=50_000)
for policy in POLICIES:
    options = SimOptions(
        policy=policy, duration_s=0.6, load_factor=1.1, latency_noise_cv=0.1, seed=3,
        failures=(Failure(start_s=0.2, end_s=0.4, vgpu=1),),
        changes=(PlanChange(at_s=0.25, plan=other), PlanChange(at_s=0.255, plan=one)),
    )
    result = simulate(one if policy.startswith("turns") else two_stages(slo_us=50_000), options)
    out.append([result.to_dict(), result.requests.tolist(), result.uses.tolist()])
result = simulate(
    two_stages(slo_us=50_000),
    SimOptions(policy="reactive", duration_s=0.6, latency_noise_cv=0.1, seed=3),
)
out.append([result.to_dict(), result.requests.tolist(), result.uses.tolist()])
scheduler = Scheduler(two_stages())
for n in range(40):
    out.append(repr(scheduler.handle(
        Arrival(now_us=n * 700, request_id=n, model=0, deadline_us=n * 700 + 40_000)
    )))
out.append(repr(scheduler.handle(PlanChanged(now_us=28_000, plan=other))))
out.append(repr(scheduler.handle(WorkerLost(now_us=28_000, vgpu=4, plan=0))))
print(json.dumps(out))
"""


@pytest.mark.slow
def test_everything_runs_identically_with_the_compiler_off() -> None:
    assert printed_by(PROGRAM, compiled=False) == printed_by(PROGRAM, compiled=True) != ""


WANTED = """
import sys
sys.stdin.readline()
from added import doubled
value = doubled(21)
print(value, len(doubled.stats.cache_misses), len(doubled.stats.cache_hits))
"""

ADDED = """
from triton_backend.scheduler.compiled import entry

@entry
def doubled(number):
    return 2 * number
"""


@pytest.mark.slow
def test_of_processes_that_want_a_kernel_at_once_one_compiles_it(tmp_path: Path) -> None:
    (tmp_path / "added.py").write_text(ADDED)
    own = {"NUMBA_DISABLE_JIT": "0", "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    waiting = [
        subprocess.Popen(
            [sys.executable, "-c", WANTED],
            env=os.environ | own,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    for process in waiting:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    said = sorted(process.communicate()[0].split() for process in waiting)
    assert said == [["42", "0", "1"], ["42", "0", "1"], ["42", "1", "0"]]
