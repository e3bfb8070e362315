"""A node and its workers: real processes."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.triton_backend.serving.small_plans import plan, two_stage
from tests.triton_backend.serving.system import WAIT_SECONDS, deploy, owners, wait_for
from triton_backend.contract.errors import InputError
from triton_backend.runtimes.clock import SystemClock
from triton_backend.serve_folder.repository import node_generations_file, render_node_generations
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.serving.deployment import Deployment
from triton_backend.serving.liveness.threads import is_alive
from triton_backend.serving.liveness.workers import HealthBoard, HealthWatch
from triton_backend.serving.node import fork_server as fork_module
from triton_backend.serving.node import node as node_module
from triton_backend.serving.node.node import Node
from triton_backend.serving.server.metrics import node_values
from triton_backend.serving.transport.shared_memory import SHARED_FOLDER, remove_segments

pytestmark = pytest.mark.slow
NODE = "SLOW"
ALONE = "FAST"  # a node of one worker, which needs no fork server
# The model of the node in the first gateway, which has the workers until it dies; they may belong
# to a server, too.
LEADER = """
import signal, sys
from pathlib import Path
from triton_backend.runtimes.clock import SystemClock
from triton_backend.serve_folder.settings import ServeSettings
from triton_backend.serving.node import node as node_module
from triton_backend.serving.node.node import Node

servers = map(int, sys.argv[2:])
node = Node(ServeSettings.read(Path(sys.argv[1])), "SLOW", SystemClock(), *servers)
node.start()
signal.pause()
"""


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    served = plan(two_stage(), gpus=4)
    made = deploy(tmp_path / "serve", served, ServeOptions(emulate_links=False))
    made.settings.socket_folder.mkdir(mode=0o700)
    yield made
    remove_segments(made.settings.segment_prefix)
    shutil.rmtree(made.settings.socket_folder)


def pids(node: Node, generation: int | None = None) -> list[Any]:
    return [worker["pid"] for worker in node.status(generation)["workers"]]


def are_up(deployment: Deployment) -> bool:
    """True if all workers of the node have loaded."""
    origins = map(deployment.origin_of, deployment.vgpus_on(NODE))
    return all(HealthBoard.open(one, NODE).has_loaded(row) for one, row in origins)


def processes(deployment: Deployment) -> set[int]:
    """The workers of the node, as the health boards have them."""
    origins = map(deployment.origin_of, deployment.vgpus_on(NODE))
    return {HealthBoard.open(one, NODE).process_of(row) for one, row in origins}


def test_a_node_keeps_its_workers_alive_and_leaves_nothing_behind(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = psutil.Process()
    before = own.children()
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "1000")
    node = Node(deployment.settings, NODE, SystemClock())
    node.start()
    wait_for(lambda: are_up(deployment))
    first = pids(node)
    names = {child.pid: child.name() for child in own.children() if child not in before}
    assert sorted(names.values()) == ["fork-server", "worker-1-1", "worker-1-2"]
    (fork_server,) = set(names) - set(first)
    os.kill(fork_server, signal.SIGKILL)
    os.kill(first[0], signal.SIGKILL)
    wait_for(lambda: pids(node)[0] not in {None, first[0]})
    assert pids(node)[1] == first[1]
    assert node.status()["workers"][0]["last_end"] == "exit code -9"
    environment = Path(f"/proc/{first[1]}/environ").read_bytes().split(b"\0")
    assert b"MALLOC_ARENA_MAX=1" in environment
    assert b"MALLOC_TRIM_THRESHOLD_=1000" in environment  # the operator's own
    values = node_values(node.status())
    assert set(values.values()) == {1}
    left = pids(node)
    node.stop()
    assert own.children() == before
    assert not [pid for pid in left if pid and Path(f"/proc/{pid}").exists()]
    assert not remove_segments(deployment.settings.segment_prefix)


def test_a_worker_that_cannot_be_started_is_tried_again(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, failures = subprocess.Popen, [BlockingIOError(11, "no process is free")] * 2

    def start(_command: list[str], **options: Any) -> Any:
        if failures:
            raise failures.pop()
        return real(["/bin/sleep", "600"], **options)

    monkeypatch.setattr(subprocess, "Popen", start)
    node = Node(deployment.settings, ALONE, SystemClock())
    node.start()
    wait_for(lambda: pids(node) != [None])
    (worker,) = node.status()["workers"]
    assert worker["last_end"] == "cannot be started: [Errno 11] no process is free"
    assert worker["restarts"] == 0
    os.kill(worker["pid"], signal.SIGKILL)
    wait_for(lambda: pids(node)[0] not in {None, worker["pid"]})
    node.stop()


def test_a_node_whose_rounds_fail_says_since_when_and_goes_on_after_them(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(deployment.settings, ALONE, SystemClock())
    failed: list[int] = []

    def fail(_node: Node) -> None:
        failed.append(1)
        raise RuntimeError("out of order")

    monkeypatch.setattr(Node, "_show_owner", fail)
    node.start()
    wait_for(lambda: len(failed) > 1)
    alive_us = node.alive_us()
    wait_for(lambda: len(failed) > 3)
    assert node.alive_us() == alive_us
    monkeypatch.undo()
    wait_for(lambda: node.alive_us() > alive_us)
    first = pids(node)
    os.kill(first[0], signal.SIGKILL)
    wait_for(lambda: not {None, *first} & set(pids(node)))
    node.stop()


class Unkillable:
    """In place of a worker's process: one that the kernel does not end until it is let go."""

    pid = os.getpid()

    def __init__(self) -> None:
        self.killed, self.gone = threading.Event(), threading.Event()

    def poll(self) -> int | None:
        return -9 if self.gone.is_set() else None

    def kill(self) -> None:
        self.killed.set()

    def wait(self) -> int:
        assert self.gone.wait(WAIT_SECONDS)
        return -9


