"""Systems that a benchmark serves end with it, by a time limit, too."""

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from flows.release.server.running import read_state
from scripts.benchmarks.served import run_to_its_end
from tests.ports import free_ports
from tests.triton_backend.serving.system import processes_of, wait_for

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[3]
SERVE = """
import sys, time
from pathlib import Path
from scripts.benchmarks.served import Load, Served, small_plan

small = small_plan("ended", names=(), quick=("quick",))
with Served(small, int(sys.argv[1]), within=Path(sys.argv[2])) as served:
    plan = served.write_plan(served.plan, "plan")
    load = Load(served.state.grpc_url, plan, "--load-factor=0.05", "--duration=600")
    print(served.folder, load._process.pid, flush=True)
    time.sleep(600)
"""
# It stands for a program that serves: it ends what it has started when it is terminated.
STOPS = """
import sys, time
from scripts.benchmarks.served import stop_when_terminated

stop_when_terminated()
try:
    open(sys.argv[1], "w").close()
    time.sleep(600)
finally:
    open(sys.argv[2], "w").close()
"""


def words(code: str, *arguments: object) -> list[str]:
    return [sys.executable, "-c", code, *map(str, arguments)]


def test_a_time_limit_ends_the_system_that_a_benchmark_serves(tmp_path: Path) -> None:
    command = words(SERVE, free_ports(3)[0], tmp_path)
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        folder, load = program.stdout.readline().split()
        group = int(read_state(Path(folder)).data["process_group"])
        assert len(processes_of({group})) > 5
        program.send_signal(signal.SIGTERM)
    assert program.returncode == 128 + signal.SIGTERM
    assert processes_of({group}) == []
    wait_for(lambda: not psutil.pid_exists(int(load)))
    assert list(tmp_path.iterdir()) == []


def test_a_time_limit_while_a_system_starts_leaves_nothing(tmp_path: Path) -> None:
    command = words(SERVE, free_ports(3)[0], tmp_path)
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as program:
        wait_for(lambda: any(tmp_path.glob("*/serve/logs/server.log")))
        program.send_signal(signal.SIGTERM)
    assert program.returncode == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGALRM])
def test_each_time_limit_runs_what_ends_a_system(tmp_path: Path, number: signal.Signals) -> None:
    began, ended = tmp_path / "began", tmp_path / "ended"
    with subprocess.Popen(words(STOPS, began, ended), cwd=ROOT) as program:
        wait_for(began.exists)
        program.send_signal(number)
    assert (program.returncode, ended.exists()) == (128 + number, True)


def test_who_is_interrupted_has_the_program_that_it_runs_stop_too(tmp_path: Path) -> None:
    began, ended = tmp_path / "began", tmp_path / "ended"
    code = f"""
import sys
from scripts.benchmarks.served import run_to_its_end, stop_when_terminated

stop_when_terminated()
run_to_its_end([sys.executable, "-c", {STOPS!r}, *sys.argv[1:]])
"""
    with subprocess.Popen(words(code, began, ended), cwd=ROOT) as program:
        wait_for(began.exists)
        program.send_signal(signal.SIGTERM)
    assert (program.returncode, ended.exists()) == (128 + signal.SIGTERM, True)


def test_a_program_that_ends_by_itself_gives_its_output() -> None:
    command = words("import sys; print('said'); sys.exit(3)")
    done = run_to_its_end(command, stdout=subprocess.PIPE)
    assert (done.returncode, done.stdout) == (3, "said\n")
