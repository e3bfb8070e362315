"""Plans: which GPUs serve which blocks of which model, with proof of how good that is."""

from typing import TYPE_CHECKING, Any

from flows.planning.registry import PlanOptions

if TYPE_CHECKING:
    from flows.planning.api import make_plan

__all__ = ["PlanOptions", "make_plan"]


def __getattr__(name: str) -> Any:
    """Import `make_plan`, with solvers and all planners, where it is asked for: options alone are stated quickly."""
    if name != "make_plan":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from flows.planning.api import make_plan  # noqa: PLC0415  # as said above

    return make_plan
