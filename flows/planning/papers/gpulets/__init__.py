"""Planners that the gpulets paper compares with, and its own greedy rule."""

from functools import partial

from flows.planning.gpulets import planner_of_turns
from flows.planning.papers.gpulets.greedy import RULES, plan

PLANNERS = tuple(planner_of_turns(name, partial(plan, rule)) for name, rule in RULES.items())
