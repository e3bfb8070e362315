"""Entries: requests that come in at any block of a model, and share stages with others (Graft)."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from flows.planning.entries.plan import Rule, graft, plan
from flows.planning.entries.tables import ANY_PHASE, EVEN
from flows.planning.promises.headroom import HEADROOM, NO_HEADROOM
from flows.planning.registry import Option, Planner

MARGIN = 0.5  # half a budget pays for waiting (Graft, section 4.3)
OBJECTIVES = ("share", "cost", "power", "gpus", "throughput")
SHARED_OPTIONS = (
    Option(
        name="max_instances",
        default=0,
        help="Most vGPUs of a stage of entries; 0: any number.",
        least=0,
    ),
    HEADROOM,
    Option(
        name="phases",
        default=ANY_PHASE,
        choices=(ANY_PHASE, EVEN),
        help="Pools serve clients that send at equal gaps in any phase, or (even) by their rates "
        "alone: for clients in step.",
    ),
    Option(
        name="shadow_rps",
        default=0.0,
        help="Rate that a shadow pool of every model with entries carries, whatever the cut; "
        "0: none.",
        least=0.0,
        most=1e7,
    ),
    Option(
        name="shadow_ms",
        default=0.0,
        help="Time in which a shadow pool runs a whole model; 0: half of the SLO less margin.",
        least=0.0,
        most=1e6,
    ),
)
"""Those that planner `pool` takes, too."""
OPTIONS = (
    *SHARED_OPTIONS,
    Option(
        name="merge_threshold",
        default=0.2,
        help="Uniform entries are merged while the spare rate is above this part of what is asked.",
    ),
    Option(name="group_size", default=5, help="Fragments of a group.", least=1),
    Option(
        name="factor_weights",
        default="1,1,1",
        help="Weights of start, budget and rate in the distance of fragments.",
    ),
    Option(
        name="edges",
        default="similarity",
        choices=("similarity", "distance"),
        help="Edges of the graph that groups are cut from; distance is the paper's formula as "
        "printed.",
    ),
    Option(
        name="budget_rule",
        default="own",
        choices=("own", "group"),
        help="Every entry keeps its own budget, or all of a group the least.",
    ),
    Option(name="seed", default=0, help="Of the fragments that groups begin with.", least=0),
    Option(
        name="billing",
        default="share",
        choices=("gpu", "paid", "share"),
        help="Pay whole GPUs (gpu, or paid: the plan's price_paid), or the share of each that is "
        "held.",
        stated=True,
    ),
)


AS_LISTED: dict[str, Any] = {"phases": EVEN, "headroom": NO_HEADROOM}
"""Pools carry the rates as they are listed and no more, as the papers' systems plan."""
_OF_PAPERS: dict[str, Any] = {"phases": EVEN}


def planner_by_rule(
    name: str,
    rule: Rule,
    most_stages: int | None = None,
    *,
    defaults: Mapping[str, Any] = _OF_PAPERS,
) -> Planner:
    """A planner of entries that follows a rule, with the options of all such.

    Args:
        name: as on the command line.
        rule: how the entries of one model are served.
        most_stages: of a pipeline; None: any number.
        defaults: of options, where they differ from those of planners of the product.
    """
    return Planner(
        name=name,
        plan=partial(plan, rule),
        space="its own rule",
        objectives=OBJECTIVES,
        demands=("models", "entries"),
        options=tuple(replace(o, default=defaults.get(o.name, o.default)) for o in OPTIONS),
        most_stages=most_stages,
        rates_from=(),
        slo_margin=MARGIN,
    )


PLANNERS = (planner_by_rule("graft", graft, defaults={}),)
