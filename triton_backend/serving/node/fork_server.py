"""A fork server: a process of a node that has imported what workers need, and forks them.

An interpreter with its imports takes a fifth of a second of a processor, a fork of one that has
them some milliseconds; a change of plan starts many workers at once, beside those that serve. The
pages of the modules are shared, too, and what all workers of a generation read is read before they
are forked. What gives way forks in its turn (`turn_to_load`).

What keeps a fork safe: the server has one thread (it ends where an import started another), no
session of a runtime, no GPU, no socket but the node's. A worker is forked twice and its first
parent ends, so that it becomes a child of the node, which is made the reaper of its descendants
(`PR_SET_CHILD_SUBREAPER`): the node waits for it, and the kernel ends it with the node while it
loads, as one that the node has started itself. So a fork server may die at any time; its workers go
on, and the node starts another.

A worker runs only once the node has read its number and says so. One whose number came too late
never does.

Here: both ends. Not here: which workers there are (`node`), what they do (`worker`).

Started as `python -m triton_backend.serving.node.fork_server SOCKET PARENT_PID RUNTIME ...`.
"""

import contextlib
import ctypes
import gc
import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from triton_backend.runtimes.registry import import_runtime
from triton_backend.serving.liveness.ends import end_with_parent, name_process
from triton_backend.serving.transport.sched_tuning import (
    ask_for_short_slices,
    lower_priority,
    restore_priority,
    turn_to_load,
)

SERVER_NAME = "fork-server"  # as `ps` shows it
LOADS_AT_MOST_US = 20_000_000
ANSWERS_WITHIN_MS = 2_000
MOST_FAILURES = 3  # one after the other; then workers are started without it, up to the next plan
GONE = -1  # exit code of a process that another process has waited for
_READY = b"ready"
_GO = b"go"
_ORDER_BYTES = 1 << 16
_NUMBER_BYTES = 20
_PR_SET_CHILD_SUBREAPER = 36
_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class Forked:
    """A worker that a fork server has made: a child of this process."""

    pid: int
    code: int | None = None

    def poll(self) -> int | None:
        """Its exit code, below 0 a signal's; None while it lives."""
        return self._wait(os.WNOHANG)

    def kill(self) -> None:
        """End it at once."""
        if self.code is None:  # else the number may be another's by now
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        """Its exit code, as soon as it has ended."""
        code = self._wait(0)
        assert code is not None
        return code

    def _wait(self, options: int) -> int | None:
        if self.code is None:
            try:
                ended, status = os.waitpid(self.pid, options)
            except ChildProcessError:
                self.code = GONE
            else:
                self.code = os.waitstatus_to_exitcode(status) if ended else None
        return self.code


class ForkServer:
    """The node's end: to be looked after and asked by one thread, the one that starts workers.

    Args:
        command: that starts the server; it gets the arguments named above.
        environment: of the server and the workers.
        runtimes: modules to import, by name; none that uses a GPU.
        log: file that the server writes to where it cannot go on.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        runtimes: Iterable[str],
        log: Path,
    ) -> None:
        self._command = command
        self._environment = dict(environment)
        self._runtimes = sorted(runtimes)
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._orders: socket.socket | None = None
        self._started_us = 0
        self._ready = False
        self._was_ready = False
        self._gives_way = False
        self._failures = 0

    @property
    def pid(self) -> int | None:
        """Its process, where there is one."""
        return None if self._process is None else self._process.pid

    @property
    def is_loading(self) -> bool:
        """True if it will soon be able to fork for the first time."""
        return self._process is not None and not (self._ready or self._was_ready)

    @property
    def can_fork(self) -> bool:
        """True if it has imported all and was alive when last seen."""
        return self._ready

    @property
    def is_given_up(self) -> bool:
        """True if it has failed too often: workers are started without it."""
        return self._failures >= MOST_FAILURES

    def look(self, now_us: int) -> None:
        """Start it where it does not run, and take note of how far it is."""
        if self._process is None:
            if not self.is_given_up:
                try:
                    self._start(now_us)
                except OSError as error:  # no process or descriptor is free
                    self._give_up(f"cannot be started: {error}")
        elif self._process.poll() is not None:
            self._give_up(f"ended with exit code {self._process.returncode}")
        elif not self._ready:
            self._ready = self._was_ready = self._answer(0) == _READY
            if not self._ready and now_us - self._started_us > LOADS_AT_MOST_US:
                self._give_up("does not load")

    def fork(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        log: int,
        *,
        give_way: Path | None = None,
    ) -> Forked | None:
        """A new worker; None where this server cannot make one now.

        Args:
            arguments: as of the worker's command line.
            environment: beside that of the server.
            log: descriptor that takes its output.
            give_way: fork at a lower priority, which the worker begins with, and in its turn, of
                which this folder knows (`turn_to_load`): a fork takes some milliseconds.
        """
        if not self._ready or self._orders is None:
            return None
        self._give_way(give_way is not None)
        said = {"arguments": list(arguments), "environment": dict(environment)}
        order = json.dumps(said if give_way is None else said | {"turns": str(give_way)})
        wait, go = os.pipe()
        try:
            try:
                socket.send_fds(self._orders, [order.encode()], [log, wait])
            finally:
                os.close(wait)
            pid = int(self._answer(ANSWERS_WITHIN_MS) or 0)
            if pid:
                os.write(go, _GO)
        except (OSError, ValueError) as error:
            pid = 0
            _LOG.warning("the fork server is not asked: %s", error)
        finally:
            os.close(go)
        if not pid:
            self._give_up("forks no worker")
            return None
        self._failures = 0
        return Forked(pid)

    def _give_way(self, wanted: bool) -> None:  # noqa: FBT001
        if self._process is not None and wanted != self._gives_way:
            (lower_priority if wanted else restore_priority)(self._process.pid)
            self._gives_way = wanted

    def stop(self) -> None:
        """End it; its workers go on."""
        self._end()
        _adopt_orphans(adopt=False)

    def _start(self, now_us: int) -> None:
        _adopt_orphans(adopt=True)
        self._orders, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its, self._log.open("ab") as log:
            words = [str(its.fileno()), str(os.getpid()), *self._runtimes]
            self._process = subprocess.Popen(
                [*self._command, *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[its.fileno()],
                env=self._environment,
            )
        self._ready, self._started_us = False, now_us
        self._gives_way = False

    def _answer(self, timeout_ms: int) -> bytes | None:
        """Its message within the timeout; None without one, or if it is gone."""
        assert self._orders is not None
        look = select.poll()
        look.register(self._orders, select.POLLIN)
        try:
            return self._orders.recv(_ORDER_BYTES) or None if look.poll(timeout_ms) else None
        except OSError:
            return None

    def _give_up(self, why: str) -> None:
        self._failures += 1
        then = "; workers are started without it" if self.is_given_up else ""
        _LOG.warning("the fork server is ended: it %s%s; its log is %s", why, then, self._log)
        self._end()

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if self._orders is not None:
            self._orders.close()
        self._process = self._orders = None
        self._ready = False


def _adopt_orphans(*, adopt: bool) -> None:
    """Set if processes whose parent ends become children of this one, their ancestor."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(adopt), 0, 0, 0)


