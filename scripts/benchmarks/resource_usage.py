"""What a running system holds: processes, memory, files, sockets, segments of shared memory."""

import threading
from pathlib import Path
from typing import Any

import psutil

from scripts.benchmarks.served import Served

SAMPLE_SECONDS = 2.0


def resources(served: Served) -> dict[str, Any]:
    """What the system holds now; memory in MB, of processes (RSS) and of /dev/shm."""
    rss = files = sockets = processes = 0
    names: dict[str, int] = {}
    for process in served.processes():
        try:
            memory, fds = process.memory_info().rss, list(Path(f"/proc/{process.pid}/fd").iterdir())
            targets = [_target(fd) for fd in fds]
            name = process.name()
        except (psutil.Error, OSError):
            continue
        rss += memory
        files += len(fds)
        sockets += sum(target.startswith("socket:") for target in targets)
        processes += 1
        names[name] = names.get(name, 0) + memory
    segments = served.segments()
    return {
        "rss_mb": rss / 1e6,
        "rss_mb_by_process": {name: size / 1e6 for name, size in sorted(names.items())},
        "processes": processes,
        "files": files,
        "sockets": sockets,
        "segments": len(segments),
        "segments_mb": sum(_allocated(path) for path in segments) / 1e6,
    }


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