def test_a_worker_that_does_not_end_keeps_its_node_from_nothing(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    hung, following = Unkillable(), Unkillable()
    made = [following, hung]

    def start(*_: Any, **__: Any) -> Unkillable:
        return made.pop()

    def complaint(*_: Any) -> str | None:
        return None if hung.gone.is_set() else "hung"

    monkeypatch.setattr(subprocess, "Popen", start)
    monkeypatch.setattr(HealthWatch, "complaint", complaint)
    monkeypatch.setattr(node_module, "END_SECONDS", 0.05)
    folder = deployment.settings.folder
    node = Node(deployment.settings, ALONE, SystemClock())
    node.start()
    wait_for(hung.killed.is_set)
    asked = threading.Thread(target=node.status)
    asked.start()
    wait_for(lambda: not asked.is_alive())
    assert node.status()["restarts"] == 0  # its memory is not free yet
    hung.gone.set()
    wait_for(lambda: node.status()["restarts"] == 1)
    assert node.status()["workers"][0]["last_end"] == "hung"
    wait_for(lambda: not made)

    segment = SHARED_FOLDER / deployment.worker_segment(deployment.vgpus_on(ALONE)[0])
    segment.touch()
    render_node_generations(folder, [ALONE], [])
    asked = threading.Thread(target=node.look)
    asked.start()
    wait_for(lambda: not asked.is_alive())
    assert following.killed.is_set()
    assert segment.exists()
    following.gone.set()
    wait_for(lambda: not segment.exists())
    node.stop()


def test_a_change_of_plan_tries_a_fork_server_again_that_was_given_up(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = psutil.Process()
    before = own.children()

    def forks() -> bool:
        made = [child for child in own.children() if child not in before]
        return any(child.name() == "fork-server" for child in made)

    real = subprocess.Popen

    def no_fork_server(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        if command[2].endswith("fork_server"):
            raise BlockingIOError(11, "no process is free")
        return real(command, **options)

    monkeypatch.setattr(fork_module, "MOST_FAILURES", 1)
    node = Node(deployment.settings, NODE, SystemClock())
    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "Popen", no_fork_server)
        node.start()
        wait_for(lambda: are_up(deployment))
    assert not forks()
    following = plan(two_stage(), two_stage("other"), plan_id="following")
    second = deploy(deployment.settings.folder, following, generation=2)
    wait_for(lambda: node.status()["generations"] == [1, 2])
    wait_for(forks)
    wait_for(lambda: are_up(second))
    node.stop()
    assert own.children() == before


def test_plans_follow_one_another_on_the_same_node(deployment: Deployment) -> None:
    """Two workers go on, two are new; only workers are started for the second plan."""
    folder = deployment.settings.folder
    own = psutil.Process()
    before = own.children()
    node = Node(deployment.settings, NODE, SystemClock())
    node.start()
    wait_for(lambda: are_up(deployment))
    first = pids(node)
    (fork_server,) = {child.pid for child in own.children() if child not in before} - set(first)

    # The same plan with a second model beside the first one's.
    following = plan(two_stage(), two_stage("other"), plan_id="following")
    second = deploy(folder, following, generation=2)
    wait_for(lambda: node.status()["generations"] == [1, 2])  # without a message
    wait_for(lambda: are_up(second))
    both = pids(node)
    assert sorted(set(both) & set(first)) == sorted(first) == sorted(pids(node, 1))
    assert {child.pid for child in own.children() if child not in before} == {fork_server, *both}

    # It is given up: what it alone had is gone when the node has said so.
    render_node_generations(folder, [NODE], [1])
    node.look()
    assert pids(node) == first
    assert {child.pid for child in own.children() if child not in before} == {fork_server, *first}
    prefix = deployment.settings.segment_prefix
    assert not list(SHARED_FOLDER.glob(f"{prefix}g2-*"))
    with pytest.raises(InputError, match="node SLOW: has no generation 2"):
        node.status(2)

    # It comes after all. A worker that goes on ends, and is started for both.
    render_node_generations(folder, [NODE], [1, 2])
    node.look()
    wait_for(lambda: are_up(second))
    victim = first[0]
    os.kill(victim, signal.SIGKILL)
    wait_for(lambda: not {victim, None} & set(pids(node)))
    wait_for(lambda: are_up(second))
    assert set(pids(node, 1)) < set(pids(node))
    render_node_generations(folder, [NODE], [2])
    node.look()
    names = ["worker-1-1", "worker-1-2", "worker-2-4", "worker-2-5"]
    wait_for(lambda: sorted(psutil.Process(pid).name() for pid in pids(node)) == names)
    assert list(SHARED_FOLDER.glob(f"{prefix}g1-health-*"))  # where two of them are seen
    node.stop()
    assert own.children() == before
    assert not remove_segments(prefix)


def test_a_generation_that_cannot_be_begun_leaves_the_others_alone(deployment: Deployment) -> None:
    node = Node(deployment.settings, NODE, SystemClock())
    node.start()
    wait_for(lambda: are_up(deployment))
    before = pids(node)
    render_node_generations(deployment.settings.folder, [NODE], [1, 7])
    with pytest.raises(InputError, match=r"generations/7/plan\.json: not a plan"):
        node.answer('{"command": "look"}')
    assert (node.status()["generations"], pids(node)) == ([1], before)
    node_generations_file(deployment.settings.place, NODE).write_text("nonsense")
    with pytest.raises(InputError, match="not the generations of a node"):
        node.look()
    assert pids(node) == before
    node.stop()


def test_workers_outlive_their_node_and_end_with_the_server(deployment: Deployment) -> None:
    """It dies while the plan changes, and a worker with it; the change is given up meanwhile."""
    settings = deployment.settings
    following = plan(two_stage(), two_stage("other"), plan_id="following")
    second = deploy(settings.folder, following, generation=2)
    server = subprocess.Popen(["/bin/sleep", "600"])
    command = [sys.executable, "-c", LEADER, str(settings.folder / "settings.json")]
    node = subprocess.Popen([*command, str(server.pid)])
    wait_for(lambda: are_up(second))
    before, workers = processes(deployment), processes(second)
    assert before < workers
    wait_for(lambda: all(server.pid in owners(pid) for pid in workers))
    node.kill()
    node.wait()
    victim, goes_on = sorted(before)
    os.kill(victim, signal.SIGKILL)
    wait_for(lambda: not is_alive(victim))
    assert all(map(is_alive, workers - {victim}))

    render_node_generations(settings.folder, [NODE], [1])
    node = subprocess.Popen([*command, str(server.pid)])
    wait_for(lambda: not any(map(is_alive, workers - before)))
    wait_for(lambda: victim not in processes(deployment) and are_up(deployment))
    after = processes(deployment)
    assert goes_on in after
    prefix = settings.segment_prefix
    wait_for(lambda: not list(SHARED_FOLDER.glob(f"{prefix}g2-*")))

    wait_for(lambda: all(server.pid in owners(pid) for pid in after))
    node.kill()
    node.wait()
    assert all(map(is_alive, after))
    server.kill()
    server.wait()
    wait_for(lambda: not any(map(is_alive, after)))


def test_who_takes_the_lead_finds_the_workers_and_loads_nothing(tmp_path: Path) -> None:
    options = ServeOptions(emulate_links=False, gateways=2)
    deployment = deploy(tmp_path / "serve", plan(two_stage()), options)
    settings = deployment.settings
    settings.socket_folder.mkdir(mode=0o700)
    own = psutil.Process()
    before = {child.pid for child in own.children()}

    def children() -> dict[int, str]:
        alive = [child for child in own.children() if child.status() != psutil.STATUS_ZOMBIE]
        return {child.pid: child.name() for child in alive if child.pid not in before}

    try:
        nodes = [Node(one, NODE, SystemClock()) for one in (settings, settings.of_gateway(1))]
        nodes[0].start()
        wait_for(lambda: sorted(children().values())[1:] == ["worker-1-1", "worker-1-2"])
        nodes[1].start()
        board = HealthBoard.open(deployment, "SLOW")
        wait_for(lambda: all(board.has_loaded(vgpu) for vgpu in (1, 2)))
        assert set(pids(nodes[1])) == {None}  # it waits
        first = set(pids(nodes[0]))
        nodes[0].stop()
        wait_for(lambda: set(pids(nodes[1])) == first)
        assert children().keys() == first
        victim = min(children())
        os.kill(victim, signal.SIGKILL)
        wait_for(lambda: len({*pids(nodes[1])} - {None, victim}) == 2)
        # It starts one with what makes the next ones sooner.
        names = ["fork-server", "worker-1-1", "worker-1-2"]
        wait_for(lambda: sorted(children().values()) == names)
        nodes[1].stop()
        wait_for(lambda: not children())
        for pid in first:
            with contextlib.suppress(ChildProcessError):  # adopted, so it was not waited for
                os.waitpid(pid or 0, 0)
    finally:
        remove_segments(settings.segment_prefix)
        shutil.rmtree(settings.socket_folder)


def test_of_two_gateways_the_second_ends_what_the_first_died_before_ending(tmp_path: Path) -> None:
    options = ServeOptions(emulate_links=False, gateways=2)
    deployment = deploy(tmp_path / "serve", plan(two_stage(), gpus=4), options)
    settings = deployment.settings
    settings.socket_folder.mkdir(mode=0o700)
    following = plan(two_stage(), two_stage("other"), plan_id="following")
    second = deploy(settings.folder, following, generation=2)
    command = [sys.executable, "-c", LEADER, str(settings.folder / "settings.json")]
    leader = subprocess.Popen(command)
    wait_for(lambda: are_up(second))
    node = Node(settings.of_gateway(1), NODE, SystemClock())
    node.start()
    workers = {
        HealthBoard.open(origin, NODE).process_of(row)
        for origin, row in map(second.origin_of, second.vgpus_on(NODE))
    }
    assert len(workers) == 4
    wait_for(lambda: all(owners(pid) >= {leader.pid, os.getpid()} for pid in workers))
    os.kill(leader.pid, signal.SIGSTOP)
    render_node_generations(settings.folder, [NODE], [1])
    wait_for(lambda: node.status()["generations"] == [1])
    assert all(is_alive(pid) for pid in workers)  # they are the other one's to end
    leader.kill()
    leader.wait()
    wait_for(lambda: len([pid for pid in workers if is_alive(pid)]) == 2)
    wait_for(lambda: set(pids(node)) == {pid for pid in workers if is_alive(pid)})
    assert are_up(deployment)
    node.stop()
    wait_for(lambda: not any(is_alive(pid) for pid in workers))
    remove_segments(settings.segment_prefix)
    shutil.rmtree(settings.socket_folder)
