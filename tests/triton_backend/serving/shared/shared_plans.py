"""Plans of tiny ONNX stages that share pools.

Two models on one, and a tail that joins whole requests.
"""

from dataclasses import replace
from pathlib import Path

from tests.fakes.plans import HandModel, hand_model, hand_pipeline
from tests.triton_backend.serving.artifacts import write_stage
from tests.triton_backend.serving.small_plans import BATCH, plan, stage, tensor
from triton_backend.contract.entries import Entry
from triton_backend.contract.plan import Plan


def whole(root: Path, name: str, operator: str, number: float, policy: str) -> HandModel:
    """A model of one stage on the two vGPUs of node FAST, which adds or multiplies a number."""
    artifact = write_stage(root, name, operator, number, ("x", "y"))
    one = stage((0, 1), "FAST", 0, vgpus=2, artifact=artifact)
    promised = hand_pipeline(one, batch=BATCH, rate_rps=100.0)
    x, y = (tensor("x", 3),), (tensor("y", 3),)
    return hand_model(name, promised, slo_us=400_000, inputs=x, outputs=y, policy=policy)


def apart(root: Path, policy: str) -> Plan:
    """`doubled` (x 2) and `raised` (+ 5), each on a pool of two vGPUs of its own."""
    return plan(
        whole(root, "doubled", "Mul", 2.0, policy),
        whole(root, "raised", "Add", 5.0, policy),
    )


def sharing(root: Path, policy: str) -> Plan:
    """The same two on one pool."""
    return on_one_pool(apart(root, policy))


def on_one_pool(apart: Plan) -> Plan:
    """Both models of `apart` on the pool of the first."""
    first, second = apart.models
    (pipeline,) = second.pipelines
    (only,) = pipeline.stages
    moved = replace(pipeline, stages=(replace(only, pool=apart.pools[0].name),))
    shared = replace(
        apart, pools=apart.pools[:1], models=(first, replace(second, pipelines=(moved,)))
    )
    return replace(shared, gpus_used=shared.gpus())


def with_tail(root: Path, *, boards: bool = False, vgpus: int = 1) -> HandModel:
    """y = 2 x + 5 in two stages; requests may bring 2 x and enter at the second, which they share.

    Where it boards, batches of half its size sit in it together.
    """
    first = write_stage(root, "first", "Mul", 2.0, ("x", "middle"))
    second = write_stage(root, "second", "Add", 5.0, ("middle", "y"))
    middle = (tensor("middle", 3),)
    head = stage((0, 1), "FAST", 0, artifact=first, boundary=middle)
    tail = stage((1, 2), "SLOW", 1, vgpus=vgpus, artifact=second, boards=boards, batch=BATCH)
    batch = BATCH // 2 if boards else BATCH
    entries = (
        Entry(name="whole", block=0, budget_us=400_000, rate_rps=50.0),
        Entry(name="tail", block=1, budget_us=200_000, rate_rps=50.0),
    )
    return hand_model(
        "cut",
        hand_pipeline(head, tail, batch=batch, rate_rps=50.0, entry="whole"),
        hand_pipeline(tail, batch=batch, rate_rps=50.0, entry="tail"),
        slo_us=400_000,
        entries=entries,
        inputs=(tensor("x", 3),),
        outputs=(tensor("y", 3),),
    )
