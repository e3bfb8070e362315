"""Copies of a stage in processes of their own, running at once on one GPU."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from flows.clock import Stopwatch
from flows.preparation.building.tensorrt.edges import read_edges
from flows.preparation.splitting.running import random_inputs
from scripts.gpu.paths import find_path
from triton_backend.contract.errors import InputError, PoolPipeError
from triton_backend.contract.units import US_PER_S

COPY_SECONDS = 3.0
COPY_BATCH = 8
ROOT = Path(__file__).resolve().parents[2]


def run_copies(stage: Path, path_name: str, work: Path, share: tuple[int, dict[str, str]]) -> float:
    """Mean time of a batch (µs, host to host) over v copies that run at once.

    Args:
        stage: ONNX file.
        path_name: how stages are run.
        work: where engines are.
        share: v, and the environment that makes a process one of v.

    Raises:
        PoolPipeError: a copy did not start or did not end well.
    """
    divisor, environment = share
    command = [sys.executable, "-m", "scripts.gpu.check", "--path", path_name]
    files = ["--copy", str(stage.resolve()), "--work", str(work.resolve())]
    processes = [
        subprocess.Popen(
            [*command, *files],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        for _ in range(divisor)
    ]
    try:
        return float(np.mean([float(line) for line in _together(processes)]))
    except ValueError as error:
        raise PoolPipeError(f"a copy did not measure: {error}") from error
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _together(processes: list[subprocess.Popen[str]]) -> list[str]:
    """Results of the copies, which begin when all have loaded."""
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    return [process.communicate()[0].strip() for process in processes]


def be_a_copy(stage: Path, path_name: str, work: Path) -> int:
    """The copy's side: load, say so, wait for the word, run for a while, say the mean time."""
    complaints: list[str] = []
    path = find_path(work, complaints, path_name)
    if path is None:
        raise InputError("copy", "; ".join(complaints))
    opened = path.open(stage, graphs=path.graphs)
    inputs = random_inputs(read_edges(stage, {}).inputs, COPY_BATCH, np.random.default_rng(1))
    opened.run(inputs)
    print("loaded", flush=True)
    sys.stdin.readline()
    watch, runs = Stopwatch(), 0
    while watch.seconds() < COPY_SECONDS:
        opened.run(inputs)
        runs += 1
    print(watch.seconds() * US_PER_S / runs, flush=True)
    return 0
