"""Models beside the plan: loaded, tried again, loaded again where their processes died."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.fakes.clock import VirtualClock
from tests.triton_backend.serving.small_plans import plan, two_stage
from tests.triton_backend.serving.system import wait_for
from triton_backend.contract.errors import InputError
from triton_backend.serve_folder.beside import Beside
from triton_backend.serve_folder.repository import render_repository
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.serving.server.beside import ModelsBeside, in_one_line

TRACE = '{"error":"load failed for model \'chat\': no\\nweights\\n\\nAt:\\n  /x/model.py(1)"}'


class Server:
    """Keeps the orders that Triton would get, and refuses the models in `bad`."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.bad: set[str] = set()

    def load(self, name: str) -> str | None:
        self.asked.append(("load", name))
        return TRACE if name in self.bad else None

    def unload(self, name: str) -> int:
        self.asked.append(("unload", name))
        return 200

    def loads(self) -> list[str]:
        return [name for verb, name in self.asked if verb == "load"]


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def models(tmp_path: Path, server: Server) -> ModelsBeside:
    folders = {name: tmp_path / "models" / name for name in ("chat", "tokens")}
    for folder in folders.values():
        folder.mkdir(parents=True)
        (folder / "config.pbtxt").touch()
    options = ServeOptions(beside=Beside(folders=folders))
    settings = render_repository(tmp_path / "serve", plan(two_stage()), options)
    return ModelsBeside(settings, server.load, server.unload, threading.Event(), lambda: None)


def test_all_are_loaded_one_after_the_other_before_the_first_request(
    models: ModelsBeside, server: Server
) -> None:
    models.load_first()
    assert server.loads() == ["chat", "tokens"]
    assert models.states == {"chat": "ready", "tokens": "ready"}
    assert (models.repository / "chat" / "config.pbtxt").is_symlink()


def test_one_that_cannot_be_loaded_at_the_start_is_named_in_one_line(
    models: ModelsBeside, server: Server
) -> None:
    server.bad.add("chat")
    with pytest.raises(InputError) as caught:
        models.load_first()
    reason = "load failed for model 'chat': no weights"
    assert str(caught.value) == f"model 'chat' beside the plan: {reason}"
    assert server.loads() == ["chat"]


def test_later_it_is_tried_again_until_it_is_loaded(models: ModelsBeside, server: Server) -> None:
    server.bad.add("chat")
    models.look()
    wait_for(lambda: server.loads().count("chat") == 1 and models.states["tokens"] == "ready")
    server.bad.clear()

    def loaded() -> bool:
        models.look()
        return models.states["chat"] == "ready"

    wait_for(loaded)


class Stubs:
    """A server that starts a process for `tokens`, as Triton does, and ends it late."""

    def __init__(self, links: Path) -> None:
        self._words = [sys.executable, "-c", "input()", f"{links}/tokens/1/model.py"]
        self._running: list[subprocess.Popen[bytes]] = []
        self.started: list[subprocess.Popen[bytes]] = []

    def load(self, name: str) -> None:
        if name == "tokens":
            made = subprocess.Popen(self._words, stdin=subprocess.PIPE)
            wait_for(lambda: Path(f"/proc/{made.pid}/cmdline").read_bytes().endswith(b"model.py\0"))
            self._running.append(made)
            self.started.append(made)

    def unload(self, name: str) -> None:
        if name == "tokens":
            for stub in self._running:
                threading.Timer(0.2, stub.communicate).start()  # it ends with its input
            self._running.clear()


@pytest.mark.slow
def test_a_model_whose_process_died_is_loaded_again_and_once(models: ModelsBeside) -> None:
    stubs = Stubs(models.repository)
    models._load_model, models._unload_model = stubs.load, stubs.unload
    models.load_first()
    models.look()
    assert len(stubs.started) == 1
    stubs.started[0].kill()
    stubs.started[0].wait()

    def looked() -> bool:
        models.look()
        return len(stubs.started) == 2 and models.states["tokens"] == "ready"

    wait_for(looked)
    # The next load waits for processes of the one before: they are not taken for its own.
    models._load("tokens")
    assert models._stubs["tokens"] == [stubs.started[2].pid]
    models.look()
    stubs.unload("tokens")
    stubs.started[2].wait()
    assert len(stubs.started) == 3


def test_a_server_that_is_taken_over_keeps_what_it_has(
    models: ModelsBeside, server: Server
) -> None:
    models.take_over(lambda name: name == "chat")
    assert models.states == {"chat": "ready", "tokens": "waits"}
    models.look()
    wait_for(lambda: models.states["tokens"] == "ready")
    assert server.loads() == ["tokens"]


def test_what_a_server_was_asked_for_says_nothing_of_the_next(models: ModelsBeside) -> None:
    models.load_first()
    models.forget()
    assert models.states == {"chat": "waits", "tokens": "waits"}


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        (TRACE, "load failed for model 'chat': no weights"),
        ("{", "{"),
        ("", ""),
        ("x\ny" * 500, ("x yx y" * 500)[:300]),
    ],
)
def test_an_answer_becomes_one_line(answer: str, line: str) -> None:
    assert in_one_line(answer) == line


class Pauses(threading.Event):
    """Is never set; keeps the pauses that were asked for, and how the models were in them."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[float, str]] = []
        self.states = dict[str, str]()

    def wait(self, timeout: float | None = None) -> bool:
        self.found.append((timeout or 0.0, self.states["tokens"]))
        return False


DEAD = 1 << 30  # no process has this number


def test_one_that_dies_again_and_again_is_unloaded_for_longer_each_time_and_said_to_die(
    models: ModelsBeside, server: Server
) -> None:
    clock, pauses = VirtualClock(), Pauses()
    models._clock, models._stopping = clock, pauses
    models.load_first()
    pauses.states = models.states

    def dies_after(seconds: float) -> str:
        clock.sleep_until_us(clock.now_us() + round(seconds * 1e6))
        models._stubs["tokens"] = [DEAD]
        models.look()
        models._threads["tokens"].join()
        return models.described()["tokens"]

    assert [dies_after(1) for _ in range(4)] == [
        "ready",
        "ready",
        "ready, but its process died 3 times in a row",
        "ready, but its process died 4 times in a row",
    ]
    assert pauses.found == [
        (4.0, "down: its process died 3 times in a row, loaded again in 4 s"),
        (8.0, "down: its process died 4 times in a row, loaded again in 8 s"),
    ]
    assert server.asked[-3:] == [("unload", "tokens")] * 2 + [("load", "tokens")]
    assert models.states["chat"] == "ready"
    assert dies_after(61) == "ready"
    assert len(pauses.found) == 2


def test_deaths_of_one_that_lives_on_are_forgotten(models: ModelsBeside) -> None:
    clock = VirtualClock()
    models._clock = clock
    models.load_first()
    models._deaths["tokens"].failures = 3
    assert models.described()["tokens"] == "ready, but its process died 3 times in a row"
    clock.sleep_until_us(clock.now_us() + 61_000_000)
    models.look()
    assert models.described()["tokens"] == "ready"
