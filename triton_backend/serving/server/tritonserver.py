"""Running Triton: the keeper, the process that starts tritonserver and keeps it well.

`python -m triton_backend.serving.server.tritonserver start --folder F --http-port N --grpc-port N
--metrics-port N [--address A] [--tls-cert C --tls-key K]` stays in the foreground until SIGTERM. It
1. lays out a backend folder (links into the wheel), or takes the server of a Triton container
   (`--server-root`), and starts `tritonserver` on the rendered repository, with everything but
   inference closed to clients without the token (`serve_folder/endpoints.py`);
2. writes the state file (mode 0600) once the server is ready;
3. reloads models whose stub process died or hangs (`reloads`);
4. restarts the server when it died, or no longer answers `/v2/health/live` (`kept_server`); where
   there are two gateways there are two servers, each of which is kept so by itself;
5. loads the models beside the plan, again where their processes died (`beside`);
6. at the end stops the server and removes sockets, shared memory and the state file.

A keeper that was killed leaves the server running. With `--take-over` the next keeper goes on with
it.
"""

import argparse
import logging
import os
import shutil
import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from triton_backend.contract.errors import InputError, PoolPipeError
from triton_backend.serve_folder.endpoints import TOKEN_HEADER, Endpoints
from triton_backend.serve_folder.settings import SETTINGS_NAME, ServeSettings
from triton_backend.serve_folder.state import (
    STATE_NAME,
    boot_id,
    keeper_runs,
    read_state_file,
    remove_state_file,
    server_runs,
    servers_of,
    state_file_locked,
    write_state_file,
)
from triton_backend.serving.server.kept_server import KeptServer
from triton_backend.serving.server.process import WATCH_SECONDS
from triton_backend.serving.server.socket_folder import hold, remove_abandoned
from triton_backend.serving.transport.shared_memory import remove_segments

_LOG = logging.getLogger(__name__)


