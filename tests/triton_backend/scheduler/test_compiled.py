"""Kernels answer alike compiled and as plain Python, and compile once for all processes."""

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from tests.interpreters import ROOT, printed_by
from triton_backend.scheduler.compiled import BOUNDS_CHECKED, Integers, _imported, entry

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


class Narrow(NamedTuple):
    first: int


class Wide(NamedTuple):
    first: int
    second: int


def test_a_kernel_is_remembered_with_the_constants_and_fields_that_it_imports() -> None:
    """A kernel whose constant changes in another file must not come from the cache."""
    assert _imported({"SEATS": 3, "Row": Narrow, "name": "any"}) == {
        "SEATS = 3",
        "Row = ('first',)",
    }
    assert _imported({"SEATS": 4}) == {"SEATS = 4"}
    assert _imported({"Row": Wide}) == {"Row = ('first', 'second')"}


@entry
def written_at(array: Integers, index: int) -> int:
    array[index] = 1
    return index


def test_a_process_that_is_to_check_indices_does() -> None:
    """Or `scripts/test --bounds` would pass for want of checks."""
    assert (os.environ.get("NUMBA_BOUNDSCHECK") == "1") == BOUNDS_CHECKED
    if BOUNDS_CHECKED and os.environ.get("NUMBA_DISABLE_JIT") != "1":
        array = np.zeros(4, np.int64)
        for index in (3, -1):
            with pytest.raises(IndexError):
                written_at(array[:3], index)


BEYOND = """
from triton_backend.scheduler.compiled import entry, inlined, kernel

@kernel
def written(array, index):
    array[index] = 1

@inlined
def counted(records, index):
    records[index]["count"] += 1

@entry
def called(array, records, index):
    written(array, index)
    counted(records, index)
    return 0
"""

OVERRUN = """
import numpy as np
from beyond import called
array, records = np.zeros(3, np.int64), np.zeros(3, np.dtype([("count", np.int64)]))
print(called(array, records, 2), len(called.stats.cache_misses))
for wrong in (
    (array, records, 3), (array, records, -1), (array, records[:2], 2), (array[1:], records, 2)
):
    try:
        print(called(*wrong))
    except IndexError as error:
        print(error)
"""


@pytest.mark.slow
def test_the_checked_build_raises_where_an_index_is_beyond_its_array(tmp_path: Path) -> None:
    (tmp_path / "beyond.py").write_text(BEYOND)
    own = {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    unchecked = "from beyond import called\nimport numpy as np\nwords = np.zeros(9, np.int64)\n"
    unchecked += "print(called(words[:3], words.view([('count', np.int64)])[4:], 3))"
    assert printed_by(unchecked, compiled=True, NUMBA_BOUNDSCHECK="0", **own) == "0\n"
    for misses in (1, 0):  # it has files of its own, which the other build does not load
        printed = printed_by(OVERRUN, compiled=True, NUMBA_BOUNDSCHECK="1", **own)
        assert printed.splitlines() == [f"0 {misses}", *["index is out of bounds"] * 4]
    assert printed_by(unchecked, compiled=True, NUMBA_BOUNDSCHECK="0", **own) == "0\n"
