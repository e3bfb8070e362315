"""Common parts of runs without reservations: refusals and results."""

from collections.abc import Callable, Sequence

import numpy as np

from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.contract.units import s_to_us
from triton_backend.scheduler.compiled import Integers, Records
from triton_backend.simulator.counted import class_seconds, model_results, pool_results, utilisation
from triton_backend.simulator.results import DecisionCost, SimResult, no_tasks
from triton_backend.simulator.scenario import SimOptions

Clock = Callable[[], int] | None


def refuse(
    plan: Plan, options: SimOptions, takes: Sequence[str] = (), *, links: bool = True
) -> None:
    """Only what needs no reservations is simulated.

    Of late binding's rules a policy takes the named ones; inputs and answers move only over links.

    Raises:
        InputError: an option that it does not take, or a plan of applications or entries.
    """
    name = options.policy
    for rule in options.late_binding:
        if rule not in takes:
            raise InputError(rule, f"is of late binding, {name!r} does not take it")
    if options.count_io and not links:
        raise InputError("count_io", f"{name!r} knows no links")
    if options.failures or options.changes or options.admission:
        reason = f"{name!r} knows no failures, no changes of plan and no admission"
        raise InputError("policy", reason)
    if plan.applications:
        raise InputError("policy", f"{name!r} knows no applications")
    if any(model.entries for model in plan.models):
        raise InputError("policy", f"{name!r} knows no entries")


def result_of(
    plan: Plan,
    options: SimOptions,
    requests: Records,
    uses: Records,
    busy_us: Integers,
    *,
    now_us: int,
    steps: int,
    wall_seconds: float | None,
) -> SimResult:
    """The result of a run.

    Args:
        plan: what served.
        options: what was offered and how.
        requests: `world.REQUEST_RECORD` rows by arrival, their outcomes filled in.
        uses: `world.USE_RECORD` rows, by end.
        busy_us: [resource] time in use, vGPUs first.
        now_us: the last instant.
        steps: events.
        wall_seconds: of the loop; None if not measured.
    """
    span_us = max(s_to_us(options.duration_s), now_us)
    links = busy_us[len(plan.vgpus()) :]
    queues = np.arange(len(plan.models))
    return SimResult(
        plan=plan,
        policy=options.policy_of(plan),
        seed=options.seed,
        duration_s=options.duration_s,
        requests=requests,
        uses=uses,
        models=model_results(plan, requests, no_tasks()),
        entries={},
        pools=pool_results(plan, requests, queues, busy_us, span_us),
        utilisation=utilisation(plan.cluster, class_seconds(plan, busy_us), span_us),
        link_utilisation=tuple((links[links > 0] / span_us).tolist()),
        decisions=DecisionCost(
            count=steps,
            mean_us=None,
            p99_us=None,
            dispatch_p99_us=None,
            probes_per_dispatch=None,
        ),
        steps=steps,
        wall_seconds=wall_seconds,
    )
