"""What holds for all tests."""

import signal
import sys
from collections.abc import Iterator

import pytest

# A shell starts background jobs with SIGINT ignored, and programs started here would inherit that;
# a handler, unlike SIG_IGN, does not outlive exec.
signal.signal(signal.SIGINT, signal.default_int_handler)

STARTING = {"subprocess.Popen", "os.fork", "os.posix_spawn"}
QUICK_PROGRAMS = {"git", "lscpu", "uname"}  # what libraries and the repository's own tests ask
_started: list[str] = []


def _note_process(event: str, arguments: tuple[object, ...]) -> None:
    if event in STARTING:
        program = str(arguments[0]).rpartition("/")[2] if arguments else event
        if program not in QUICK_PROGRAMS:
            _started.append(program)


sys.addaudithook(_note_process)


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
