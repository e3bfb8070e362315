"""The contract between the two halves: pipelines of every model, GPUs of every pool, proof.

A plan is self-contained: simulator, verifier and gateway need nothing else. It is checked for
form when built; whether its numbers follow from the profiles is `flows/planning/verify`'s work.
"""

from triton_backend.contract.plan.formats import upgrade_format_1
from triton_backend.contract.plan.memory import (
    BYTES_PER_GIB,
    TOLERANCE,
    load_time_us,
    pinned_memory,
    worker_memory_gib,
)
from triton_backend.contract.plan.modules import (
    module_rate_gbps,
    modules_spread,
    receiving_nodes,
    sending_node,
    with_module_transfers,
)
from triton_backend.contract.plan.plan import Attained, Objective, Plan, StagePlace, StageRow
from triton_backend.contract.plan.pools import (
    PlacementRun,
    Pool,
    PoolInterference,
    SeatInterference,
    Slot,
    VGpu,
    next_pool_name,
    slot_table,
)
from triton_backend.contract.plan.stages import (
    DEFAULT_POLICY,
    LONGEST_PIPELINE,
    ModelPlan,
    Pipeline,
    Stage,
    StageMemory,
)

__all__ = [
    "BYTES_PER_GIB",
    "DEFAULT_POLICY",
    "LONGEST_PIPELINE",
    "TOLERANCE",
    "Attained",
    "ModelPlan",
    "Objective",
    "Pipeline",
    "PlacementRun",
    "Plan",
    "Pool",
    "PoolInterference",
    "SeatInterference",
    "Slot",
    "Stage",
    "StageMemory",
    "StagePlace",
    "StageRow",
    "VGpu",
    "load_time_us",
    "module_rate_gbps",
    "modules_spread",
    "next_pool_name",
    "pinned_memory",
    "receiving_nodes",
    "sending_node",
    "slot_table",
    "upgrade_format_1",
    "with_module_transfers",
    "worker_memory_gib",
]
