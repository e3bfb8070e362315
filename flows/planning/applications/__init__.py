"""Applications.

What their planners share, and Piccolo's heuristic (the exact planner is `pool`).
"""

from flows.planning.applications.planners import PLANNERS

__all__ = ["PLANNERS"]
