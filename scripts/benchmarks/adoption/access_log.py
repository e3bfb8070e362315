"""`poolpipe advise` on an access log of a million lines: seconds to the answer, and memory.

The log is drawn: a day of two models in nginx's form, with one line in ten that is no request of a
model. Profiles, cluster and workload are small, so that reading the log is the larger part.

    .venv/bin/python scripts/benchmarks/adoption/access_log.py [--lines 1000000] [--out FILE]
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

from flows.clock import Stopwatch, now_utc
from scripts.benchmarks.figures import Figure, add_destinations, conclude
from triton_backend.contract.profiles import ModelProfile, loaded
from warehouse.db import open_warehouse
from warehouse.profiles import import_profile

MODELS = ("net", "web")
DAY_S = 86_400
OTHERS = 0.1  # share of lines that are no request of a model
RUN = "from flows.cli.main import main; main()"
MOST_S, MOST_MIB = 60.0, 1024.0
FILES = {
    "cluster.yaml": """gpu_classes: {fast: {hourly_cost: 4}, slow: {hourly_cost: 1}}
nodes:
  - {count: 4, gpu_class: fast, gpus: 1, nic_gbps: 10}
  - {count: 12, gpu_class: slow, gpus: 1, nic_gbps: 10}
""",
    "workload.yaml": "models: [{name: net, slo_ms: 700}, {name: web, slo_ms: 900}]\n",
}


def profile(name: str) -> ModelProfile:
    """Three blocks on two classes, batches 1 and 2."""
    latency_us = {
        ("fast", 1): np.full((3, 2), (60_000.0, 90_000.0)),
        ("slow", 1): np.full((3, 2), (180_000.0, 270_000.0)),
    }
    return ModelProfile(name=name, tables=loaded(latency_us), boundary_bytes=(1_000, 1_000))


def write_log(path: Path, lines: int) -> None:
    """A day whose load rises and falls once, lines in the order of time."""
    draws = np.random.default_rng(0)
    seconds = np.sort((draws.beta(2.5, 2.0, size=lines) * DAY_S).astype(np.int64))
    kinds = draws.choice(3, size=lines, p=(0.6, 0.4 - OTHERS, OTHERS))
    begin = datetime(2026, 11, 24, tzinfo=UTC)
    paths = [f"POST /v2/models/{name}/infer" for name in MODELS] + ["GET /v2/health/ready"]
    clocks: dict[int, str] = {}
    with path.open("w") as file:
        for second, kind in zip(seconds.tolist(), kinds.tolist(), strict=True):
            if second not in clocks:
                at = begin + timedelta(seconds=second)
                clocks[second] = f"{at:%d/%b/%Y:%H:%M:%S +0000}"
            file.write(
                f'10.1.2.3 - - [{clocks[second]}] "{paths[kind]} HTTP/1.1" 200 512 "-" "client"\n'
            )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, store; exit 1 where a target is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lines", type=int, default=1_000_000)
    add_destinations(parser)
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder)
        for name, text in FILES.items():
            (project / name).write_text(text)
        with open_warehouse(project / "poolpipe.duckdb") as warehouse:
            for name in MODELS:
                import_profile(warehouse, profile(name), "drawn", now_utc())
        write_log(project / "access.log", asked.lines)
        words = [sys.executable, "-c", RUN, "advise", "--access-log", "access.log"]
        words += ["--cluster", "cluster.yaml", "--workload", "workload.yaml"]
        watch = Stopwatch()
        root = str(Path(__file__).resolve().parents[3])
        process = subprocess.Popen(words, cwd=project, env={**os.environ, "PYTHONPATH": root})
        _, status, usage = os.wait4(process.pid, 0)
        seconds = watch.seconds()
    figures = [
        Figure(name="exit code", value=os.waitstatus_to_exitcode(status), most=0),
        Figure(name="seconds to the answer", value=seconds, unit="s", most=MOST_S),
        Figure(name="memory", value=usage.ru_maxrss / 1024, unit="MiB", most=MOST_MIB),
    ]
    return conclude(asked, "access log", figures, {"lines": asked.lines})


if __name__ == "__main__":
    sys.exit(main())
