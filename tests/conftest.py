"""Settings of all tests."""

import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.filling import NICENESS, FillingScheduling, is_filling_here

# A shell starts background jobs with SIGINT ignored, and programs started here would inherit that;
# a handler, unlike SIG_IGN, does not outlive exec.
signal.signal(signal.SIGINT, signal.default_int_handler)
# A time limit (`timeout 600 pytest`) ends as Ctrl-C does, by what stops the systems that tests have
# started.
signal.signal(signal.SIGTERM, signal.default_int_handler)

# Where Python is to write no bytecode, pytest would rewrite all assertions in each process.
sys.dont_write_bytecode = False

# How fast examples are drawn and run is the machine's, not the test's.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

TESTS = Path(__file__).parent
BEGIN = (
    # Those that need no kernels, which are compiled meanwhile (`kernels.py`).
    "flows/deployments/test_shared_server.py",
    "flows/preparation",
    # Those that take longest.
    "flows/deployments/test_quickstart.py",
    "scripts/faults/test_bench_rollout_faults.py",
    "flows/cli/operate/test_autoscale.py",
    "flows/deployments/orchestration/test_nightly.py",
    "flows/deployments/test_replan_applications.py",
    "flows/release/rollout/test_loading.py",
    "triton_backend/serving/server/test_tritonserver_two_gateways.py",
    "triton_backend/scheduler/test_compiled.py",
    "triton_backend/scheduler/policies/test_registry.py",
    "triton_backend/scheduler/test_jobs.py",
)
"""Files and folders that start first, one process each, so that none ends late."""
MARKS = "slow", "long"
"""Files with such a test come before those without: what is left at the end is short."""

STARTING = {"subprocess.Popen", "os.fork", "os.posix_spawn"}
PLAIN_REQUESTS = 1_000  # 100,000 take minutes
QUICK_PROGRAMS = {"fc-list", "git", "lscpu", "uname"}  # calls of libraries and of our own tests
_started: list[str] = []


def _note_process(event: str, arguments: tuple[object, ...]) -> None:
    if event in STARTING:
        program = str(arguments[0]).rpartition("/")[2] if arguments else event
        if program not in QUICK_PROGRAMS:
            _started.append(program)


sys.addaudithook(_note_process)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare how `scripts/test` has all tests spread."""
    parser.addoption("--filling", action="store_true", help="the last process fills (filling.py)")


def pytest_configure(config: pytest.Config) -> None:
    """Give way to the other processes, where this one fills."""
    if config.getoption("filling", default=False) and is_filling_here(os.environ):
        os.nice(NICENESS)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Spread as `filling.py` says, where asked to."""
    return FillingScheduling(config, log) if config.getoption("filling", default=False) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests that begin first, in the order of `BEGIN`; then file by file, by `MARKS`."""
    places = {TESTS / name: number for number, name in enumerate(BEGIN)}
    marked = [{i.path for i in items if i.get_closest_marker(mark)} for mark in MARKS]

    def place(item: pytest.Item) -> tuple[int, ...]:
        found = (places[path] for path in (item.path, *item.path.parents) if path in places)
        return next(found, len(places)), *(item.path not in paths for paths in marked)

    items.sort(key=place)


def pytest_collection_finish() -> None:
    """Leave what is loaded by now out of Python's collections, which take a tenth of the time."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Forget what other tests started."""
    del item
    _started.clear()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Hold what the mark `slow` says: without it a test starts no process."""
    result = yield
    if _started and item.get_closest_marker("slow") is None:
        pytest.fail(f"starts {', '.join(_started)}: mark it `slow`")
    return result


@pytest.fixture(autouse=True)
def _all_cores() -> Iterator[None]:
    """A system whose workers are threads loads stages in the test's own, which they pin.

    The next test has all cores.
    """
    before = os.sched_getaffinity(0)
    yield
    os.sched_setaffinity(0, before)


@pytest.fixture(autouse=True, scope="session")
def _few_requests_of_plain_kernels() -> Iterator[None]:
    """Where kernels run as plain Python, a plan is simulated for `PLAIN_REQUESTS`, not 100,000."""
    with pytest.MonkeyPatch.context() as patch:
        if os.environ.get("NUMBA_DISABLE_JIT") == "1":
            patch.setattr("flows.planning.promises.attainment.MOST_REQUESTS", PLAIN_REQUESTS)
        yield
