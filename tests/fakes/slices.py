"""Plans by hand on cards that MIG divides, and a driver that lists slices."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.fakes.plans import hand_model, hand_pipeline, hand_plan, hand_stage
from triton_backend.contract.cluster import GpuClass, NodeGroup
from triton_backend.contract.plan import PlacementRun, Plan
from triton_backend.contract.shares import Mig, share_of_mig

CARD = "A100-40GB"
LISTED = """#!{python}
import sys
assert sys.argv[1:] == ["-L"]
print({text!r}, end="")
"""


def slice_plan(
    *pools: tuple[str, Sequence[tuple[int, int, int]]],
    gpus: int = 2,
    nodes: int = 1,
    **stage: Any,
) -> Plan:
    """A plan of a model per pool: its size (`3g/2`) and where it lies (node, GPU, slot)."""
    sizes = [size for size, _ in pools]
    models = [
        hand_model(
            f"m{number}",
            hand_pipeline(
                hand_stage(
                    (0, 1), "G", PlacementRun(node=0, gpu=0, slot=number), (1_000,), **stage
                ),
                batch=1,
            ),
            slo_us=10_000,
        )
        for number in range(len(pools))
    ]
    group = NodeGroup(count=nodes, gpu_class="G", gpus=max(gpus, len(pools)), nic_gbps=10.0)
    whole = [
        replace(m, pools=(replace(m.pools[0], placement=(PlacementRun(node=0, gpu=i, slot=0),)),))
        for i, m in enumerate(models)
    ]
    plan = hand_plan(*whole, nodes=[group])
    kind = GpuClass(name="G", vgpu_divisors=(), mig=Mig(card=CARD, processes=4))
    cluster = replace(plan.cluster, gpu_classes=(kind,), nodes=(replace(group, gpus=gpus),))
    placed = tuple(
        replace(
            pool,
            share=share_of_mig(size),
            vgpus=len(slots),
            placement=tuple(PlacementRun(node=n, gpu=g, slot=s) for n, g, s in slots),
        )
        for pool, size, (_, slots) in zip(plan.pools, sizes, pools, strict=True)
    )
    planned = replace(plan, cluster=cluster, pools=placed)
    return replace(planned, gpus_used=planned.gpus())


def install(folder: Path, *gpus: Sequence[str]) -> Path:
    """Write `nvidia-smi`, which lists these slices of each GPU, into a folder.

    Returns it for PATH.
    """
    lines: list[str] = []
    for gpu, slices in enumerate(gpus):
        lines.append(f"GPU {gpu}: NVIDIA A100-SXM4-40GB (UUID: GPU-{gpu})")
        lines += [
            f"  MIG {profile:<12}Device {number:>2}: (UUID: MIG-{gpu}.{number})"
            for number, profile in enumerate(slices)
        ]
    path = folder / "nvidia-smi"
    path.write_text(LISTED.format(python=sys.executable, text="\n".join(lines) + "\n"))
    path.chmod(0o755)
    return folder
