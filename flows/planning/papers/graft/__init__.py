"""Planners of the Graft paper's comparison: GSLICE's rules, all groupings of few fragments."""

from functools import partial

from flows.planning.entries import planner_by_rule
from flows.planning.papers.graft.rules import every_grouping, gslice
from flows.planning.registry import Planner

# `static` and `static-plus` are the same rules for entries at a client's mean bandwidth.
_MERGED = {"gslice": False, "gslice-plus": True, "static": False, "static-plus": True}

PLANNERS: tuple[Planner, ...] = (
    *(
        planner_by_rule(name, partial(gslice, merge=merge), most_stages=1)
        for name, merge in _MERGED.items()
    ),
    planner_by_rule("graft-optimal", every_grouping),
)
