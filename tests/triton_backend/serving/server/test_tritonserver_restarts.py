"""A server that keeps dying is started for as long as it takes, and the other one goes on.

By a program in its place.
"""

import contextlib
import http.client
import os
import re
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from flows.release.server.running import ServerError, gateways_of, status
from tests.ports import free_ports
from tests.triton_backend.serve_folder.state_files import LEFT
from tests.triton_backend.serving.small_plans import plan, two_stage
from tests.triton_backend.serving.system import wait_for
from triton_backend.serve_folder.endpoints import Endpoints
from triton_backend.serve_folder.repository import render_repository
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.serve_folder.state import read_state_file, servers_of, write_state_file
from triton_backend.serving.server.kept_server import PROMPT_RESTARTS

SERVER = """#!{python}
import http.server, json, sys, tempfile, threading

with open(sys.argv[0] + ".folders", "a") as made:
    made.write(tempfile.mkdtemp(prefix="python_env_", dir="/tmp") + "\\n")
options = dict(word[2:].split("=", 1) for word in sys.argv[1:] if "=" in word)
name = json.dumps({{"name": options.get("id", "")}}).encode()

class Answers(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", str(len(name)))
        self.end_headers()
        self.wfile.write(name)

    def log_message(self, *_):
        pass

class Server(http.server.ThreadingHTTPServer):
    allow_reuse_port = True
    daemon_threads = True

servers = [
    Server(("127.0.0.1", int(options[port])), Answers) for port in ("http-port", "metrics-port")
]
threading.Thread(target=servers[0].serve_forever).start()
servers[1].serve_forever()
"""
KEEPER = """
import sys
from triton_backend.serving.server import kept_server, tritonserver
kept_server.FIRST_PAUSE_SECONDS = kept_server.LONGEST_PAUSE_SECONDS = {pause_s}
sys.exit(tritonserver.main(sys.argv[1:]))
"""


class Kept:
    """A keeper and the programs that it keeps."""

    def __init__(self, folder: Path, ports: Endpoints, process: "subprocess.Popen[bytes]") -> None:
        self._folder, self._ports, self.process = folder, ports, process

    def state(self) -> dict[str, Any]:
        """The state file; empty before there is one."""
        return read_state_file(self._folder) or {}

    def server(self, number: int = 0) -> dict[str, Any]:
        """Its part of the state file."""
        server = servers_of(self.state())[number]
        assert server is not None
        return server

    def kill(self, number: int = 0) -> int:
        """Kill a server; its process id."""
        pid = int(self.server(number)["triton_pid"])
        os.kill(pid, signal.SIGKILL)
        return pid

    def temporary(self) -> list[Path]:
        """Files that killed programs leave behind."""
        text = (self._folder.parent / "root" / "bin" / "tritonserver.folders").read_text()
        return [Path(line) for line in text.splitlines()]

    def is_back(self, number: int, killed: int) -> bool:
        """True if another process answers in its place."""
        server = self.server(number)
        return server["triton_pid"] != killed and server["ready"] and self.answers(number)

    def answers(self, number: int) -> bool:
        """True if a server answers, by the port that is its own."""
        port = self._ports.metrics_port(number)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        with contextlib.suppress(OSError), contextlib.closing(connection):
            connection.request("GET", "/v2/health/live")
            return connection.getresponse().status == 200
        return False


@contextmanager
def kept(folder: Path, gateways: int, pause_s: float) -> Generator[Kept]:
    """A keeper that pauses so long before it starts a server that keeps dying."""
    program = folder / "root" / "bin" / "tritonserver"
    program.parent.mkdir(parents=True)
    program.write_text(SERVER.format(python=sys.executable))
    program.chmod(0o700)
    render_repository(folder / "serve", plan(two_stage()), ServeOptions(gateways=gateways))
    http_port, grpc, metrics, _ = free_ports(4)
    ports = Endpoints(http=http_port, grpc=grpc, metrics=metrics)
    arguments = [f"--folder={folder / 'serve'}", f"--server-root={folder / 'root'}"]
    command = [sys.executable, "-c", KEEPER.format(pause_s=pause_s), "start", *arguments]
    with subprocess.Popen([*command, *ports.arguments()], start_new_session=True) as process:
        system = Kept(folder / "serve", ports, process)
        try:
            wait_for(lambda: bool(system.state().get("ready")))
            yield system
        finally:
            process.terminate()


@pytest.mark.slow
def test_a_server_that_is_killed_ten_times_comes_back_every_time(tmp_path: Path) -> None:
    with kept(tmp_path, gateways=1, pause_s=0.05) as system:
        for _ in range(10):
            killed = system.kill()
            wait_for(lambda killed=killed: system.is_back(0, killed))
        assert system.state()["restarts"] == 10
        assert [path.exists() for path in system.temporary()] == [False] * 10 + [True]
    assert not any(path.exists() for path in system.temporary())
    assert (system.process.returncode, system.state()) == (0, {})


@pytest.mark.slow
def test_a_server_that_keeps_dying_ends_no_other(tmp_path: Path) -> None:
    with kept(tmp_path, gateways=2, pause_s=600) as system:
        for _ in range(PROMPT_RESTARTS):
            killed = system.kill(1)
            wait_for(lambda killed=killed: system.is_back(1, killed))
            assert system.answers(0)
        system.kill(1)
        wait_for(lambda: "ended, starts at 2" in gateways_of(system.state())["gateway 2"])
        assert gateways_of(system.state())["gateway 1"] == "runs"
        assert system.answers(0)
    assert (system.process.returncode, system.state()) == (0, {})


def test_the_status_of_a_server_that_keeps_dying_says_when_it_is_started(tmp_path: Path) -> None:
    keeper = {"pid": os.getpid(), "arguments": []}
    write_state_file(tmp_path, {**LEFT, **keeper, "restarts": 6, "retry_us": 1_800_000_000_000_000})
    said = "ended, starts at 2027-01-15T08:00:00+00:00, restarted 6 times"
    with pytest.raises(ServerError, match=re.escape(said)):
        status(tmp_path)
