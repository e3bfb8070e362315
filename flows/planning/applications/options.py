"""Options of planners that take applications."""

from flows.planning.registry import Option, PlanOptions

AUTO = "auto"
ACCOUNTINGS = ("fixed", "tc-tail", "tc-even", "tc-padded")
OPTIONS = (
    Option(
        name="gathering",
        kind=str,
        default=AUTO,
        choices=(AUTO, *ACCOUNTINGS),
        help="How the time to gather a batch is counted; auto: fixed, for applications at least cost"
        " tc-padded (billing gpu) or tc-tail (occupancy).",
    ),
    Option(
        name="dummies",
        kind=bool,
        default=True,
        help="Let rows that are no client's be planned where a fuller batch is cheaper.",
    ),
    Option(
        name="billing",
        kind=str,
        default="gpu",
        choices=("gpu", "occupancy"),
        help="Pay whole GPUs, or the part of each that is in use.",
    ),
)


def plain(options: PlanOptions) -> bool:
    """Whether a workload of models alone is planned as ever: gathering by size, whole GPUs paid."""
    return options.own["gathering"] in (AUTO, "fixed") and options.own["billing"] == "gpu"


def gathering_of(options: PlanOptions) -> str:
    """The accounting that is meant."""
    asked = str(options.own["gathering"])
    if asked != AUTO:
        return asked
    if options.objective != "cost":
        return "fixed"
    return "tc-padded" if options.own["billing"] == "gpu" else "tc-tail"
