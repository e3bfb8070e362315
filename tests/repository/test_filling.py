"""Files are spread over processes, one of which fills what the others leave."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.filling import UNTIMED, FillingScheduling, fills, is_filling_here

SERVER = "@pytest.mark.slow\ndef test_it(): ...\n"
SHORT = "def test_it(): ...\n"
FILES = {"a": SERVER, "b": SERVER, "c": SHORT, "d": SERVER, "e": SHORT}


class Node:
    """A process as the scheduler knows it: asked to run tests by their places."""

    def __init__(self, name: str, files: list[str]) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.shutting_down = False
        self.asked: list[str] = []
        self._files = files

    def send_runtest_some(self, places: list[int]) -> None:
        self.asked += [self._files[place] for place in places]

    def shutdown(self) -> None:
        self.shutting_down = True


class Config:
    """The settings of pytest that the scheduler reads."""

    option = SimpleNamespace(loadscopereorder=False)

    def __init__(self, processes: int) -> None:
        self._processes = ["popen"] * processes

    def getvalue(self, _name: str) -> list[str]:
        return self._processes


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    fills.cache_clear()
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / f"test_{name}.py").write_text(text)
    return [f"test_{name}.py" for name in FILES]


def spread(files: list[str], processes: int) -> list[Node]:
    """Processes that run every test as soon as they are asked to."""
    scheduling = FillingScheduling(cast("Any", Config(processes)))
    nodes: list[Any] = [Node(f"gw{n}", files) for n in range(processes)]
    for node in nodes:
        scheduling.add_node(node)
        scheduling.add_node_collection(node, [f"{file}::test_it" for file in files])
    scheduling.schedule()
    done = dict.fromkeys(range(processes), 0)
    while any(done[n] < len(node.asked) for n, node in enumerate(nodes)):
        for n, node in enumerate(nodes):
            if done[n] < len(node.asked):
                scheduling.mark_test_complete(node, files.index(node.asked[done[n]]))
                done[n] += 1
    assert scheduling.tests_finished
    return nodes


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_every_file_runs_once_and_the_filling_process_starts_no_server(
    files: list[str], processes: int
) -> None:
    nodes = spread(files, processes + 1)
    asked = [file for node in nodes for file in node.asked]
    assert sorted(asked) == files
    assert nodes[-1].asked[0] == "test_e.py"
    assert set(nodes[-1].asked) <= {"test_c.py", "test_e.py"}
    assert all(node.shutting_down for node in nodes)


def test_where_nothing_fills_the_filling_process_ends_at_once(files: list[str]) -> None:
    nodes = spread([file for file in files if not fills(Path(file))], 3)
    assert nodes[-1].asked == []
    assert nodes[-1].shutting_down


def test_threads_with_deadlines_do_not_fill() -> None:
    assert not fills(Path("tests/triton_backend/serving/test_system.py"))
    assert not fills(Path("tests/flows/release/server/test_running.py"))
    assert not fills(Path("tests/triton_backend/scheduler/test_compiled.py"))
    assert fills(Path("tests/triton_backend/scheduler/test_plan_rows.py"))
    assert fills(
        Path("tests/flows/preparation/splitting/test_corpus.py")
    )  # slow, and no clock runs
    assert all(folder.is_dir() for folder in UNTIMED)


def test_the_last_process_fills_and_one_alone_does_not() -> None:
    of = {"PYTEST_XDIST_WORKER_COUNT": "3"}
    assert is_filling_here(of | {"PYTEST_XDIST_WORKER": "gw2"})
    assert not is_filling_here(of | {"PYTEST_XDIST_WORKER": "gw1"})
    assert not is_filling_here({})
