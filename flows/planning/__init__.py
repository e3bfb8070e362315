"""Plans: which GPUs serve which blocks of which model, with proof of how good that is."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flows.planning.api import make_plan
    from flows.planning.registry import PlanOptions

__all__ = ["PlanOptions", "make_plan"]


def __getattr__(name: str) -> Any:
    """Import solvers, planners and what they need where they are asked for.

    Declared options load quickly.
    """
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "flows.planning.api" if name == "make_plan" else "flows.planning.registry"
    return getattr(import_module(module), name)
