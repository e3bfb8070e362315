"""The copies that share one device: processes started, spoken to, and stopped with certainty."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from triton_backend.contract.errors import InputError, PoolPipeError

STOP_SECONDS = 10.0


class CopyProcess:
    """One process of `flows.preparation.profiling.copy`."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "flows.preparation.profiling.copy"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {}), "PYTHONPATH": os.pathsep.join(sys.path)},
        )

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
    """Copies of one stage on equal shares of a device; the first one is measured.

    Processes are kept from stage to stage: starting one costs more than a cell.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._environment = environment
        self._processes: list[CopyProcess] = []
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self._processes:
            process.stop()
        self._processes.clear()

    def load(self, folder: Path, share: int, count: int) -> None:
        """Load `count` copies of the stage in `folder`, each on a share (300ths) of the device."""
        while len(self._processes) < count:
            self._processes.append(CopyProcess(self._environment))
        self._count = count
        for process in self._processes[:count]:
            process.ask(do="load", folder=str(folder), share=share)

    def measure(self, batch: int, limits: Mapping[str, float]) -> list[float]:
        """Run times (µs) of one copy while all others run the same batch over and over."""
        first, *others = self._processes[: self._count]
        for process in others:
            process.ask(do="occupy", batch=batch)
        try:
            reply = first.ask(do="measure", batch=batch, **limits)
        finally:
            for process in others:
                process.ask(do="rest")
        return reply["samples_us"]
