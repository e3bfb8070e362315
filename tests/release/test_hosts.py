"""A gateway and a node in two network namespaces: nothing but TCP between them."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Generator, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpc_client

from flows.release.admin import ServerPorts, start, stop
from flows.release.render import ServeOptions, render_host, render_repository
from tests.serving.artifacts import FACTOR, OFFSET, affine
from tests.serving.plans import plan
from tests.serving.system import wait_for
from triton_backend.core.errors import InputError

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
HERE, THERE = "10.123.78.1", "10.123.78.2"
SPACE = f"poolpipe-test-{os.getpid()}"
PORTS = ServerPorts(http=18081, grpc=18082, metrics=18083)
START = """
import sys
from pathlib import Path
from flows.release.admin import ServerPorts, start
start(Path(sys.argv[1]), ServerPorts(http=18081, grpc=18082, metrics=18083), wait_for_workers=False)
"""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextlib.contextmanager
def namespace() -> Generator[None]:
    ip("netns", "add", SPACE)
    try:
        ip("link", "add", "ppt0", "type", "veth", "peer", "name", "ppt1", "netns", SPACE)
        ip("addr", "add", f"{HERE}/24", "dev", "ppt0")
        ip("link", "set", "ppt0", "up")
        for words in (("addr", "add", f"{THERE}/24", "dev", "ppt1"), ("link", "set", "ppt1", "up")):
            ip("netns", "exec", SPACE, "ip", *words)
        ip("netns", "exec", SPACE, "ip", "link", "set", "lo", "up")
        yield
    finally:
        ip("netns", "del", SPACE)


@pytest.fixture
def space() -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(namespace())
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"no network namespaces here: {error}")
        yield


def test_a_stage_on_another_host_is_served_over_tcp(space: None, tmp_path: Path) -> None:
    assert space is None
    artifacts = tmp_path / "artifacts"
    served = plan(affine(artifacts))
    options = ServeOptions(
        artifacts=artifacts, hosts={"SLOW": THERE}, gateway_host=HERE, base_port=18_062
    )
    gateway, node = tmp_path / "gateway", tmp_path / "node"
    render_repository(gateway, served, options)
    settings = json.loads((gateway / "settings.json").read_text())
    with pytest.raises(InputError, match="no node of plan"):
        render_host(node, settings, served, "10.9.9.9", artifacts)
    render_host(node, settings, served, THERE, artifacts)
    with contextlib.ExitStack() as stack:
        state = start(gateway, PORTS, wait_for_workers=False)
        stack.callback(stop, gateway)
        enter = ["ip", "netns", "exec", SPACE, sys.executable, "-c", START, str(node)]
        subprocess.run(enter, check=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
        stack.callback(stop, node)
        wait_for(lambda: state.control("status")["workers"]["up"] == 2)
        client = grpc_client.InferenceServerClient(state.grpc_url)
        stack.callback(client.close)
        for samples in (1, 4):
            x = np.arange(samples * 3, dtype=np.float32).reshape(samples, 3)
            given = grpc_client.InferInput("x", [samples, 3], "FP32")
            given.set_data_from_numpy(x)
            answer = client.infer("affine", [given], timeout=1_000_000)
            assert answer is not None
            np.testing.assert_array_equal(np.asarray(answer.as_numpy("y")), x * FACTOR + OFFSET)


def test_nodes_elsewhere_are_not_in_the_gateways_repository(tmp_path: Path) -> None:
    artifacts = tmp_path / "artifacts"
    served = replace(plan(affine(artifacts)), plan_id="hosts")
    render_repository(tmp_path, served, ServeOptions(hosts={"SLOW": THERE}))
    models = {entry.name for entry in (tmp_path / "repository").iterdir()}
    assert models == {"affine", "poolpipe_control", "poolpipe_node_FAST_g1"}
