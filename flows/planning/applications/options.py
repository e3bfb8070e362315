"""Options of planners that take applications."""

from flows.planning.registry import Inputs, Option, PlanOptions
from triton_backend.contract.cluster import Cluster
from triton_backend.contract.errors import InputError

AUTO = "auto"
ACCOUNTINGS = ("fixed", "tc-tail", "tc-even", "tc-padded")
OPTIONS = (
    Option(
        name="gathering",
        default=AUTO,
        choices=(AUTO, *ACCOUNTINGS),
        help="How the time to gather a batch is counted; auto: fixed, for applications at "
        "least cost on equal parts tc-padded (billing gpu) or tc-tail (occupancy).",
    ),
    Option(
        name="dummies",
        default=True,
        help="Let rows that are no client's be planned where a fuller batch is cheaper.",
    ),
    Option(
        name="billing",
        default=AUTO,
        choices=(AUTO, "gpu", "paid", "share", "occupancy"),
        help="Pay whole GPUs (gpu, or paid: the plan's price_paid), the share of each that is "
        "held, or the part in use; auto: share where a model lists entries, else gpu.",
    ),
)


def plain(options: PlanOptions) -> bool:
    """True if a workload of models alone is planned as ever: gathering by size, whole GPUs paid."""
    return options.own["gathering"] in (AUTO, "fixed") and billing_of(options) == "gpu"


def in_percents(cluster: Cluster) -> bool:
    """True if GPUs of some class are cut into parts of unequal size."""
    return any(gpu_class.vgpu_percents for gpu_class in cluster.gpu_classes)


def gathering_of(inputs: Inputs) -> str:
    """The accounting that is meant."""
    asked = str(inputs.options.own["gathering"])
    if asked != AUTO:
        return asked
    if inputs.options.objective != "cost" or in_percents(inputs.cluster):
        return "fixed"
    return "tc-padded" if billing_of(inputs.options) == "gpu" else "tc-tail"


def billing_of(options: PlanOptions) -> str:
    """The paid part of a GPU.

    Raises:
        InputError: shares are asked for where no model lists entries.
    """
    asked = str(options.own["billing"])
    if asked == "share":
        raise InputError("option billing", "share is for models that list entries")
    return "gpu" if asked in (AUTO, "paid") else asked
