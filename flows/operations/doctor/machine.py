"""Properties of this machine that decide if serving is possible and fast."""

import os
import resource
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from re import search

from flows.operations.doctor.registry import (
    Finding,
    Surroundings,
    advice,
    check,
    good,
    problem,
)
from flows.planning.solver.solve import gurobi_licence
from flows.preparation.profiling.devices import list_devices
from triton_backend.contract.errors import InputError
from triton_backend.serve_folder.line_files import ROLL_BYTES

GIB = 1 << 30
FAST_CLOCKS = {"tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter", "xen"}
STACK_BYTES = 1 << 30  # the server's limit, if the user may have it
LEAST_FILES = 4096  # sockets, segments and event descriptors of one server, generously
EXPIRES_SOON_DAYS = 30
TENSORRT = ("tensorrt", "tensorrt-rtx", "tensorrt-rtx-cu12-bindings")


@check("clock source")
def clock_source(at: Surroundings) -> Iterator[Finding]:
    """Every decision and every batch reads the clock; from a slow source each reading is a call."""
    path = at.root / "sys/devices/system/clocksource/clocksource0/current_clocksource"
    try:
        name = path.read_text().strip()
    except OSError:
        yield advice("the kernel does not say which one it uses", f"look at {path}")
        return
    if name in FAST_CLOCKS:
        yield good(name)
        return
    there = path.with_name("available_clocksource").read_text().split()
    better = next((c for c in there if c in FAST_CLOCKS), None)
    why = (
        f"write {better} to {path}"
        if better
        else "the machine or its hypervisor offers no faster one"
    )
    yield advice(f"{name}, which takes a microsecond or more to read", why)


@check("shared memory")
def shared_memory(at: Surroundings) -> Iterator[Finding]:
    """Tensors pass through /dev/shm; a container has 64 MiB of it unless it is given more."""
    folder = at.root / "dev/shm"
    free = shutil.disk_usage(folder).free
    seen = f"{free / GIB:.2f} GiB free in {folder}"
    if free < GIB // 4:
        yield problem(seen, "mount more (`docker run --shm-size 2g`, an emptyDir of medium Memory)")
    elif free < GIB:
        yield advice(seen, "large models and batches need more: remount it with a larger size")
    else:
        yield good(seen)
    left = [path for path in folder.glob("poolpipe-*") if not _of_running(path, at)]
    if left:
        mib = sum(path.stat().st_size for path in left) >> 20
        yield advice(
            f"{len(left)} segments ({mib} MiB) of no system served from here",
            f"where no other project serves: `rm {folder}/poolpipe-*`, or `poolpipe stop` there",
        )


def _of_running(path: Path, at: Surroundings) -> bool:
    served = at.served()
    return served is not None and path.name.startswith(f"poolpipe-{served['instance']}-")


@check("limits of this user")
def user_limits(at: Surroundings) -> Iterator[Finding]:
    """The server is started with a stack of 1 GiB, and holds a socket for every client."""
    del at
    stack, files = (
        resource.getrlimit(kind)[1] for kind in (resource.RLIMIT_STACK, resource.RLIMIT_NOFILE)
    )
    if stack != resource.RLIM_INFINITY and stack < STACK_BYTES:
        yield problem(
            f"the stack may have {stack >> 20} MiB: one deeply nested request ends the old server",
            "raise the hard limit (`ulimit -Hs unlimited`, LimitSTACK= of the service)",
        )
    else:
        yield good("stack of 1 GiB allowed")
    if files < LEAST_FILES:
        yield advice(f"{files} open files allowed", "raise the hard limit (`ulimit -Hn 65536`)")
    else:
        yield good(f"{files} open files allowed")


@check("libpython")
def libpython(at: Surroundings) -> Iterator[Finding]:
    """Triton's Python backend embeds the interpreter and needs its shared library."""
    del at
    folder = Path(str(sysconfig.get_config_var("LIBDIR")))
    name = str(sysconfig.get_config_var("INSTSONAME"))
    if (folder / name).exists():
        yield good(f"{folder / name}")
    else:
        yield problem(
            f"{folder} has no {name}",
            f"install it (Debian: libpython{sys.version_info.major}.{sys.version_info.minor})",
        )


@check("disk")
def disk(at: Surroundings) -> Iterator[Finding]:
    """Engines, event files and the warehouse grow."""
    for what, path in (("state", at.state.home), ("warehouse", at.warehouse.parent)):
        there = next(p for p in (path.absolute(), *path.absolute().parents) if p.exists())
        if not os.access(there, os.W_OK):
            yield problem(f"{what}: {there} cannot be written", "mount it writable, or give rights")
            continue
        free = shutil.disk_usage(there).free
        seen = f"{what}: {free / GIB:.1f} GiB free at {there}"
        if free > GIB:
            yield good(seen)
        elif free > ROLL_BYTES:
            yield advice(seen, "make room: `poolpipe warehouse compact`")
        else:
            yield problem(
                seen,
                "delete or move files there: `poolpipe warehouse compact` needs room itself, and "
                "event files lose lines",
            )


@check("GPUs and MPS")
def gpus(at: Surroundings) -> Iterator[Finding]:
    """Shares of a GPU need NVIDIA's multi-process service."""
    del at
    try:
        devices = list_devices()
    except InputError as error:
        yield good(f"{error.where}: {error.reason}; CPU classes and emulated ones need none")
        return
    for device in devices:
        seen = f"{device.name} {device.uuid}: MPS {device.mps}"
        if device.mps == "not installed":
            yield advice(seen, "install nvidia-cuda-mps-control to divide GPUs (vgpu_divisors)")
        else:
            yield good(seen)


@check("TensorRT")
def tensorrt(at: Surroundings) -> Iterator[Finding]:
    """Engines are built and run by one library, whichever is there."""
    del at
    found = [f"{name} {number}" for name in TENSORRT if (number := _version(name))]
    yield good(", ".join(found) or "not installed; only engines of GPU classes need it")


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


@check("solvers")
def solvers(at: Surroundings) -> Iterator[Finding]:
    """HiGHS is free; Gurobi's licence may be limited or near its end."""
    yield good(f"HiGHS {version('highspy')}, free")
    number = _version("gurobipy")
    if number is None:
        yield good("Gurobi is not installed, and not needed")
        return
    text = gurobi_licence()
    ends = search(r"expires (\d{4}-\d{2}-\d{2})", text)
    days = (date.fromisoformat(ends[1]) - at.now.date()).days if ends else EXPIRES_SOON_DAYS
    seen = f"Gurobi {number}: {text}"
    if days < EXPIRES_SOON_DAYS:
        yield advice(seen, "renew the licence; without one plans are solved by HiGHS")
    elif "estricted" in text:
        yield advice(seen, "2,000 variables and rows at most, and not for production")
    elif ends or "icense" in text:
        yield good(seen)
    else:
        yield advice(seen, "plans are solved by HiGHS until it has a licence")


@check("processors")
def processors(at: Surroundings) -> Iterator[Finding]:
    """Server, scheduler and fronts share what the stages leave."""
    del at
    usable = len(os.sched_getaffinity(0))
    if usable < 2:  # noqa: PLR2004  # one for the stages, one for the rest
        yield advice(f"{usable} usable", "latencies will suffer: give it two")
    else:
        yield good(f"{usable} usable")