class Keeper:
    """Owns the tritonserver of every gateway of a system, each watched by a thread of its own.

    Args:
        settings: of the system.
        endpoints: where its servers listen.
        server_root: of a Triton container; None is the server inside the PyTriton wheel.
        arguments: of this process, by which others find it and another keeper could be started.
    """

    def __init__(
        self,
        settings: ServeSettings,
        endpoints: Endpoints,
        server_root: Path | None,
        arguments: list[str],
    ) -> None:
        self._settings = settings
        self._endpoints = endpoints
        self._arguments = arguments
        self._stopping = threading.Event()
        self._asked_to_stop = False
        self._failed = threading.Event()
        self._failure: Exception | None = None
        self._writing = threading.Lock()
        self._unwritten = False
        self._servers = [
            KeptServer(
                settings.of_gateway(number),
                endpoints,
                server_root,
                self._stopping,
                self._write_state,
            )
            for number in range(settings.gateways)
        ]

    def run(self, *, take_over: bool = False) -> None:
        """Start the servers, or go on with them; keep them well; stop them at SIGTERM or SIGINT.

        Raises:
            InputError: there is no server to go on with, or the folder of the sockets is not ours.
            PoolPipeError: a server does not become ready, the first time.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        if take_over:
            self._take_over()
        held = hold(self._settings.socket_folder)
        remove_abandoned(self._settings.socket_folder)
        if not take_over:
            remove_segments(self._settings.segment_prefix)
        threads = [
            threading.Thread(target=self._keep, args=(server,), daemon=True)
            for server in self._servers
        ]
        try:
            for thread in threads:
                thread.start()
            while not self._asked_to_stop and not self._failed.wait(WATCH_SECONDS):
                if self._unwritten:
                    self._write_state()
        finally:
            self._stopping.set()
            for thread in threads:
                thread.join()
            self._clean()
            os.close(held)
        if self._failure is not None:
            raise self._failure

    def _keep(self, server: KeptServer) -> None:
        try:
            server.run()
        except Exception as error:  # noqa: BLE001  # raised by the thread that waits for it
            self._failure = error
            self._failed.set()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self._asked_to_stop = True

    def _take_over(self) -> None:
        path = str(self._settings.folder / STATE_NAME)
        state = read_state_file(self._settings.folder)
        if state is None or not server_runs(state):
            raise InputError(path, "no server to take over")
        if keeper_runs(state):
            raise InputError(path, "its keeper runs")
        for server, kept in zip(self._servers, servers_of(state), strict=True):
            if kept is not None:
                server.take_over(kept)

    def _write_state(self) -> None:
        """Write the state file; where it cannot be written (a full disk), until it can."""
        with self._writing:
            try:
                self._write_state_now()
            except OSError as error:
                if not self._unwritten:
                    _LOG.warning("%s cannot be written, tried again: %s", STATE_NAME, error)
                self._unwritten = True
            else:
                self._unwritten = False

    def _write_state_now(self) -> None:
        kept = [server.to_state() for server in self._servers]
        known = [one for one in kept if one is not None]
        first = known[0]
        state: dict[str, Any] = {
            "ready": len(known) == len(kept) and all(one["ready"] for one in known),
            "instance": self._settings.instance,
            "folder": str(self._settings.folder),
            "socket_folder": str(self._settings.socket_folder),
            "token": self._settings.token,
            "token_header": TOKEN_HEADER,
            "pid": os.getpid(),
            "boot_id": boot_id(),
            "arguments": self._arguments,
            "process_group": os.getpgid(0),
            "server_group": first["server_group"],
            "triton_pid": first["triton_pid"],
            "restarts": sum(one["restarts"] for one in known),
            "restarted_us": max(one["restarted_us"] or 0 for one in known) or None,
            "retry_us": first["retry_us"],
            "compiled_us": max(one["compiled_us"] or 0 for one in known) or None,
            "models_begun": sum(one["models_begun"] for one in known),
            **self._endpoints.to_state(),
        }
        if self._settings.beside is not None:
            state["beside"] = self._servers[0].beside
        if len(kept) > 1:
            state["servers"] = kept
        # Kept over a restart: what others noted (the plan being served).
        with state_file_locked(self._settings.folder):
            noted = read_state_file(self._settings.folder) or {}
            write_state_file(self._settings.folder, {**noted, **state})

    def _clean(self) -> None:
        stops = [threading.Thread(target=server.stop) for server in self._servers]
        for thread in stops:
            thread.start()
        for thread in stops:
            thread.join()
        for process in [server.server for server in self._servers if server.server is not None]:
            process.kill_group()
        remove_segments(self._settings.segment_prefix)
        shutil.rmtree(self._settings.socket_folder, ignore_errors=True)
        remove_state_file(self._settings.folder)


def main(arguments: list[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m triton_backend.serving.server.tritonserver")
    start = parser.add_subparsers(dest="command", required=True).add_parser("start")
    start.add_argument("--folder", type=Path, required=True)
    start.add_argument("--server-root", type=Path, help="of a Triton container: /opt/tritonserver")
    start.add_argument("--take-over", action="store_true", help="a server whose keeper is gone")
    Endpoints.add_options(start)
    given = sys.argv[1:] if arguments is None else arguments
    options = parser.parse_args(given)
    logging.basicConfig(format="%(asctime)s %(levelname)s keeper: %(message)s", level=logging.INFO)
    try:
        endpoints = Endpoints.from_options(options)
        settings = ServeSettings.read(options.folder / SETTINGS_NAME)
        if not options.take_over:
            endpoints.check_can_listen(options.server_root, settings.gateways)
        own = [argument for argument in given if argument != "--take-over"]
        keeper = Keeper(settings, endpoints, options.server_root, own)
        keeper.run(take_over=options.take_over)
    except PoolPipeError as error:
        sys.stderr.write(f"{error}\n")
        return 2 if isinstance(error, InputError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
