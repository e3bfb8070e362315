"""Plans: which GPUs serve which blocks of which model, with proof of how good that is."""

from flows.planning.api import make_plan
from flows.planning.registry import PlanOptions

__all__ = ["PlanOptions", "make_plan"]
