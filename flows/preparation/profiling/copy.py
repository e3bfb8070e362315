"""One copy of a stage in a process of its own: `python -m flows.preparation.profiling.copy`.

Speaks one JSON object per line: commands on standard input, one answer each on standard output.

    {"do": "load", "folder": F, "share": s}, in 300ths              -> {}
    {"do": "measure", "batch": b, "warm_up": w, "min_runs": m, "max_runs": M,
     "max_seconds": s, "interval": r}                                -> {"samples_us": […]}
    {"do": "occupy", "batch": b}: runs on and on until the next line -> {} before it begins
    {"do": "rest"}                                                   -> {"runs": n}

A process per copy keeps the copies off one another's interpreter lock and their core affinity off
the caller's threads. It ends when its standard input does. What a stage itself prints goes to
standard error.
"""

import json
import os
import select
import signal
import sys
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from flows.preparation.profiling.statistics import relative_interval
from triton_backend.contract.errors import InputError, PoolPipeError
from triton_backend.runtimes.base import NUMPY_DTYPES, Artifact, Runtime, Tensors, counts_of
from triton_backend.runtimes.clock import Clock, SystemClock
from triton_backend.runtimes.python_step.package import SAMPLES_FILE
from triton_backend.runtimes.registry import load_runtime

SEED = 17
ROOM_ROWS = 64  # of one sample, where outputs have rows of their own number; more are left out


class Copy:
    """A loaded stage and what is asked of it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._runtime: Runtime | None = None
        self._samples: dict[str, Any] = {}
        self.runs = 0

    def load(self, folder: Path, share: int) -> None:
        """Load a stage in place of the one loaded before."""
        self.close()
        self._runtime = load_runtime(folder, share=share, clock=self._clock)
        samples = Artifact.read(folder).files.get(SAMPLES_FILE)
        if samples is not None:
            with np.load(folder / samples, allow_pickle=False) as saved:
                self._samples = dict(saved)

    def close(self) -> None:
        """Give the stage back."""
        if self._runtime is not None:
            self._runtime.close()
            self._runtime = None
        self._samples = {}

    def measure(self, batch: int, limits: dict[str, float]) -> list[int]:
        """Run times in microseconds: until the interval is narrow or a limit is reached."""
        inputs, out = self._tensors(batch)
        for _ in range(int(limits["warm_up"])):
            self._run(inputs, out)
        samples: list[int] = []
        begin_us = self._clock.now_us()
        while len(samples) < limits["max_runs"]:
            samples.append(self._run(inputs, out))
            if len(samples) < limits["min_runs"]:
                continue
            late = self._clock.now_us() - begin_us > limits["max_seconds"] * 1e6
            if late or relative_interval(samples) <= limits["interval"]:
                break
        return samples

    def occupy(self, batch: int) -> None:
        """Run until a line waits on standard input, counting `runs`."""
        inputs, out = self._tensors(batch)
        self.runs = 0
        while not select.select([sys.stdin], [], [], 0)[0]:
            self._run(inputs, out)
            self.runs += 1

    def _run(self, inputs: Tensors, out: Tensors) -> int:
        assert self._runtime is not None, "load comes first"
        begin_us = self._clock.now_us()
        try:
            self._runtime.run(inputs, out)
        except PoolPipeError:
            raise
        except Exception as error:  # onnxruntime's own exceptions share no public base class
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            batch = len(next(iter(inputs.values())))
            raise InputError(f"batch {batch}", f"cannot be run: {reason}") from error
        return self._clock.now_us() - begin_us

    def _tensors(self, batch: int) -> tuple[Tensors, Tensors]:
        """Inputs, random where the artifact has no samples, and room for the outputs."""
        assert self._runtime is not None, "load comes first"
        rng = np.random.default_rng(SEED)
        inputs: dict[str, Any] = {}
        for spec in self._runtime.inputs:
            if spec.name in self._samples:
                rows = self._samples[spec.name]
                inputs[spec.name] = rows[np.arange(batch) % len(rows)]
                continue
            dtype, shape = np.dtype(NUMPY_DTYPES[spec.dtype]), (batch, *spec.shape[1:])
            floating = np.issubdtype(dtype, np.floating)
            drawn = rng.standard_normal(shape) if floating else rng.integers(0, 2, shape)
            inputs[spec.name] = drawn.astype(dtype)
        counted = counts_of(spec.name for spec in self._runtime.outputs)
        out: dict[str, Any] = {}
        for spec in self._runtime.outputs:
            room = (batch, ROOM_ROWS) if spec.name in counted else (batch,)
            out[spec.name] = np.empty((*room, *spec.shape[1:]), NUMPY_DTYPES[spec.dtype])
        return inputs, out


def main() -> None:
    """Answer commands until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to stop
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    sys.stdout = sys.stderr
    copy = Copy(SystemClock())
    while line := sys.stdin.readline():
        command: dict[str, Any] = json.loads(line)
        try:
            _say(answers, _answer(copy, command))
            if command["do"] == "occupy":
                copy.occupy(command["batch"])
        except PoolPipeError as error:
            _say(answers, {"error": str(error)})
    copy.close()


def _answer(copy: Copy, command: dict[str, Any]) -> dict[str, Any]:
    if command["do"] == "load":
        copy.load(Path(command["folder"]), command["share"])
    elif command["do"] == "measure":
        return {"samples_us": copy.measure(command["batch"], command)}
    elif command["do"] == "rest":
        return {"runs": copy.runs}
    return {}


def _say(answers: TextIO, reply: dict[str, Any]) -> None:
    answers.write(json.dumps(reply) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
