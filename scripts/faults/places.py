"""Where `bench_faults` serves: one host; two hosts joined by a link; a time of day that jumps.

Two hosts need root for a network namespace, the time of day a C compiler for a few lines to be
preloaded; where one is missing `NotHereError` says so.
"""

import contextlib
import os
import shutil
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import Self

from flows.clock import now_utc
from flows.release.server import admin
from flows.release.server.running import read_state
from scripts.benchmarks.served import Served
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.serve_folder.repository import render_host, render_repository
from triton_backend.serve_folder.settings import ServeOptions, ServeSettings

ROOT = Path(__file__).resolve().parents[2]
LINK, FAR_LINK = "ppf0", "ppf1"
HERE, THERE = "10.123.79.1", "10.123.79.2"
SPACE = f"poolpipe-faults-{os.getpid()}"
FAR_NODE = "SLOW-1"
START = """
import sys
from pathlib import Path
from flows.release.server.admin import start
from triton_backend.serve_folder.endpoints import Endpoints
http = int(sys.argv[2])
ports = Endpoints(http=http, grpc=http + 1, metrics=http + 2)
start(Path(sys.argv[1]), ports, wait_for_workers=False)
"""


def run_as_root(program: str, *words: str) -> None:
    """Run `ip` or `tc`.

    Raises:
        OSError: it is not installed.
        CalledProcessError: it failed, or is not allowed.
    """
    found = shutil.which(program)
    if found is None:
        raise FileNotFoundError(program)
    subprocess.run([found, *words], check=True, capture_output=True)


class NotHereError(InputError):
    """This machine does not allow it."""


class Far(Served):
    """The same plan with one node on another host, a network namespace behind a veth pair."""

    def __init__(self, plan: Plan, port: int) -> None:
        options = ServeOptions(
            hosts={FAR_NODE: THERE},
            gateway_host=HERE,
            base_port=port + 10,
            host_http_port=port + 5,
            emulate_links=False,
        )
        super().__init__(plan, port, options)
        self._far_port = port + 5
        self._far = self.root / "far"

    def __enter__(self) -> Self:
        try:
            _join()
        except (OSError, subprocess.CalledProcessError) as error:
            self._leave()
            raise NotHereError("network namespace", f"not allowed here: {error}") from error
        try:
            self._start()
        except BaseException:
            self.__exit__(RuntimeError)
            raise
        return self

    def _start(self) -> None:
        render_repository(self.folder, self.plan, self.options)
        settings = ServeSettings.read(self.folder / "settings.json")
        render_host(self._far, settings, self.plan, THERE, None)
        admin.start(self.folder, self.ports, wait_for_workers=False)
        self.start_far()

    def start_far(self) -> None:
        """Start the Triton of the far host."""
        enter = ["ip", "netns", "exec", SPACE, sys.executable, "-c", START, str(self._far)]
        subprocess.run(
            [*enter, str(self._far_port)],
            check=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )

    def __exit__(self, kind: object, *rest: object) -> None:
        admin.stop(self._far)
        super().__exit__(kind, *rest)
        self._leave()

    def kill_far(self) -> None:
        """SIGKILL to whatever runs on the far host, as when its power fails."""
        os.killpg(int(read_state(self._far).data["process_group"]), signal.SIGKILL)

    def mend(self) -> None:
        """Put the link up again."""
        run_as_root("ip", "link", "set", LINK, "up")

    def _leave(self) -> None:
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            run_as_root("ip", "netns", "del", SPACE)


def _join() -> None:
    """A namespace at `THERE`, joined to this host's `HERE`."""
    inside = ("netns", "exec", SPACE, "ip")
    for words in (
        ("netns", "add", SPACE),
        ("link", "add", LINK, "type", "veth", "peer", "name", FAR_LINK, "netns", SPACE),
        ("addr", "add", f"{HERE}/24", "dev", LINK),
        ("link", "set", LINK, "up"),
        (*inside, "addr", "add", f"{THERE}/24", "dev", FAR_LINK),
        (*inside, "link", "set", FAR_LINK, "up"),
        (*inside, "link", "set", "lo", "up"),
    ):
        run_as_root("ip", *words)


class Shifted(Served):
    """Every process of the system sees a time of day that `shift` moves (`clock_shift.c`)."""

    def __enter__(self) -> Self:
        compiler = shutil.which("cc")
        if compiler is None:
            raise NotHereError("cc", "no C compiler here")
        library, self._file = self.root / "clock_shift.so", self.root / "shift"
        source = str(Path(__file__).with_name("clock_shift.c"))
        command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), source]
        subprocess.run(command, check=True)
        self._file.write_bytes(bytes(8))
        os.environ |= {"LD_PRELOAD": str(library), "CLOCK_SHIFT_FILE": str(self._file)}
        try:
            return super().__enter__()
        finally:
            del os.environ["LD_PRELOAD"], os.environ["CLOCK_SHIFT_FILE"]

    def shift(self, seconds: int) -> None:
        """Move the time of day of the whole system, at once."""
        with self._file.open("r+b") as file:
            file.write(struct.pack("<q", seconds))
        # What it sees now, to be sure that it sees it.
        read = [sys.executable, "-c", "import time; print(time.time_ns() // 10**9)"]
        library = str(self.root / "clock_shift.so")
        env = {**os.environ, "LD_PRELOAD": library, "CLOCK_SHIFT_FILE": str(self._file)}
        seen = int(subprocess.run(read, env=env, capture_output=True, check=True).stdout)
        moved = seen - now_utc().timestamp()
        if abs(moved - seconds) > 60:  # noqa: PLR2004  # a process may start slowly
            raise RuntimeError(f"the time of day moved by {moved:.0f} s, not {seconds} s")
