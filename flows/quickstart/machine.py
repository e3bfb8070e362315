"""The machine and the versions a figure was measured with."""

import os
import platform
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

PACKAGES = (
    "duckdb",
    "highspy",
    "numba",
    "numpy",
    "nvidia-pytriton",
    "onnx",
    "onnxruntime",
    "prefect",
    "tritonclient",
)


def machine() -> dict[str, str]:
    """Processor, usable cores, memory and system, in words."""
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": names[0] if names else model,
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
    }


def versions() -> dict[str, str]:
    """Python and the packages whose versions change figures."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):  # as without the extra `local`
            found[name] = version(name)
    return found
