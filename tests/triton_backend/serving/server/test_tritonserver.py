"""What watches and counts: health board, node, metrics, event files, supervisor's parts."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.triton_backend.serving.gateway.gateways import HeldGateway
from tests.triton_backend.serving.small_plans import plan, two_stage
from tests.triton_backend.serving.system import deploy, wait_for
from triton_backend.runtimes.clock import SystemClock
from triton_backend.serve_folder.endpoints import RESTRICTED, TOKEN_HEADER, Endpoints
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.serving.deployment import Deployment
from triton_backend.serving.front.counters import FrontCounters, latency_bounds_ms
from triton_backend.serving.liveness.processes import ExitWatch
from triton_backend.serving.node.node import Node
from triton_backend.serving.server import command as server_command
from triton_backend.serving.server import tritonserver as server
from triton_backend.serving.server.metrics import (
    METRICS,
    Publisher,
    front_values,
    gateway_values,
    node_values,
)
from triton_backend.serving.transport.shared_memory import remove_segments


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    made = deploy(tmp_path / "serve", plan(two_stage()), ServeOptions(emulate_links=False))
    made.settings.socket_folder.mkdir(mode=0o700)
    yield made
    remove_segments(made.settings.segment_prefix)
    shutil.rmtree(made.settings.socket_folder)


@pytest.mark.slow
def test_a_node_keeps_its_workers_alive_and_leaves_nothing_behind(deployment: Deployment) -> None:
    node = Node(deployment, "SLOW", SystemClock())
    node.start()

    def pids() -> list[Any]:
        return [worker["pid"] for worker in node.status()["workers"]]

    def listening() -> bool:
        places = (deployment.worker_address(vgpu, same_host=True) for vgpu in (1, 2))
        return all(Path(place.removeprefix("unix:")).exists() for place in places)

    wait_for(listening)
    first = pids()
    os.kill(first[0], signal.SIGKILL)
    wait_for(lambda: pids()[0] not in {None, first[0]})
    assert pids()[1] == first[1]
    assert node.status()["workers"][0]["last_end"] == "exit code -9"
    values = node_values(node.status())
    assert set(values.values()) == {1}
    left = pids()
    node.stop()
    assert not [pid for pid in left if pid and Path(f"/proc/{pid}").exists()]
    assert not remove_segments(deployment.settings.segment_prefix)


class Family:
    """A metric family that notes what is done to it."""

    def __init__(self, name: str, done: list[tuple[str, dict[str, str], str, float]]) -> None:
        self._name = name
        self._done = done

    def Metric(self, labels: dict[str, str]) -> Any:  # noqa: N802  # Triton's name
        done, name = self._done, self._name

        class Metric:
            def set(self, value: float) -> None:
                done.append((name, labels, "set", value))

            def increment(self, value: float) -> None:
                done.append((name, labels, "increment", value))

        return Metric()


def test_counters_are_published_by_growth_and_gauges_by_value() -> None:
    done: list[tuple[str, dict[str, str], str, float]] = []
    publisher = Publisher(lambda name, _description, _kind: Family(name, done))
    queue = ("poolpipe_queue_requests", (("model", "m"),))
    served = ("poolpipe_requests_served", (("model", "m"),))
    publisher.publish({queue: 3, served: 10})
    publisher.publish({queue: 3, served: 14})
    publisher.publish({served: 14})
    assert done == [
        ("poolpipe_queue_requests", {"model": "m"}, "set", 3),
        ("poolpipe_requests_served", {"model": "m"}, "increment", 10),
        ("poolpipe_requests_served", {"model": "m"}, "increment", 4),
        ("poolpipe_queue_requests", {"model": "m"}, "set", 0.0),
    ]


def test_latency_buckets_are_cumulative() -> None:
    bounds = latency_bounds_ms(100_000)
    assert (bounds[0], bounds[-1], len(bounds)) == (100 / 32, 400, 29)
    assert 100 in bounds
    counters = FrontCounters(bounds)
    for latency_us, late in ((3_000, False), (100_000, False), (9_000_000, True)):
        counters.answered(latency_us, late)
    values = front_values("m", counters, held=0)
    buckets = {
        dict(labels)["le"]: value for (name, labels), value in values.items() if "bucket" in name
    }
    assert (buckets["3.125"], buckets["84.09"], buckets["100"], buckets["+Inf"]) == (1, 1, 2, 3)
    assert len(buckets) == len(bounds) + 1
    assert all(name in METRICS for name, _ in values)


def test_the_server_is_started_closed_to_strangers(deployment: Deployment) -> None:
    endpoints = Endpoints(http=1, grpc=2, metrics=3)
    command = server_command.server_command(deployment.settings, endpoints, None)
    closed = f"{','.join(RESTRICTED)}:{TOKEN_HEADER}={deployment.settings.token}"
    assert "model-repository" in RESTRICTED
    for option in (
        f"--http-restricted-api={closed}",
        f"--grpc-restricted-protocol={closed}",
        "--grpc-address=127.0.0.1",
        "--model-control-mode=explicit",
        "--disable-auto-complete-config",
    ):
        assert option in command
    backend = deployment.settings.folder / "backends" / "python"
    assert {path.name for path in backend.iterdir()} == {
        "libtriton_python.so",
        "triton_python_backend_utils.py",
        "triton_python_backend_stub",
    }
    assert all(path.exists() for path in backend.iterdir())


def test_the_command_line_of_the_server_says_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert server.main(["start", f"--folder={tmp_path}"]) == 2
    assert "not a settings file" in capsys.readouterr().err


@pytest.mark.slow
def test_the_end_of_a_process_wakes_its_watcher() -> None:
    watch = ExitWatch()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        watch.watch(process.pid)
        watch.watch(process.pid)
        assert watch.wait(0) == []
        process.kill()
        assert watch.wait(10) == [process.pid]
    assert watch.wait(0) == []
    watch.watch(process.pid)
    assert watch.wait(0) == []


@pytest.mark.slow
def test_short_slices_are_asked_for_a_process_and_its_threads() -> None:
    code = """
import threading
from pathlib import Path
from triton_backend.serving.transport.sched_tuning import SLICE_NS, ask_for_short_slices
taken = ask_for_short_slices()
def slice_ns():
    lines = Path("/proc/thread-self/sched").read_text().splitlines()
    return next((int(line.split()[-1]) for line in lines if line.startswith("se.slice")), None)
told = []
thread = threading.Thread(target=lambda: told.append(slice_ns()))
thread.start()
thread.join()
assert not taken or told[0] in {None, SLICE_NS}, told
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_pools_of_two_pipelines_are_told_apart(tmp_path: Path) -> None:
    model = two_stage()
    twice = replace(model, pipelines=(model.pipelines[0], model.pipelines[0]))
    deployment = deploy(tmp_path, plan(twice, gpus=2), ServeOptions())
    gateway = HeldGateway(deployment)
    for vgpu in (0, 3):
        gateway.counters.stage_ran(vgpu, 1_000 * (vgpu + 1))
    values = gateway_values(gateway)
    pools = {
        (name, dict(labels)["pipeline"], dict(labels)["gpu_class"]): value
        for (name, labels), value in values.items()
        if "pipeline" in dict(labels)
    }
    assert pools["poolpipe_stage_busy_us", "0", "FAST"] == 1_000
    assert pools["poolpipe_stage_busy_us", "1", "FAST"] == 4_000
    assert pools["poolpipe_pool_vgpus", "1", "SLOW"] == 2