# The server's end


class Order(NamedTuple):
    """The role of a forked process, with descriptors of its output and of the node's word."""

    arguments: list[str]
    environment: dict[str, str]
    log: int
    wait: int


def _serve(orders: socket.socket, read_ahead: Callable[[list[str]], None]) -> Order | None:
    """Fork until the node is gone; returns in every worker, with what it is to be."""
    orders.send(_READY)
    while True:
        text, (log, wait) = _read(orders)
        if not text:
            return None
        said = json.loads(text)
        turns = said.get("turns")
        with contextlib.nullcontext() if turns is None else turn_to_load(Path(turns)):
            with contextlib.suppress(Exception):  # the worker says what is wrong
                read_ahead(said["arguments"])
            is_server = _forked(orders)
        if not is_server:
            orders.close()
            return Order(said["arguments"], said["environment"], log, wait)
        os.close(log)
        os.close(wait)


def _read(orders: socket.socket) -> tuple[bytes, Sequence[int]]:
    text, descriptors, _, _ = socket.recv_fds(orders, _ORDER_BYTES, 2)
    return text, descriptors or (0, 0)


def _forked(orders: socket.socket) -> bool:
    """Fork a process that is an orphan, and say its number; False is that process."""
    mine, its = os.pipe()
    between = os.fork()
    if not between:
        os.close(mine)
        worker = os.fork()
        if worker:
            os.write(its, str(worker).encode())
            os._exit(0)
        os.close(its)
        return False
    os.close(its)
    number = os.read(mine, _NUMBER_BYTES)
    os.close(mine)
    os.waitpid(between, 0)  # from here on the worker is the node's
    orders.send(number or b"0")
    return True


def main(
    arguments: Sequence[str], read_ahead: Callable[[list[str]], None] = lambda _: None
) -> Order | None:
    """Import, then fork; returns in every worker, with what it is to be.

    Args:
        arguments: of the command line.
        read_ahead: takes those of a worker right before it is forked, and may keep what workers
            will read.
    """
    descriptor, parent, *runtimes = arguments
    end_with_parent(int(parent))
    name_process(SERVER_NAME)
    for name in runtimes:
        with contextlib.suppress(Exception):  # the worker that needs it says what is wrong
            import_runtime(name)
    threads = list(Path("/proc/self/task").iterdir())
    if len(threads) > 1:
        sys.exit(f"not forked: there are {len(threads)} threads after the imports of {runtimes}")
    gc.collect()
    gc.freeze()  # so that a collection in a worker does not write to the pages shared
    ask_for_short_slices(like=int(parent))  # its node may have had it load at a lower priority
    return _serve(socket.socket(fileno=int(descriptor)), read_ahead)


def become_worker(order: Order, run_worker: Callable[[list[str]], None]) -> None:
    """Be the worker ordered, once the node says so."""
    if os.read(order.wait, len(_GO)) != _GO:
        return  # the node has not waited
    os.close(order.wait)
    for stream in (1, 2):
        os.dup2(order.log, stream)
    os.close(order.log)
    os.environ.update(order.environment)
    run_worker(order.arguments)


if __name__ == "__main__":
    # Not by the node, which imports this file, too.
    from triton_backend.serving.worker.process import main as run_worker
    from triton_backend.serving.worker.process import read_ahead

    made = main(sys.argv[1:], read_ahead)
    if made is not None:
        become_worker(made, run_worker)
