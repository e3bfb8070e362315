"""The gateway's log, told to a fresh core, is answered as it was answered live."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.triton_backend.serving.small_plans import plan, two_stage
from tests.triton_backend.serving.system import LocalSystem, deploy, wait_for
from tests.triton_backend.serving.test_system import PATIENT_US, picture
from triton_backend.serve_folder.settings import ServeOptions

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]


def replayed(folder: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, ROOT / "scripts" / "faults" / "replay_events.py", folder],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        check=False,
    )


def test_a_life_with_a_lost_worker_and_a_rollout_is_answered_alike(tmp_path: Path) -> None:
    folder = tmp_path / "serve"
    system = LocalSystem(folder, plan(two_stage()), ServeOptions())
    results = [system.ask("pair", picture(1 + i % 4), PATIENT_US) for i in range(12)]
    system.stop_worker(1, 2)
    results += [system.ask("pair", picture(2)) for _ in range(6)]
    for result in results:
        result()
    new = deploy(folder, replace(system.deployment.plan, plan_id="next"), generation=2)
    for vgpu in range(3):
        system.start_worker(new, vgpu)
    system.control("prepare", plan_id="next", generation=2)
    wait_for(lambda: system.status()["prepared"]["up"] == 3)
    system.control("flush")
    waiting = system.ask("pair", picture(4), PATIENT_US)
    wait_for(lambda: system.status()["state"] == "flushed")
    system.control("swap", plan_id="next")
    waiting()
    wait_for(lambda: not system.status()["in_flight"])
    system.stop()
    done = replayed(folder)
    assert done.returncode == 0, done.stderr
    assert "decisions alike" in done.stdout
    (path,) = (folder / "events").iterdir()
    text = path.read_text()
    path.write_text(text.replace('"samples":4', '"samples":3', 1))
    assert replayed(folder).returncode == 1
    lines = text.splitlines()
    middle = len(lines) // 2
    path.write_text("\n".join([*lines[:middle], '{"t":"Gap","lines":9}', *lines[middle + 5 :]]))
    done = replayed(folder)
    assert done.returncode == 0, done.stderr
    assert "9 lines are missing" in done.stdout
