"""Running Triton: the process that starts the server inside the PyTriton wheel and keeps it well.

`python -m triton_backend.serving.server.tritonserver start --folder F --http-port N --grpc-port N
--metrics-port N [--address A] [--tls-cert C --tls-key K]` stays in the foreground until SIGTERM. It
1. lays out a backend folder (links into the wheel), or takes the server of a Triton container
   (`--server-root`), and starts `tritonserver` on the rendered repository, with everything but
   inference closed to whoever has no token (`access`);
2. writes the state file (mode 0600) once the server is ready;
3. loads models anew whose stub process died or hangs (Triton does not notice), and starts the server anew
   when it died;
4. at the end stops the server and removes sockets, shared memory and the state file.
"""

import argparse
import contextlib
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path
from types import FrameType
from typing import Any

from triton_backend.contract.errors import InputError, PoolPipeError
from triton_backend.runtimes.clock import SystemClock
from triton_backend.serve_folder.settings import SETTINGS_NAME, ServeSettings
from triton_backend.serving.liveness.processes import ExitWatch, StubWatch
from triton_backend.serving.server.access import TOKEN_HEADER, Access, reached_at
from triton_backend.serving.server.command import (
    EXIT_TIMEOUT_SECONDS,
    Ports,
    server_command,
    server_environment,
)
from triton_backend.serving.transport.shared_memory import remove_segments

STATE_NAME = "state.json"
OWN_PREFIX = "poolpipe_"  # of scheduler and nodes; all others are fronts
WATCH_SECONDS = 0.2
READY_SECONDS = 120
MOST_RESTARTS = 5  # one after the other
LASTING_US = 600_000_000  # a server that ran so long died for a new reason
HTTP_OK = 200
RETRY_SECONDS = 1.0
_LOG = logging.getLogger(__name__)


