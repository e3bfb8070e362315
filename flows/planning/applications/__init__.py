"""Planners of applications: Piccolo and those it is compared with (the exact one is `pool`)."""

from flows.planning.applications.planners import PLANNERS

__all__ = ["PLANNERS"]
