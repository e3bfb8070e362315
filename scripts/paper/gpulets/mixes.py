"""Tables, mixes of models and GPUs of the gpulets paper, which all of `gpulets/` plans.

`--data` is a folder of published tables: `igniter_v100_*.csv` and `wlgur_*.csv` (latencies alone,
utilisations, pairs), `glet_models.csv`, `glet_scenarios.csv`, `glet_interference_constants.csv`,
and `derived_2080ti_*.csv`, which are derived from the paper's SLOs and were not measured.
"""

import csv
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryDirectory

from flows.preparation.interference.stored_tables import Tables, read_folder
from flows.preparation.interference.tables import PAIRS_FILE, read_models
from flows.preparation.profiling.csv_tables import LATENCY_FILE, UTILISATION_FILE
from triton_backend.contract.cluster import Cluster, GpuClass, NodeGroup
from triton_backend.contract.profiles import InterferenceModel, ModelProfile
from triton_backend.contract.workload import ModelDemand, Workload

GPU = "2080ti-derived"
CONSTANTS_OF = "2080ti"
PERCENTS = (20, 40, 50, 60, 80, 100)
MEMORY_GIB = 0.9 * 11  # of a GPU; the authors leave a tenth free
PROCESS_GIB = 1230 / 1024

Profiles = dict[str, ModelProfile]


def published(data: Path, stem: str) -> Tables:
    """Tables of a publication as `profiles import` reads them."""
    names = {"latency": LATENCY_FILE, "utilisation": UTILISATION_FILE, "pairs": PAIRS_FILE}
    with TemporaryDirectory() as folder:
        for part, name in names.items():
            if (data / f"{stem}_{part}.csv").exists():
                copyfile(data / f"{stem}_{part}.csv", Path(folder) / name)
        return read_folder(Path(folder))


def profiles_of(data: Path) -> Profiles:
    """Every model of the derived table; a name that ends in another digit is the same model."""
    tables = published(data, "derived_2080ti")
    with (data / "glet_models.csv").open() as lines:
        memory = {row["model"]: float(row["memory_mb"]) for row in csv.DictReader(lines)}
    return {
        name: replace(profile, block_memory_bytes=(int(memory[name] * (1 << 20)),))
        for name, profile in sorted(tables.profiles.items())
    }


def constants(data: Path) -> InterferenceModel:
    """The authors' constants of the class; they state no residuals."""
    return read_models(data / "glet_interference_constants.csv")[CONSTANTS_OF]


@cache
def workloads(data: Path) -> dict[str, tuple[tuple[str, float, int], ...]]:
    """Model, weight and SLO (µs) of every mix."""
    found: dict[str, list[tuple[str, float, int]]] = {}
    with (data / "glet_scenarios.csv").open() as lines:
        for row in csv.DictReader(lines):
            slo_us = round(1_000 * float(row["slo_ms"]))
            item = (row["model"], float(row["relative_rate"]), slo_us)
            found.setdefault(row["scenario"], []).append(item)
    return {name: tuple(items) for name, items in found.items()}


def cluster(gpus: int) -> Cluster:
    """GPUs of the class, on one node."""
    gpu_class = GpuClass(
        name=GPU,
        vgpu_divisors=(),
        vgpu_percents=PERCENTS,
        memory_gib=MEMORY_GIB,
        process_memory_gib=PROCESS_GIB,
    )
    nodes = (NodeGroup(count=1, gpu_class=GPU, gpus=gpus, nic_gbps=100),)
    return Cluster(name="gpulets", gpu_classes=(gpu_class,), nodes=nodes)


def mix(profiles: Profiles, items: Iterable[tuple[str, float, int]]) -> tuple[Profiles, Workload]:
    """Profiles and demands of a mix; `lenet3` has the profile of `lenet1`."""
    used: Profiles = {}
    demands: list[ModelDemand] = []
    for name, weight, slo_us in items:
        source = name if name in profiles else name.rstrip("0123456789") + "1"
        used[name] = replace(profiles[source], name=name)
        demands.append(ModelDemand(name=name, slo_us=slo_us, weight=weight))
    return used, Workload(models=tuple(demands))