class Supervisor:
    """Owns one tritonserver process."""

    def __init__(self, settings: ServeSettings, ports: Ports) -> None:
        self._settings = settings
        self._ports = ports
        self._process: subprocess.Popen[bytes] | None = None
        self._restarts = 0
        self._clock = SystemClock()
        self._started_us = 0
        self._exits = ExitWatch()
        self._stubs = StubWatch(self._clock)
        self._stopping = threading.Event()
        self._state_path = settings.folder / STATE_NAME

    def run(self) -> None:
        """Start, keep well, stop at SIGTERM or SIGINT."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        try:
            self._start()
            while not self._stopping.is_set():
                self._exits.wait(WATCH_SECONDS)
                self._watch()
        finally:
            self._clean()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self._stopping.set()

    def _start(self) -> None:
        settings = self._settings
        settings.socket_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        shutil.rmtree(settings.folder / "pids", ignore_errors=True)
        remove_segments(settings.segment_prefix)
        logs = settings.folder / "logs"
        logs.mkdir(exist_ok=True)
        with (logs / "triton.log").open("ab") as log:
            self._process = subprocess.Popen(
                server_command(settings, self._ports),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=server_environment(),
            )
        self._started_us = self._clock.now_us()
        self._write_state(ready=False)
        self._wait_ready()
        self._write_state(ready=True)

    def _wait_ready(self) -> None:
        assert self._process is not None
        for _ in range(int(READY_SECONDS / WATCH_SECONDS)):
            if self._process.poll() is not None:
                log = self._settings.folder / "logs" / "triton.log"
                raise PoolPipeError(f"{log}: tritonserver ended with {self._process.returncode}")
            if self._http("GET", "/v2/health/ready") == HTTP_OK:
                return
            if self._stopping.wait(WATCH_SECONDS):
                return
        raise PoolPipeError(f"tritonserver: not ready after {READY_SECONDS} s")

    def _http(self, method: str, path: str, body: bytes | None = None) -> int:
        request = urllib.request.Request(  # our own server
            f"http://{reached_at(self._ports.access.http_address)}:{self._ports.http}{path}",
            data=body,
            method=method,
            headers={TOKEN_HEADER: self._settings.token},
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310  # as above
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    def _watch(self) -> None:
        assert self._process is not None
        if self._process.poll() is not None:
            lasted = self._clock.now_us() - self._started_us > LASTING_US
            self._restarts = 1 if lasted else self._restarts + 1
            if self._restarts > MOST_RESTARTS:
                raise PoolPipeError(f"tritonserver: died {self._restarts} times, given up")
            _LOG.warning("tritonserver ended with %s, started anew", self._process.returncode)
            self._kill_group_members()
            try:
                self._start()
            except PoolPipeError as error:
                _LOG.warning("%s", error)  # tried again
            return
        pids = self._settings.folder / "pids"
        for file in list(pids.glob("*")) if pids.is_dir() else []:
            seen = self._stubs.look(file)
            if seen is None:
                continue
            self._exits.watch(seen.pid)
            if seen.complaint is None:
                continue
            _LOG.warning("the process of %s: %s", file.name, seen.complaint)
            if seen.alive:
                with contextlib.suppress(OSError):
                    os.kill(seen.pid, signal.SIGKILL)
            self._heal(file)

    def _heal(self, file: Path) -> None:
        """Load a model whose stub died anew, under the next restart number.

        A load that fails (no memory, say) is tried again with the next look at the file, which
        stays until the new process writes its own.
        """
        if not file.name.startswith(OWN_PREFIX):
            # Until the new process is there, refuse what the dead one would never answer.
            self._http("POST", f"/v2/repository/models/{file.name}/unload", b"{}")
        config = self._settings.folder / "repository" / file.name / "config.pbtxt"
        if not config.is_file():
            file.unlink(missing_ok=True)
            return
        text = re.sub(
            r'(key: "restart"[^"]*string_value: ")(\d+)',
            lambda match: f"{match[1]}{int(match[2]) + 1}",
            config.read_text(),
        )
        # On a full disk the old configuration stays whole.
        written = config.with_suffix(".new")
        written.write_text(text)
        written.replace(config)
        _LOG.warning("%s is loaded anew", file.name)
        code = self._http("POST", f"/v2/repository/models/{file.name}/load", b"{}")
        if code != HTTP_OK:
            _LOG.warning("%s was not loaded (HTTP %d), tried again soon", file.name, code)
            self._stopping.wait(RETRY_SECONDS)

    def _write_state(self, *, ready: bool) -> None:
        assert self._process is not None
        state: dict[str, Any] = {
            "ready": ready,
            "instance": self._settings.instance,
            "folder": str(self._settings.folder),
            "socket_folder": str(self._settings.socket_folder),
            "token": self._settings.token,
            "token_header": TOKEN_HEADER,
            "pid": os.getpid(),
            "process_group": os.getpgid(0),
            "triton_pid": self._process.pid,
            **self._ports.access.to_state(),
            "ports": {
                "http": self._ports.http,
                "grpc": self._ports.grpc,
                "metrics": self._ports.metrics,
            },
        }
        with contextlib.suppress(OSError, ValueError):
            # Kept over a restart: what others noted (the plan being served).
            state = {**json.loads(self._state_path.read_text()), **state}
        temporary = self._state_path.with_suffix(".new")
        temporary.unlink(missing_ok=True)
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "w") as file:
            json.dump(state, file, indent=1)
        temporary.replace(self._state_path)

    def _clean(self) -> None:
        process = self._process
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(EXIT_TIMEOUT_SECONDS + 5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._kill_group_members()
        remove_segments(self._settings.segment_prefix)
        shutil.rmtree(self._settings.socket_folder, ignore_errors=True)
        self._state_path.unlink(missing_ok=True)

    def _kill_group_members(self) -> None:
        """Kill what a dead server left in our process group (stubs and workers)."""
        mine = os.getpid()
        if os.getpgid(0) != mine:
            return  # started in somebody else's group, which is not ours to clear
        for entry in Path("/proc").glob("[0-9]*"):
            pid = int(entry.name)
            with contextlib.suppress(OSError):
                if pid != mine and os.getpgid(pid) == mine:
                    os.kill(pid, signal.SIGKILL)


def main(arguments: list[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m triton_backend.serving.server.tritonserver")
    start = parser.add_subparsers(dest="command", required=True).add_parser("start")
    start.add_argument("--folder", type=Path, required=True)
    Access.add_options(start)
    start.add_argument("--server-root", type=Path, help="of a Triton container: /opt/tritonserver")
    start.add_argument("--http-port", type=int, default=8000)
    start.add_argument("--grpc-port", type=int, default=8001)
    start.add_argument("--metrics-port", type=int, default=8002)
    options = parser.parse_args(arguments)
    logging.basicConfig(format="%(asctime)s %(levelname)s server: %(message)s", level=logging.INFO)
    try:
        ports = Ports(
            access=Access.from_options(options),
            http=options.http_port,
            grpc=options.grpc_port,
            metrics=options.metrics_port,
            server_root=options.server_root,
        )
        settings = ServeSettings.read(options.folder / SETTINGS_NAME)
        ports.check_free()
        Supervisor(settings, ports).run()
    except PoolPipeError as error:
        sys.stderr.write(f"{error}\n")
        return 2 if isinstance(error, InputError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
