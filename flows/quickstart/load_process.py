"""Running the load generator, which is a process of its own, and reading what it says."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from flows.reporting.data import ModelOutcome, Outcomes
from triton_backend.contract.errors import InputError, PoolPipeError

STOP_SECONDS = 20.0
BAD_INPUT = 2
INTERRUPTED = 130


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRequest:
    """One run of the load generator; see its `--help`.

    Attributes:
        checks: model name to a file of samples and expected answers.
        more: further options as they stand on its command line.
    """

    plan: Path
    url: str
    protocol: str = "grpc"
    duration_s: float = 20.0
    load_factor: float | None = None
    seed: int = 0
    records: Path | None = None
    checks: Mapping[str, Path] = field(default_factory=dict[str, Path])
    more: Sequence[str] = ()

    def arguments(self) -> list[str]:
        """The command line."""
        command = [
            sys.executable,
            "-m",
            "triton_backend.serving.loadgen",
            "--json",
            f"--plan={self.plan}",
            f"--url={self.url}",
            f"--protocol={self.protocol}",
            f"--duration={self.duration_s}",
            f"--seed={self.seed}",
        ]
        if self.load_factor is not None:
            command.append(f"--load-factor={self.load_factor}")
        if self.records is not None:
            command.append(f"--records={self.records}")
        command += [f"--check={name}={path}" for name, path in self.checks.items()]
        return command + list(self.more)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """Results of a load by model, with the whole object that `load --json` prints.

    Attributes:
        send_lag_p99_ms: how late the generator itself sent; None where nothing was sent.
    """

    models: Mapping[str, ModelOutcome]
    send_lag_p99_ms: float | None
    document: Mapping[str, Any]

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "LoadResult":
        """From the object of `load --json`."""
        return cls(
            models=Outcomes.from_load(document).models,
            send_lag_p99_ms=document["send_lag_ms"]["p99"],
            document=document,
        )


def run_load(request: LoadRequest, *, keep_interrupted: bool = False) -> dict[str, Any]:
    """Run to the end; the object of `load --json`.

    With `keep_interrupted`, Ctrl-C ends the sending and what was measured until then is the
    result; its `interrupted` is true then. Where records could not be written, its `records_lost`
    says why.

    Raises:
        InputError: the generator refused its input.
        PoolPipeError: it failed, or its records are lost to a caller that keeps no such result.
    """
    source = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # until it has imported
    try:
        process = subprocess.Popen(
            request.arguments(),
            stdout=subprocess.PIPE,
            text=True,
            stderr=None if sys.stderr.isatty() else subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    try:
        out, err = process.communicate()
    except BaseException as error:
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=STOP_SECONDS)
        kept = keep_interrupted and isinstance(error, KeyboardInterrupt)
        if not kept or process.returncode != INTERRUPTED or not out:
            raise
        return json.loads(out)
    if process.returncode == BAD_INPUT:
        raise InputError(**_complaint(out, err))
    if process.returncode != 0:
        raise PoolPipeError(
            f"the load generator ended with {process.returncode}: {(err or '')[-500:]}"
        )
    found = json.loads(out)
    if "records_lost" in found and not keep_interrupted:
        raise PoolPipeError(found["records_lost"])
    return found


def _complaint(out: str, err: str | None) -> dict[str, str]:
    """The generator's refusal; it names an unknown option on stderr."""
    if out:
        return json.loads(out)
    where, _, reason = (err or "load: wrong usage").strip().partition(": ")
    return {"where": where, "reason": reason}


def span_of_load(records: Path) -> tuple[int, int]:
    """First and last instant of a load run on the host's monotonic clock, from its records (µs)."""
    with np.load(records, allow_pickle=False) as saved:
        start_us = int(saved["started_monotonic_us"])
        return start_us, start_us + int(saved["records"]["done_us"].max(initial=0))
