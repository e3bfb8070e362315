"""The files on the way of one request, as the documentation lists them, are those that run."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.repository.files import ROOT

PACKAGE = ROOT / "triton_backend"
TEXT = (ROOT / "docs" / "explanation" / "request.md").read_text()
MOST_FILES = 25
TRITON = "serving/server/triton_models.py"  # runs only inside Triton

# Requests through front, scheduler and two workers, all in this process, with kernels as plain
# Python: prints for each the files of which a function is called between question and answer.
PROGRAM = """
import json, sys, tempfile, threading
from dataclasses import replace
from pathlib import Path

ran, traced = set(), False

def note(frame, event, _):
    if traced and event == "call":
        ran.add(frame.f_code.co_filename)

threading.setprofile(note)
sys.setprofile(note)
import numpy as np
from tests.triton_backend.serving.small_plans import BATCH, plan, two_stage
from tests.triton_backend.serving.system import LocalSystem
from triton_backend.contract.plan import DEFAULT_POLICY

tensors = {"image": np.ones((BATCH, 3, 16), np.float32), "mask": np.ones((BATCH, 4), np.uint8)}
made = plan(two_stage())
models = tuple(replace(model, policy=DEFAULT_POLICY) for model in made.models)
system = LocalSystem(Path(tempfile.mkdtemp()) / "serve", replace(made, models=models))
system.ask("pair", tensors, 10_000_000)()
for _ in range(5):
    ran, traced = set(), True
    answer = system.ask("pair", tensors, 10_000_000)()
    traced = False
    assert isinstance(answer, dict), answer
    print(json.dumps(sorted(ran)), flush=True)
system.stop()
"""


def on_the_way() -> list[str]:
    return re.findall(r"^\| \d+ \| `([a-z_/]+\.py)` \| \S", TEXT, re.MULTILINE)


def beside_it() -> set[str]:
    paragraph = TEXT[TEXT.index("What else runs meanwhile") :].partition("\n\n")[0]
    return set(re.findall(r"`([a-z_/]+\.py)`", paragraph))


def test_the_way_of_a_request_is_short_enough_to_read() -> None:
    assert 0 < len(on_the_way()) <= MOST_FILES
    assert len(set(on_the_way())) == len(on_the_way())
    assert [name for name in (*on_the_way(), *beside_it()) if not (PACKAGE / name).is_file()] == []


@pytest.mark.slow
def test_the_files_that_run_for_a_request_are_those_listed() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        env=dict(os.environ) | {"PYTHONPATH": str(ROOT), "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    runs = [
        {
            str(f.relative_to(PACKAGE))
            for f in map(Path, json.loads(line))
            if f.is_relative_to(PACKAGE)
        }
        for line in done.stdout.splitlines()
        if line.startswith("[")
    ]
    assert set(on_the_way()) - {TRITON} - set.union(*runs) == set()
    # Periodic checks run beside some of them only.
    assert set.intersection(*runs) - set(on_the_way()) - beside_it() == set()
