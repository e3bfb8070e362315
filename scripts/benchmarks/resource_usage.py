"""Resources of a running system: processes, memory, CPU time, files, sockets, segments.

What one that ended left over.
"""

import re
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import psutil

from flows.release.server.running import ServerState
from flows.system_metrics import MetricsError, read_all_metrics
from scripts.benchmarks.figures import Figure
from scripts.benchmarks.served import SHARED_FOLDER, Served, processes_of, segments_of
from triton_backend.contract.plan import Plan
from triton_backend.serve_folder.repository import CONTROL_MODEL

SAMPLE_SECONDS = 2.0
# How many more of each there may be at the end; None: that is reported alone.
GROWING: Mapping[str, int | None] = {
    "processes": None,
    "segments": None,
    "sockets": 5,
    "files": 5,
    "lasting sockets": 5,
    "lasting files": 5,
    "series": 5,
}
PAGE_SECONDS = 10.0
# Descriptors of workers and fronts for one another.
AT_NEED = re.compile(
    r"poolpipe-#-g#-[wef#].*"
    r"|socket (tcp connected|unix without a name|unix .*/g#-w#|unix .*/front-.*)"
)
TCP_ESTABLISHED = "01"
STUB = "triton_python_backend_stub"
GROWN_NAMED = 12  # kinds of descriptors, or series, that a note names
Part = Literal["tritonserver", "front", "scheduler", "workers", "others"]
PARTS: tuple[Part, ...] = ("tritonserver", "front", "scheduler", "workers", "others")


def resources(served: Served) -> dict[str, Any]:
    """Resources of the system now; memory in MB, of processes and of /dev/shm.

    A process's RSS counts pages of shared segments and files, too, which grow until every slot has
    been used once. `own_mb` is without them. `descriptors` counts by process and kind, numbers in
    names as `#`, so that the workers of one generation are compared with those of another;
    `series_names` are the series counted. Workers and fronts open links to one another, and map
    segments of one another, with the first tensors that go there after a change of plan: the
    lasting files and sockets are all others, `links` the ends of those links, `most_links` as many
    as the plan can have.
    """
    rss = files = sockets = processes = 0
    names, owns, numbers = Counter[str](), Counter[str](), Counter[str]()
    descriptors = Counter[str]()
    for process in served.processes():
        try:
            memory, fds = process.memory_info(), list(Path(f"/proc/{process.pid}/fd").iterdir())
            targets = [_target(fd) for fd in fds]
            sockets_here = _named_sockets(process.pid)
            name = process.name()
            role = _role(process)
        except (psutil.Error, OSError):
            continue
        rss += memory.rss
        owns[name] += memory.rss - memory.shared
        files += len(fds)
        sockets += sum(target.startswith("socket:") for target in targets)
        for target in targets:
            descriptors[f"{role}: {descriptor_kind(target, sockets_here)}"] += 1
        processes += 1
        names[name] += memory.rss
        numbers[name] += 1
    lasting = {kind: count for kind, count in descriptors.items() if not _is_at_need(kind)}
    lasting_sockets = sum(count for kind, count in lasting.items() if ": socket " in kind)
    segments, series = served.segments(), _series(served.state)
    return {
        "rss_mb": rss / 1e6,
        "own_mb": owns.total() / 1e6,
        "rss_mb_by_process": {name: size / 1e6 for name, size in sorted(names.items())},
        "own_mb_by_process": {name: size / 1e6 for name, size in sorted(owns.items())},
        "processes": processes,
        "processes_by_name": dict(sorted(numbers.items())),
        "series": None if series is None else len(series),
        "series_names": series,
        "descriptors": dict(sorted(descriptors.items())),
        "files": files,
        "sockets": sockets,
        "lasting files": sum(lasting.values()),
        "lasting sockets": lasting_sockets,
        "links": sockets - lasting_sockets,
        "most_links": most_links(served.plan),
        "segments": len(segments),
        "segments_mb": sum(_allocated(path) for path in segments) / 1e6,
    }


def part_of(role: str, model: str) -> Part:
    """The part of a process, by its role (`_role`) and the model that is asked.

    That model's own stub is the front, also where it is none of ours.
    """
    if role == "tritonserver":
        return "tritonserver"
    if role.startswith("worker-"):
        return "workers"
    stub = role.removeprefix("stub ")
    if stub == model:
        return "front"
    return "scheduler" if stub == CONTROL_MODEL else "others"


def cpu_seconds(state: ServerState, model: str) -> dict[Part, float]:
    """User and system time of all processes of a system so far, by part."""
    spent: dict[Part, float] = dict.fromkeys(PARTS, 0.0)
    for process in processes_of(state):
        try:
            times = process.cpu_times()
            spent[part_of(_role(process), model)] += times.user + times.system
        except psutil.Error:  # it has ended
            continue
    return spent


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
                name=f"{what} more than after warm-up",
                value=_more(what, first, last),
                most=most,
                note=_grown(what, first, last),
            )
            for what, most in GROWING.items()
        ),
        Figure(
            name="links at the end, of the most that the plan can have",
            value=last["links"] / last["most_links"],
            most=1,
            note=f"{first['links']} -> {last['links']}",
        ),
        Figure(
            name="processes, segments and folders left over",
            value=len(left),
            most=0,
            note=", ".join(left),
        ),
    ]


