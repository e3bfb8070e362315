"""Parts common to all benchmarks.

Figures beside their targets, what they were taken on, where they go.

    parser = argparse.ArgumentParser(description=__doc__)
    add_destinations(parser)                     # --out FILE.json and --warehouse FILE
    asked = parser.parse_args()
    figures = [Figure(name="added latency p50", value=1.7, unit="ms", most=2.0), …]
    return conclude(asked, "gateway", figures, {"raw": …})

A figure without a bound is reported, never judged; one without a value was not measured here. The
JSON file is what `scripts/figures/runs` keeps: a run whose `quiet` is false had other work beside
it.
"""

import argparse
import json
import math
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from flows.clock import now_utc

_PACKAGES = (
    "numpy", "numba", "scipy", "highspy", "duckdb", "onnxruntime", "nvidia-pytriton", "tritonclient"
)  # fmt: skip
QUIET_LOAD = 0.75  # load average of the last minute before a run that counts as undisturbed
_AT_START = os.getloadavg()


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured figure; it should be at least `least` and at most `most` where these are given.

    `unit` is "" for counts and fractions. `note` is what else the table says of it.
    """

    name: str
    value: float | None
    unit: str = ""
    least: float | None = None
    most: float | None = None
    note: str = ""

    @property
    def target(self) -> str:
        """The bounds in words; empty without any."""
        if self.least is not None and self.least == self.most:
            return f"= {self.least:g}"
        bounds = ((">=", self.least), ("<=", self.most))
        return ", ".join(f"{sign} {bound:g}" for sign, bound in bounds if bound is not None)

    @property
    def status(self) -> str:
        """`met`, `MISSED`, `reported` (no target) or `not measured`."""
        if self.value is None:
            return "not measured"
        if not self.target:
            return "reported"
        least = -math.inf if self.least is None else self.least
        most = math.inf if self.most is None else self.most
        return "met" if least <= self.value <= most else "MISSED"

    def table_row(self) -> str:
        """Its row of the table."""
        value = "-" if self.value is None else f"{self.value:.6g}"
        text = f"{self.name:<66} {value:>11} {self.unit:<6} {self.target:>12}  {self.status}"
        return text + (f"  {self.note}" if self.note else "")


def show(figures: Sequence[Figure]) -> None:
    """Print the table."""
    for figure in figures:
        print(figure.table_row(), flush=True)


def exit_code(figures: Sequence[Figure]) -> int:
    """1 where a target was missed, else 0."""
    return int(any(figure.status == "MISSED" for figure in figures))


def conclude(
    asked: argparse.Namespace,
    benchmark: str,
    figures: Sequence[Figure],
    details: Mapping[str, Any] | None = None,
) -> int:
    """Show and `store` what was measured; the exit code."""
    show(figures)
    store(asked, benchmark, figures, details)
    return exit_code(figures)


def add_destinations(parser: argparse.ArgumentParser) -> None:
    """Add `--out` (or `--output`) and `--warehouse`."""
    add = parser.add_argument
    add("--out", "--output", type=Path, metavar="FILE", help="write figures and raw data as JSON")
    add("--warehouse", type=Path, metavar="FILE", help="store figures in this warehouse too")


def machine() -> dict[str, Any]:
    """The machine of a measurement, the command, and the load."""
    return {
        "cpu": _cpu(),
        "cpu_count": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "platform": platform.platform(),
        "load_average_before": _AT_START,
        "load_average": os.getloadavg(),
        "command": shlex.join([Path(sys.executable).name, _script(), *sys.argv[1:]]),
    }


def _script() -> str:
    """The command as in the repository: `python -m` hands over its whole path."""
    script, root = Path(sys.argv[0]), Path(__file__).parents[2]
    return str(script.relative_to(root)) if script.is_relative_to(root) else sys.argv[0]


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that figures depend on, those installed."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def store(
    asked: argparse.Namespace,
    benchmark: str,
    figures: Sequence[Figure],
    details: Mapping[str, Any] | None = None,
) -> None:
    """Write the JSON file and the warehouse's rows that the command line asked for.

    Args:
        asked: parsed arguments of a parser with `add_destinations`.
        benchmark: its name in both.
        figures: what was measured; those without a value stay out of the warehouse.
        details: more for the JSON file.

    Raises:
        InputError: the warehouse is in use or is none.
    """
    now, on, by = now_utc(), machine(), versions()
    if asked.out is not None:
        record: dict[str, Any] = {
            "benchmark": benchmark,
            "at": now.isoformat(timespec="seconds"),
            "commit": _commit(),
            "quiet": _AT_START[0] <= QUIET_LOAD,
            "machine": on,
            "versions": by,
        }
        record["figures"] = [
            {"name": f.name, "value": f.value, "unit": f.unit, "target": f.target,
             "status": f.status, "note": f.note}
            for f in figures
        ]  # fmt: skip
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        asked.out.write_text(json.dumps(record | dict(details or {}), indent=1) + "\n")
    if asked.warehouse is not None:
        # A bare machine with a card has no DuckDB.
        from warehouse.db import open_warehouse  # noqa: PLC0415
        from warehouse.runs import Figure as StoredFigure  # noqa: PLC0415
        from warehouse.runs import add_figures  # noqa: PLC0415

        rows = [
            StoredFigure(name=f.name, value=f.value, unit=f.unit, target=f.target or None)
            for f in figures
            if f.value is not None
        ]
        with open_warehouse(asked.warehouse) as store, store.transaction():
            add_figures(store, benchmark, rows, (on, by), now)


def _commit() -> str | None:
    """Short name of the checkout's commit, with `+` where files differ from it.

    None outside git.
    """
    git = shutil.which("git")
    if git is None:
        return None
    found = subprocess.run(
        [git, "describe", "--always", "--exclude=*", "--abbrev=7", "--dirty=+"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return found.stdout.strip() or None


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()
