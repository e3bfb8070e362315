"""Planners of the Piccolo paper's comparison: `nexus-dag`, `scrooge`, `inferline`, `clipper`."""

from flows.planning.applications.planners import planner_by_rules
from flows.planning.papers.piccolo.rules import RULES

PLANNERS = tuple(planner_by_rules(name, rules) for name, rules in RULES.items())
