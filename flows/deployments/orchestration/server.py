"""The Prefect server that the flows of one command talk to.

Call `prepare_prefect` before importing this: Prefect reads its settings when it is imported.
"""

import atexit
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import prefect
from prefect.context import refresh_global_settings_context
from prefect.settings import PREFECT_API_URL, PREFECT_HOME, get_current_settings

from flows.clock import Stopwatch
from flows.deployments.orchestration.home import STARTUP_SECONDS
from triton_backend.contract.errors import PoolPipeError

POLL_SECONDS = 0.1
# As Prefect starts one for a process that has none.
TEMPORARY = {
    "PREFECT_UI_ENABLED": "0",
    "PREFECT__SERVER_EPHEMERAL": "1",
    "PREFECT__SERVER_FINAL": "1",
}


class OwnServer:
    """A server that begins to start, to which this process talks from now on; it ends with it.

    Prefect would start it itself, but only once it has loaded all of a server into this process,
    too; Ctrl-C in a terminal, or a SIGTERM to all of a job, would end it together with us, and
    Prefect waits minutes for it instead of cleaning up; and it could take one of Triton's ports.
    """

    def __init__(self) -> None:
        port = _free_port()
        self._health = f"http://127.0.0.1:{port}/api/health"
        self._log = PREFECT_HOME.value() / "server.log"
        self._process = _start(port, self._log)
        atexit.register(self._process.kill)
        # For all threads, and for no process that we start.
        os.environ[PREFECT_API_URL.name] = f"http://127.0.0.1:{port}/api"
        refresh_global_settings_context()
        del os.environ[PREFECT_API_URL.name]

    def wait(self) -> None:
        """Until it answers.

        Raises:
            PoolPipeError: it does not, or has ended.
        """
        watch = Stopwatch()
        while not self._answers():
            if self._process.poll() is not None or watch.seconds() > STARTUP_SECONDS:
                raise PoolPipeError(f"Prefect's server did not start, see {self._log}")
            time.sleep(POLL_SECONDS)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(self._health, timeout=5):  # noqa: S310  # our own server
                return True
        except OSError:
            return False


def start_prefect_server() -> OwnServer | None:
    """Start the server that the flows of this process talk to; None where a shared one is named.

    It takes seconds until it answers, in which flows can be imported: `wait` after that.
    """
    return None if PREFECT_API_URL.value() else OwnServer()


def _start(port: int, log: Path) -> "subprocess.Popen[bytes]":
    """The process; it has the signals of a job blocked, a mask that it takes from this thread."""
    source = Path(prefect.__file__).parent.parent
    command = [sys.executable, "-m", "uvicorn", f"--app-dir={source}", "--factory"]
    command += ["prefect.server.api.server:create_app", "--host=127.0.0.1", f"--port={port}"]
    command += ["--log-level=error", "--lifespan=on"]
    known = get_current_settings().to_environment_variables(exclude_unset=True)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        with log.open("wb") as output:
            return subprocess.Popen(
                command, env={**os.environ, **TEMPORARY, **known}, stdout=output, stderr=output
            )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
