"""A gateway and a node in two network namespaces: nothing but TCP between them."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import numpy as np
import tritonclient.grpc as grpc_client
from tritonclient.utils import InferenceServerException

from flows.release.server.admin import start, stop
from tests.triton_backend.serving.artifacts import FACTOR, OFFSET
from tests.triton_backend.serving.system import wait_for
from triton_backend.contract.plan import Plan
from triton_backend.serve_folder.endpoints import Endpoints
from triton_backend.serve_folder.repository import render_host, render_repository
from triton_backend.serve_folder.settings import ServeOptions, ServeSettings

ROOT = Path(__file__).parents[3]
HERE, THERE = "10.123.78.1", "10.123.78.2"
SPACE = f"poolpipe-test-{os.getpid()}"
LINK = "ppt0"
PORTS = Endpoints(http=18081, grpc=18082, metrics=18083)
# The node, the last to be served, is started by a process inside its namespace.
START = """
import sys
from pathlib import Path
from flows.release.server.admin import start
from triton_backend.serve_folder.endpoints import Endpoints
start(Path(sys.argv[1]), Endpoints(http=18081, grpc=18082, metrics=18083), wait_for_workers=False)
"""
CLIENT_SECONDS = 20.0
PATIENT_US = 3_000_000


def ip(*words: str) -> None:
    """Run `ip`."""
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextlib.contextmanager
def namespace() -> Generator[None]:
    """A namespace at `THERE`, joined to this one's `HERE` by a pair of interfaces."""
    ip("netns", "add", SPACE)
    try:
        ip("link", "add", LINK, "type", "veth", "peer", "name", "ppt1", "netns", SPACE)
        ip("addr", "add", f"{HERE}/24", "dev", LINK)
        ip("link", "set", LINK, "up")
        for words in (("addr", "add", f"{THERE}/24", "dev", "ppt1"), ("link", "set", "ppt1", "up")):
            ip("netns", "exec", SPACE, "ip", *words)
        ip("netns", "exec", SPACE, "ip", "link", "set", "lo", "up")
        yield
    finally:
        ip("netns", "del", SPACE)


@contextlib.contextmanager
def shaped(*words: str) -> Generator[None]:
    """Limit the rate to the other host by a token bucket (`tc … tbf`)."""
    place = ["dev", LINK, "root"]
    subprocess.run(["tc", "qdisc", "add", *place, "tbf", *words], check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run(["tc", "qdisc", "del", *place], check=True, capture_output=True)


class FarHost:
    """A running system whose node `SLOW` is in the namespace."""

    def __init__(self, folder: Path, served: Plan, artifacts: Path) -> None:
        options = ServeOptions(
            artifacts=artifacts,
            hosts={"SLOW": THERE},
            gateway_host=HERE,
            base_port=18_062,
            emulate_links=False,
        )
        self._gateway, self._node = folder / "gateway", folder / "node"
        render_repository(self._gateway, served, options)
        settings = ServeSettings.read(self._gateway / "settings.json")
        render_host(self._node, settings, served, THERE, artifacts)
        self.state = start(self._gateway, PORTS, wait_for_workers=False)
        enter = ["ip", "netns", "exec", SPACE, sys.executable, "-c", START, str(self._node)]
        subprocess.run(enter, check=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
        wait_for(self.is_whole)
        self._client = grpc_client.InferenceServerClient(self.state.grpc_url)

    def is_whole(self) -> bool:
        """True if every worker is up."""
        workers = self.state.control("status")["workers"]
        return bool(workers["up"] == workers["total"])

    def ask(self, model: str, samples: int = 4, *, patient: bool = True) -> bool:
        """True if a request is served; refused and failed ones are answered too.

        A patient one has more time than its SLO, so that a busy machine does not decide.

        Raises:
            InferenceServerException: no process answered.
        """
        x = np.arange(samples * 3, dtype=np.float32).reshape(samples, 3)
        given = grpc_client.InferInput("x", [samples, 3], "FP32")
        given.set_data_from_numpy(x)
        try:
            answer = self._client.infer(
                model,
                [given],
                client_timeout=CLIENT_SECONDS,
                timeout=PATIENT_US if patient else None,
            )
        except InferenceServerException as error:
            if error.status() == "StatusCode.UNAVAILABLE":
                return False
            raise
        assert answer is not None
        if model == "affine":
            np.testing.assert_array_equal(np.asarray(answer.as_numpy("y")), x * FACTOR + OFFSET)
        return True

    def stop(self) -> None:
        """End both hosts."""
        self._client.close()
        stop(self._gateway)
        stop(self._node)