def _series(state: ServerState) -> list[str] | None:
    """The series of ours that its metrics have, those of both schedulers once.

    None where no server answers. From the first takeover on there are twice as many counters of a
    scheduler, and never more.
    """
    try:
        metrics = read_all_metrics(state.metrics_urls, PAGE_SECONDS)
    except MetricsError:
        return None
    found = {
        (name, tuple(label for label in labels if label[0] != "scheduler"))
        for name, series in metrics.items()
        for labels in series
    }
    return sorted(
        f"{name}{{{','.join(f'{label}={value}' for label, value in labels)}}}"
        for name, labels in found
    )


def _more(what: str, first: Mapping[str, Any], last: Mapping[str, Any]) -> int | None:
    return None if None in (first[what], last[what]) else last[what] - first[what]


def _grown(what: str, first: Mapping[str, Any], last: Mapping[str, Any]) -> str:
    """The kinds of which there are more, the most first."""
    only_sockets = what.endswith("sockets")
    if what == "series":
        before, now = (
            Counter(map(_of_any_plan, one["series_names"] or ())) for one in (first, last)
        )
    elif what.endswith("files") or only_sockets:
        before, now = first["descriptors"], last["descriptors"]
    else:
        return ""
    more = Counter({kind: count - before.get(kind, 0) for kind, count in now.items()})
    found = [
        f"{kind} +{count}"
        for kind, count in more.most_common()
        if count > 0
        and (not only_sockets or ": socket " in kind)
        and not (what.startswith("lasting") and _is_at_need(kind))
    ]
    return "; ".join(found[:GROWN_NAMED])


def _of_any_plan(series: str) -> str:
    return re.sub(r"(generation|plan_id)=[^,}]*", r"\1=#", series)


def in_short(look: Mapping[str, Any]) -> dict[str, Any]:
    """Resources without the names of the series, which are many and alike in all looks."""
    return {key: value for key, value in look.items() if key != "series_names"}


def most_links(plan: Plan) -> int:
    """The most ends of links between workers and fronts that a plan can have.

    One link from a front to each worker of a first stage and from each of a last one to the front,
    one for each two workers of stages after one another, and one of each worker and front with the
    scheduler; each with its socket that listens.
    """
    vgpus = {pool.name: pool.vgpus for pool in plan.pools}
    links = 0
    for model in plan.models:
        for pipeline in model.pipelines:
            hops = [1, *(vgpus[stage.pool] for stage in pipeline.stages), 1]
            links += sum(a * b for a, b in pairwise(hops))
    peers = sum(vgpus.values()) + len(plan.models)
    return 2 * (links + peers) + 2 * peers  # a worker of a plan over hosts listens twice


def _is_at_need(kind: str) -> bool:
    """True if a worker or front opens a descriptor of this kind with the first tensors."""
    role, _, what = kind.partition(": ")
    of_data_path = role.startswith("worker-") or (
        role.startswith("stub ") and not role.startswith("stub poolpipe_")
    )
    return of_data_path and AT_NEED.fullmatch(what) is not None


def _role(process: psutil.Process) -> str:
    """A process's name without numbers, with its model where it is Triton's stub of one."""
    name = process.name()
    if STUB.startswith(name):
        models = [Path(word).parts[-3] for word in process.cmdline() if word.endswith("/model.py")]
        name = " ".join(["stub", *models[:1]])
    return re.sub(r"\d+", "#", name)


def descriptor_kind(target: str, sockets: Mapping[str, str]) -> str:
    """The kind of a descriptor, of its link in `/proc`; numbers in names as `#`.

    Args:
        target: the link; of a socket or pipe its number.
        sockets: names of sockets by their links.
    """
    if target.startswith("socket:"):
        kind = f"socket {sockets.get(target, 'of another kind')}"
    elif target.startswith("/"):
        path = Path(target)
        kind = path.name if path.parent == SHARED_FOLDER else f"{path.parent.name}/{path.name}"
    else:
        kind = re.sub(r":\[\d+\]", "", target)
    kind = re.sub(r"(?<![a-z])[0-9a-f]{6,}(-[0-9a-f]+)*(?![a-z])", "#", kind)  # ids of systems
    kind = re.sub(r"-stub[0-9a-f-]+", "-stub#", kind)
    return re.sub(r"\d+", "#", kind)


def _named_sockets(pid: int) -> dict[str, str]:
    """Names of sockets of a process's network, by the links of their descriptors."""
    found: dict[str, str] = {}
    for line in _lines(pid, "unix"):
        fields = line.split()
        found[f"socket:[{fields[6]}]"] = f"unix {' '.join(fields[7:]) or 'without a name'}"
    for line in _lines(pid, "tcp") + _lines(pid, "tcp6"):
        fields = line.split()
        is_open = fields[3] == TCP_ESTABLISHED
        state = "connected" if is_open else "listening or closing"
        found[f"socket:[{fields[9]}]"] = f"tcp {state}"
    return found


def _lines(pid: int, table: str) -> list[str]:
    try:
        return Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
    except OSError:
        return []


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
            self.samples.append(in_short(resources(self._served)))

    def end(self) -> list[dict[str, Any]]:
        """Stop; all samples."""
        self._over.set()
        self.join()
        return self.samples
