"""The pool planner: pipelines over pools of vGPUs of several classes, with a proven bound (PPipe).

Workloads with applications, and models whose gathering or billing is counted as applications' are,
go to `applications`; models that list entries are planned exactly by `flows.planning.entries`.
"""

from flows.planning.applications.options import OPTIONS, plain
from flows.planning.entries import SHARED_OPTIONS
from flows.planning.entries.plan import exactly
from flows.planning.entries.plan import plan as plan_entries
from flows.planning.pool.applications.exact import plan_exactly
from flows.planning.pool.plan import plan as plan_models
from flows.planning.registry import Inputs, Option, Outcome, Planner


def plan(inputs: Inputs) -> Outcome:
    """Plan models, entries or applications.

    Raises:
        InputError: the inputs or the options do not fit together.
        InfeasibleError: an SLO or a rate is out of reach.
    """
    if inputs.workload.has_entries:
        return plan_entries(exactly, inputs)
    if inputs.workload.applications or not plain(inputs.options):
        return plan_exactly(inputs)
    return plan_models(inputs)


PLANNERS = (
    Planner(
        name="pool",
        plan=plan,
        space="pool",
        objectives=("throughput", "cost", "power", "gpus", "share"),
        for_entries=("share",),
        demands=("models", "entries", "applications"),
        options=(
            Option(
                name="overflow",
                default=False,
                help="Let free GPUs run whole models beside the plan, within part of the margin.",
            ),
            *OPTIONS,
            *SHARED_OPTIONS,
        ),
        pins=True,
        rates_from=("no-partitioning", "pool"),
    ),
)
