"""A Prefect server for each file of this folder that needs one.

It takes five seconds of a processor to start, and a second of each minute while no test asks: kept
from the first file to the last one it would cost more.
"""

import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.flows.deployments.joined import AUTH
from tests.flows.deployments.prefect_database import give_database
from tests.ports import free_ports

START_SECONDS = 120


@pytest.fixture(scope="module")
def prefect_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The API of a server that another project started, as far as those who use it know."""
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}/api"
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "POOLPIPE_"))}
    home = tmp_path_factory.mktemp("prefect-server")
    give_database(home)
    own = {
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_DEPLOYMENTS_CONCURRENCY_SLOT_WAIT_SECONDS": "1",  # ours: 5, Prefect: 30
        "PREFECT_HOME": str(home),
        "PREFECT_SERVER_API_AUTH_STRING": AUTH,
        "PREFECT_SERVER_CSRF_PROTECTION_ENABLED": "true",
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": f"http://127.0.0.1:{port}",
    }
    server = subprocess.Popen(
        [sys.executable, "-m", "prefect", "server", "start", "--port", str(port), "--no-ui"],
        env=plain | own,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_for_health(url, server)
        yield url
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait()


def wait_for_health(url: str, server: "subprocess.Popen[bytes]") -> None:
    for _ in range(10 * START_SECONDS):
        with suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=5):
            return
        with suppress(subprocess.TimeoutExpired):
            pytest.fail(f"the server ended with {server.wait(0.1)}")
    pytest.fail("the server does not answer")
