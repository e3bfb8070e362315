"""A node and its workers: real processes."""

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.triton_backend.serving.small_plans import plan, two_stage
from tests.triton_backend.serving.system import deploy, wait_for
from triton_backend.runtimes.clock import SystemClock
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.serving.deployment import Deployment
from triton_backend.serving.node.node import Node
from triton_backend.serving.server.metrics import node_values
from triton_backend.serving.transport.shared_memory import remove_segments


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    made = deploy(tmp_path / "serve", plan(two_stage()), ServeOptions(emulate_links=False))
    made.settings.socket_folder.mkdir(mode=0o700)
    yield made
    remove_segments(made.settings.segment_prefix)
    shutil.rmtree(made.settings.socket_folder)


@pytest.mark.slow
def test_a_node_keeps_its_workers_alive_and_leaves_nothing_behind(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = psutil.Process()
    before = own.children()
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "1000")
    node = Node(deployment, "SLOW", SystemClock())
    node.start()

    def pids() -> list[Any]:
        return [worker["pid"] for worker in node.status()["workers"]]

    def listening() -> bool:
        places = (deployment.worker_address(vgpu, same_host=True) for vgpu in (1, 2))
        return all(Path(place.removeprefix("unix:")).exists() for place in places)

    wait_for(listening)
    first = pids()
    names = {child.pid: child.name() for child in own.children() if child not in before}
    assert sorted(names.values()) == ["fork-server", "worker-1-1", "worker-1-2"]
    (fork_server,) = set(names) - set(first)
    os.kill(fork_server, signal.SIGKILL)
    os.kill(first[0], signal.SIGKILL)
    wait_for(lambda: pids()[0] not in {None, first[0]})
    assert pids()[1] == first[1]
    assert node.status()["workers"][0]["last_end"] == "exit code -9"
    environment = Path(f"/proc/{first[1]}/environ").read_bytes().split(b"\0")
    assert b"MALLOC_ARENA_MAX=1" in environment
    assert b"MALLOC_TRIM_THRESHOLD_=1000" in environment  # the operator's own
    values = node_values(node.status())
    assert set(values.values()) == {1}
    left = pids()
    node.stop()
    assert own.children() == before
    assert not [pid for pid in left if pid and Path(f"/proc/{pid}").exists()]
    assert not remove_segments(deployment.settings.segment_prefix)
