"""The rival of the kit for evidence, tuned: Triton's best configuration in the simulator.

    python -m scripts.gpu.tune --work DIR

Reads cluster, workload and plan of the kit's folder, and the profiles in its warehouse. Writes what
was chosen (`rival.json`) and the cluster with as many instances a GPU as were (`rival.yaml`).
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from flows.files import read_cluster, read_plan, read_workload
from flows.planning.stored_plans import load_profiles
from flows.state import ProjectState
from flows.workspace import Workspace
from scripts.paper.tuning import Demand, tuned
from triton_backend.contract.errors import PoolPipeError
from triton_backend.simulator.papers.triton import TRITON

SECONDS = 5.0  # simulated at every point


def demand_of(work: Path) -> Demand:
    """The problem of a kit's folder.

    Raises:
        InputError: a file or a profile is missing.
    """
    cluster, workload = read_cluster(work / "cluster.yaml"), read_workload(work / "workload.yaml")
    state = ProjectState(home=work / "home")
    workspace = Workspace(state=state, warehouse=work / "warehouse.duckdb")
    profiles, _ = load_profiles(workspace, cluster, workload)
    return Demand(profiles=profiles, cluster=cluster, workload=workload, seconds=SECONDS)


def main(arguments: Sequence[str]) -> int:
    """Search and write; 1 where no configuration holds any load, 2 on wrong input."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True, metavar="DIR")
    work: Path = parser.parse_args(arguments).work
    try:
        found = tuned(demand_of(work), TRITON, read_plan(work / "plan.json"))
    except PoolPipeError as error:
        print(f"tune: {error}", file=sys.stderr)
        return 2
    chosen = found.configuration
    if chosen is None:
        print("tune: no configuration of Triton holds any load", file=sys.stderr)
        return 1
    document = yaml.safe_load((work / "cluster.yaml").read_text())
    if chosen.whole:
        for each in document["gpu_classes"].values():
            each.pop("vgpu_percents", None)
            each["vgpu_divisors"] = [1]
    (work / "rival.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    said = {
        "chosen": chosen.name,
        "slo_margin": chosen.margin,
        "delay_share": chosen.options.batch_timeout_share,
        "load": found.load,
    }
    (work / "rival.json").write_text(json.dumps(said) + "\n")
    print(f"{chosen.name}: holds load {found.load}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
