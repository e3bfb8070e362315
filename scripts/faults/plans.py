"""The plan whose answers show an overwrite: tensors too large for a checksum, one short SLO."""

from scripts.benchmarks.served import BLOCKS, SMALL_BATCH, quick_model, small_model, small_stage
from scripts.faults.injection import FRONT, QUICK_FRONT
from tests.fakes.plans import hand_pipeline, hand_plan
from triton_backend.contract.cluster import NodeGroup
from triton_backend.contract.plan import Plan

WIDE_BYTES, ANSWER_BYTES = 100_000, 20_000
STAGES_US = {FRONT: 80_000, "brisk": 10_000}  # a fifth of the SLO
RATE_RPS = 80.0
QUICK_SLO_US = 50_000
NIC_GBPS = 10.0


def wide_plan(plan_id: str, *, quick: bool = False) -> Plan:
    """The two models, each on four vGPUs over two nodes for either stage.

    A quick one beside them where asked for.
    """
    models = []
    for number, (name, stage_us) in enumerate(STAGES_US.items()):
        stages = (
            small_stage((0, 5), "FAST", 2 * number, stage_us, NIC_GBPS, WIDE_BYTES),
            small_stage((5, BLOCKS), "SLOW", 2 * number, stage_us, NIC_GBPS, WIDE_BYTES),
        )
        pipeline = hand_pipeline(*stages, batch=SMALL_BATCH, rate_rps=RATE_RPS)
        models.append(small_model(name, 5 * stage_us, pipeline, WIDE_BYTES, ANSWER_BYTES))
    gpus = 2 * len(STAGES_US)
    if quick:
        models.append(quick_model(QUICK_FRONT, QUICK_SLO_US, gpus))
        gpus += 1
    nodes = [
        NodeGroup(count=2, gpu_class=name, gpus=gpus, nic_gbps=NIC_GBPS)
        for name in ("FAST", "SLOW")
    ]
    return hand_plan(*models, nodes=nodes, plan_id=plan_id)
