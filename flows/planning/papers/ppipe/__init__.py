"""The planner of the PPipe paper's comparison: `dart-r`."""

from flows.planning.papers.ppipe.dart_r import dart_r
from flows.planning.registry import Planner

PLANNERS = (Planner(name="dart-r", plan=dart_r, space="its own rule"),)
