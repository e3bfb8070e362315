"""Plans: which GPUs serve which blocks of which model, with proof of how good that is."""

from flows.planning.options import PlanOptions
from flows.planning.planner import make_plan

__all__ = ["PlanOptions", "make_plan"]
