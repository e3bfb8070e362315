"""The copies that share one device: processes started, spoken to, and stopped with certainty.

Runs of this user that measure at the same time take turns on a device, a cell each: beside each
other they would measure each other.
"""

import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from triton_backend.contract.errors import InputError, PoolPipeError
from triton_backend.runtimes.mps import VISIBLE
from triton_backend.serve_folder.files import make_private_folder

STOP_SECONDS = 10.0
CORES = "cores"  # stand for a device: all CPU classes share them


@contextmanager
def alone_on(device: str) -> Generator[None]:
    """Wait for the other runs of this user that measure on a device, and keep them off it.

    Raises:
        InputError: the folder of the locks is another user's.
    """
    folder = Path(tempfile.gettempdir()) / f"poolpipe-measure-locks-{os.getuid()}"
    make_private_folder(folder)
    with (folder / f"{device.replace('/', '_')}.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


class CopyProcess:
    """One process of `flows.preparation.profiling.copy`.

    Ctrl-C in a terminal is for us alone: the process has it blocked from its first instant on, by
    a mask that it takes from this thread, because an interpreter that starts would print a trace.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "flows.preparation.profiling.copy"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, **(environment or {}), "PYTHONPATH": os.pathsep.join(sys.path)},
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def ask(self, **command: Any) -> dict[str, Any]:
        """Send one command and wait for its answer.

        Raises:
            InputError: the copy cannot do it, with its reason.
            PoolPipeError: the process has died.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            code = self._process.wait(STOP_SECONDS)
            raise PoolPipeError(f"a profiling process ended with code {code} during {command}")
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise InputError("profile", reply["error"])
        return reply

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def stop(self) -> None:
        """End the process; kill it where it does not end by itself."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.close()
            self._process.wait(STOP_SECONDS)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


class Copies:
    """Copies of one stage on equal shares of a device, or stages on unequal ones.

    One of them is measured. Processes are kept from stage to stage: starting one costs more than a
    cell. A part of a GPU is one of its process, which ends where the next stage has another part.

    Args:
        environment: of every process, or of one by its share.

    Attributes:
        processes: in the order of the copies.
    """

    def __init__(
        self,
        environment: Mapping[str, str] | Callable[[int], Mapping[str, str]] | None = None,
    ) -> None:
        self._environment = environment
        self.processes: list[CopyProcess] = []
        self._started: list[Mapping[str, str]] = []  # the environment of each
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self.processes:
            process.stop()
        self.processes.clear()
        self._started.clear()

    def load(self, folder: Path, share: int, count: int) -> None:
        """Load `count` copies of the stage in `folder`, each on a share (300ths) of the device."""
        self.load_each([(folder, share)] * count)

    def load_each(self, places: Iterable[tuple[Path, int]]) -> None:
        """Load a stage and a share (300ths) of the device for each copy."""
        self._count = 0
        for number, (folder, share) in enumerate(places):
            self._start(number, share)
            with alone_on(self._device_of(number)):
                self.processes[number].ask(do="load", folder=str(folder), share=share)
            self._count += 1

    def _start(self, number: int, share: int) -> None:
        """Have a process of that number whose environment is that of its share."""
        given = self._environment
        wanted = given(share) if callable(given) else given or {}
        if number < len(self.processes):
            if self._started[number] == wanted:
                return
            self.processes[number].stop()
            self.processes[number] = CopyProcess(wanted)
            self._started[number] = wanted
            return
        self.processes.append(CopyProcess(wanted))
        self._started.append(wanted)

    def _device_of(self, number: int) -> str:
        return self._started[number].get(VISIBLE, CORES)

    def measure(
        self,
        batch: int,
        limits: Mapping[str, float],
        number: int = 0,
        beside: Mapping[int, int] | None = None,
    ) -> list[float]:
        """Run times (µs) of one copy while others run over and over.

        Args:
            batch: of the copy that is measured.
            limits: as `copy` says.
            number: of that copy.
            beside: batch by number of every other copy that runs; None: all of them, the same
                batch.
        """
        if beside is None:
            beside = {other: batch for other in range(self._count) if other != number}
        with alone_on(self._device_of(number)):
            for other, its_batch in beside.items():
                self.processes[other].ask(do="occupy", batch=its_batch)
            try:
                reply = self.processes[number].ask(do="measure", batch=batch, **limits)
            finally:
                for other in beside:
                    self.processes[other].ask(do="rest")
        return reply["samples_us"]
