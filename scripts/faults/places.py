"""Where faults are tried: one host.

Two hosts joined by a link; a time of day that jumps; small file systems; all of these. Two hosts
need root for a network namespace, the time of day a C compiler for a few lines to be preloaded,
file systems a mount namespace; where one is missing `NotHereError` says so.
"""

import contextlib
import os
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Self

import psutil

from flows.clock import now_utc
from flows.release.server import admin
from flows.release.server.running import ServerError, ServerState, read_state
from scripts.benchmarks.served import (
    SHARED_FOLDER,
    Served,
    processes_of,
    stop_when_terminated,
)
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
# A change of plan asks the host by its address; the link joins no other host.
ports = Endpoints(
    http=http, grpc=http + 1, metrics=http + 2, address=sys.argv[3], accept_old_server=True
)
start(Path(sys.argv[1]), ports, wait_for_workers=False)
"""


def run_as_root(program: str, *words: str) -> None:
    """Run `ip`, `tc` or `mount`.

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
    """The same plan with one node on another host, a network namespace behind a veth pair.

    Args:
        link_gbps: what the link to it carries; None: whatever it can.
        clock_ahead_s: how far its monotonic clock, which begins with every boot, is ahead of this
            host's.
    """

    def __init__(
        self,
        plan: Plan,
        port: int,
        within: Path | None = None,
        link_gbps: float | None = None,
        clock_ahead_s: int = 0,
    ) -> None:
        options = ServeOptions(
            hosts={FAR_NODE: THERE},
            gateway_host=HERE,
            base_port=port + 10,
            host_http_port=port + 5,
            emulate_links=False,
        )
        super().__init__(plan, port, options, within)
        self._far_port = port + 5
        self._link_gbps = link_gbps
        self._clock_ahead_s = clock_ahead_s
        self._far = self.root / "far"

    @staticmethod
    def check_possible() -> None:
        """Raise NotHereError where hosts cannot be joined."""
        _join()
        _leave()

    def __enter__(self) -> Self:
        stop_when_terminated()
        _join()
        try:
            self.mend()
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
        enter = ["ip", "netns", "exec", SPACE]
        if self._clock_ahead_s:
            enter += ["unshare", "--time", "--monotonic", str(self._clock_ahead_s)]
        enter += [sys.executable, "-c", START, str(self._far)]
        subprocess.run(
            [*enter, str(self._far_port), THERE],
            check=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )

    def __exit__(self, kind: object, *rest: object) -> None:
        admin.stop(self._far)
        super().__exit__(kind, *rest)
        _leave()

    def kill_far(self) -> None:
        """SIGKILL to whatever runs on the far host, as when its power fails."""
        os.killpg(int(read_state(self._far).data["process_group"]), signal.SIGKILL)

    def states(self) -> list[ServerState]:
        """Of the system here, and of what runs on the far host."""
        return [self.state, read_state(self._far)]

    def processes(self) -> list[psutil.Process]:
        """Everything that runs, the far host's last."""
        found = super().processes()
        with contextlib.suppress(InputError, ServerError):  # it was killed just now
            found += processes_of(read_state(self._far))
        return found

    def mend(self) -> None:
        """Put the link up again, at its rate."""
        run_as_root("ip", "link", "set", LINK, "up")
        if self._link_gbps is not None:
            self.limit_link(self._link_gbps)

    def limit_link(self, gbps: float) -> None:
        """Limit the rate to the far host from now on."""
        shape = ["tbf", "rate", f"{1000 * gbps:g}mbit", "burst", "16kb", "latency", "400ms"]
        run_as_root("tc", "qdisc", "replace", "dev", LINK, "root", *shape)


def _leave() -> None:
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        run_as_root("ip", "netns", "del", SPACE)


def _join() -> None:
    """A namespace at `THERE`, joined to this host's `HERE`."""
    inside = ("netns", "exec", SPACE, "ip")
    try:
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
    except (OSError, subprocess.CalledProcessError) as error:
        _leave()
        raise NotHereError("network namespace", f"not allowed here: {error}") from error


class Shifted(Served):
    """Every process of the system sees a time of day that `shift` moves (`clock_shift.c`)."""

    @staticmethod
    def compiler() -> str:
        """The C compiler.

        Raises:
            NotHereError: there is none.
        """
        found = shutil.which("cc")
        if found is None:
            raise NotHereError("cc", "no C compiler here")
        return found

    def __enter__(self) -> Self:
        compiler = self.compiler()
        library, self._file = self.root / "clock_shift.so", self.root / "shift"
        source = str(Path(__file__).with_name("clock_shift.c"))
        command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), source]
        subprocess.run(command, check=True)
        self._file.write_bytes(bytes(8))
        with self._preloaded():
            return super().__enter__()

    @contextlib.contextmanager
    def _preloaded(self) -> Generator[None]:
        """Processes started meanwhile see a shifted time of day."""
        library, before = str(self.root / "clock_shift.so"), dict(os.environ)
        os.environ |= {"LD_PRELOAD": library, "CLOCK_SHIFT_FILE": str(self._file)}
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)

    def shift(self, seconds: int) -> None:
        """Move the time of day of the whole system, at once."""
        with self._file.open("r+b") as file:
            file.write(struct.pack("<q", seconds))
        # The time it sees now, as a check.
        read = [sys.executable, "-c", "import time; print(time.time_ns() // 10**9)"]
        library = str(self.root / "clock_shift.so")
        env = {**os.environ, "LD_PRELOAD": library, "CLOCK_SHIFT_FILE": str(self._file)}
        seen = int(subprocess.run(read, env=env, capture_output=True, check=True).stdout)
        moved = seen - now_utc().timestamp()
        if abs(moved - seconds) > 60:  # noqa: PLR2004  # a process may start slowly
            raise RuntimeError(f"the time of day moved by {moved:.0f} s, not {seconds} s")


class ShiftedFar(Shifted, Far):
    """Two hosts whose time of day moves together."""

    def start_far(self) -> None:
        """Start the Triton of the far host."""
        with self._preloaded():
            super().start_far()


def in_mount_namespace() -> list[str]:
    """The words that run a command in a mount namespace of its own.

    Raises:
        NotHereError: there is no `unshare`, or it is not allowed.
    """
    found = shutil.which("unshare")
    if found is None:
        raise NotHereError("unshare", "is not installed")
    # A user namespace may mount, but no more join hosts.
    words = [found, "--mount", *(["--map-root-user"] if os.geteuid() else [])]
    if subprocess.run([*words, "true"], check=False, capture_output=True).returncode:
        raise NotHereError("mount namespace", "not allowed here")
    return words


@contextlib.contextmanager
def small_file_systems(megabytes: int, shared_megabytes: int) -> Generator[Path]:
    """In a mount namespace of our own.

    A folder in a file system of that size, and shared memory in another.
    """
    within = Path(f"/tmp/poolpipe-small-{os.getpid()}")  # noqa: S108  # a mount point
    within.mkdir()
    for place, size in ((within, megabytes), (SHARED_FOLDER, shared_megabytes)):
        run_as_root("mount", "-t", "tmpfs", "-o", f"size={size}m", "tmpfs", str(place))
    try:
        yield within
    finally:
        run_as_root("umount", "--lazy", str(within))
        within.rmdir()
