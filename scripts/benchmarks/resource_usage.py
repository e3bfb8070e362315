"""Resources of a running system: processes, memory, files, sockets, segments.

What one that ended left over.
"""

import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import psutil

from flows.release.server.running import ServerState
from flows.system_metrics import MetricsError, read_all_metrics
from scripts.benchmarks.figures import Figure
from scripts.benchmarks.served import Served, processes_of, segments_of

SAMPLE_SECONDS = 2.0
# How many more of each there may be at the end; None: that is reported alone.
GROWING: Mapping[str, int | None] = {
    "processes": None,
    "segments": None,
    "sockets": 5,
    "files": 5,
    "series": 5,
}
PAGE_SECONDS = 10.0


def resources(served: Served) -> dict[str, Any]:
    """Resources of the system now; memory in MB, of processes and of /dev/shm.

    A process's RSS counts pages of shared segments and files, too, which grow until every slot has
    been used once. `own_mb` is without them.
    """
    rss = files = sockets = processes = 0
    names, owns, numbers = Counter[str](), Counter[str](), Counter[str]()
    for process in served.processes():
        try:
            memory, fds = process.memory_info(), list(Path(f"/proc/{process.pid}/fd").iterdir())
            targets = [_target(fd) for fd in fds]
            name = process.name()
        except (psutil.Error, OSError):
            continue
        rss += memory.rss
        owns[name] += memory.rss - memory.shared
        files += len(fds)
        sockets += sum(target.startswith("socket:") for target in targets)
        processes += 1
        names[name] += memory.rss
        numbers[name] += 1
    segments = served.segments()
    return {
        "rss_mb": rss / 1e6,
        "own_mb": owns.total() / 1e6,
        "rss_mb_by_process": {name: size / 1e6 for name, size in sorted(names.items())},
        "own_mb_by_process": {name: size / 1e6 for name, size in sorted(owns.items())},
        "processes": processes,
        "processes_by_name": dict(sorted(numbers.items())),
        "series": _series(served.state),
        "files": files,
        "sockets": sockets,
        "segments": len(segments),
        "segments_mb": sum(_allocated(path) for path in segments) / 1e6,
    }


def left_over(states: Iterable[ServerState]) -> list[str]:
    """Processes, segments and folders left by stopped systems, from their last state files."""
    found: list[str] = []
    for state in states:
        found += [f"process {p.pid}" for p in processes_of(state)]
        found += map(str, segments_of(state))
        sockets = Path(state.data["socket_folder"])
        found += [str(sockets)] if sockets.exists() else []
    return found


def growth_figures(
    first: Mapping[str, Any], last: Mapping[str, Any], memory_fraction: float, left: list[str]
) -> list[Figure]:
    """Growth between two samples, memory by `memory_fraction` at most, and what was left over."""
    return [
        Figure(
            name="memory at the end, of that after warm-up",
            value=last["rss_mb"] / first["rss_mb"],
            most=1 + memory_fraction,
            note=f"{first['rss_mb']:.0f} -> {last['rss_mb']:.0f} MB",
        ),
        Figure(
            name="of it, without what processes share",
            value=last["own_mb"] / first["own_mb"],
            note=f"{first['own_mb']:.0f} -> {last['own_mb']:.0f} MB",
        ),
        *(
            Figure(
                name=f"{what} more than after warm-up", value=_more(what, first, last), most=most
            )
            for what, most in GROWING.items()
        ),
        Figure(
            name="processes, segments and folders left over",
            value=len(left),
            most=0,
            note=", ".join(left),
        ),
    ]


def _series(state: ServerState) -> int | None:
    """How many series of ours its metrics have, those of both schedulers once.

    None where no server answers. From the first takeover on there are twice as many counters of a
    scheduler, and never more.
    """
    try:
        metrics = read_all_metrics(state.metrics_urls, PAGE_SECONDS)
    except MetricsError:
        return None
    return sum(
        len({tuple(label for label in labels if label[0] != "scheduler") for labels in series})
        for series in metrics.values()
    )


def _more(what: str, first: Mapping[str, Any], last: Mapping[str, Any]) -> int | None:
    return None if None in (first[what], last[what]) else last[what] - first[what]


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:
        return ""


def _allocated(path: Path) -> int:
    try:
        return path.stat().st_blocks * 512
    except OSError:
        return 0


class Sampler(threading.Thread):
    """Samples `resources` until it is ended."""

    def __init__(self, served: Served) -> None:
        super().__init__(daemon=True)
        self._served = served
        self._over = threading.Event()
        self.samples: list[dict[str, Any]] = []

    def run(self) -> None:
        """Sample."""
        while not self._over.wait(SAMPLE_SECONDS):
            self.samples.append(resources(self._served))

    def end(self) -> list[dict[str, Any]]:
        """Stop; all samples."""
        self._over.set()
        self.join()
        return self.samples
