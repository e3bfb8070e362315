"""Plans of one name with two variants on one GPU, for servers that must start in seconds."""

from dataclasses import replace

from tests.fakes.plans import hand_model, hand_pipeline, hand_plan
from tests.triton_backend.serving.small_plans import BATCH, SLO_US, stage, tensor
from triton_backend.contract.cluster import NodeGroup
from triton_backend.contract.plan import Plan
from triton_backend.contract.workload import ModelDemand, Workload

NAME, CHEAP = "net", "net-small"
VARIANTS = (NAME, CHEAP)
ACCURACY = {NAME: 0.8, CHEAP: 0.7}
RATE_RPS = 20.0  # of the accurate one; the cheap one takes half the time


def variant_plan(
    plan_id: str = "variants",
    names: tuple[str, ...] = VARIANTS,
    artifacts: dict[str, str] | None = None,
    rate_rps: float = RATE_RPS,
) -> Plan:
    """Models that answer for `NAME`, on one GPU that they share."""
    latencies = {NAME: (20_000, 30_000, 40_000, 50_000), CHEAP: (10_000, 15_000, 20_000, 25_000)}
    models = [
        hand_model(
            name,
            hand_pipeline(
                stage(
                    (0, 1),
                    "FAST",
                    0,
                    latency_us_by_batch=latencies[name],
                    artifact=(artifacts or {}).get(name),
                ),
                batch=BATCH,
                rate_rps=rate_rps if name == NAME else 0.0,
            ),
            slo_us=SLO_US,
            policy="timeout",
            inputs=(tensor("x", 3),),
            outputs=(tensor("y", 3),),
        )
        for name in names
    ]
    nodes = [NodeGroup(count=1, gpu_class="FAST", gpus=1, nic_gbps=10.0)]
    demands = tuple(
        ModelDemand(
            name=name,
            slo_us=SLO_US,
            rate_rps=rate_rps if name == NAME else 0.0,
            accuracy=ACCURACY[name],
            size_of=None if name == NAME else NAME,
        )
        for name in names
    )
    return replace(
        hand_plan(*models, nodes=nodes, plan_id=plan_id), workload=Workload(models=demands)
    )
