"""`simulate --epoch S [--autoscale]`: epochs one by one, pools or plans following the load.

Pools follow the advice on GPUs. Where parts of a GPU are shared in turns, a pool cannot grow by itself:
plans follow the load instead, as `poolpipe autoscale` does it.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from flows.cli.console import print_json, progress, show, table
from flows.reporting import words
from triton_backend.contract.errors import InputError

if TYPE_CHECKING:
    from flows.cli.simulate.request import SimulationRequest
    from flows.workspace import Workspace
    from triton_backend.contract.plan import Plan
    from triton_backend.simulator.scenario import SimOptions


def _show_plans(
    plan: "Plan", options: "SimOptions", period_s: float, work: "Workspace", *, as_json: bool
) -> None:
    """The same where plans follow; an epoch has `gpus` and `plan_id` of its beginning, and no pools."""
    from flows.operations.replanning.autoscale import follow_simulated, follower_of

    with progress("simulating") as report:
        follower = follower_of(work, plan.cluster, plan.workload, plan, lambda _: None)
        found = follow_simulated(follower, options, period_s, report)
    if as_json:
        print_json(
            {
                "policy": options.policy_of(plan),
                "seed": options.seed,
                "duration_s": options.duration_s,
                "attainment": found.attainment,
                "attainment_by_model": dict(found.attainment_by_model),
                "gpu_hours": found.gpu_hours,
                "changes": found.changes,
                "epochs": [period.to_dict() for period in found.periods],
            }
        )
        return
    rows = [
        (f"{p.start_s:g}", p.plan_id, p.gpus, p.offered, words.percent(p.attainment, 2))
        for p in found.periods
    ]
    show(table(("from s", "plan", "GPUs", "offered", "attainment"), rows, texts=2))
    attained = words.percent(found.attainment, 2)
    show(f"attainment {attained}; {found.changes} changes; {found.gpu_hours:.3g} GPU-hours")


def show_epochs(
    plan: "Plan",
    request: "SimulationRequest",
    how: tuple[float | None, bool],
    unused: Mapping[str, object],
    work: "Workspace",
    *,
    as_json: bool,
) -> None:
    """Simulate and print epochs; `how` is their length (s), and whether pools follow the advice.

    The JSON object has `policy`, `seed`, `duration_s`, `attainment` over all, `gpu_hours` that pools
    held, and `epochs`.

    Raises:
        InputError: there is no epoch to follow, or an option of `unused` was given.
    """
    from triton_backend.contract.shares import WHOLE_GPU
    from triton_backend.simulator.autoscale import epochs_of

    epoch_s, follow = how
    if epoch_s is None:
        raise InputError("--autoscale", "needs --epoch, the seconds between two changes")
    for option, value in unused.items():
        if value is not None:
            raise InputError(option, "does not go with --epoch")
    options = replace(request.options, arrivals=request.load.read())
    if follow and all(model.policy.startswith("turns") for model in plan.models):
        _show_plans(plan, options, epoch_s, work, as_json=as_json)
        return
    with progress("simulating"):
        epochs = list(epochs_of(plan, options, epoch_s, follow=follow))
    offered = sum(epoch.offered for epoch in epochs)
    served = sum(epoch.attainment * epoch.offered for epoch in epochs)
    shares = {pool.name: pool.share / WHOLE_GPU for pool in plan.pools}
    hours = sum(
        pool.vgpus * shares[name] * (epoch.end_s - epoch.start_s) / 3600
        for epoch in epochs
        for name, pool in epoch.pools.items()
    )
    document: dict[str, Any] = {
        "policy": options.policy_of(plan),
        "seed": options.seed,
        "duration_s": options.duration_s,
        "attainment": served / offered if offered else 1.0,
        "gpu_hours": hours,
        "epochs": [epoch.to_dict() for epoch in epochs],
    }
    if as_json:
        print_json(document)
        return
    rows = [
        (
            f"{epoch.start_s:g}",
            name,
            pool.vgpus,
            words.percent(pool.idle),
            words.percent(pool.bad, 2),
            f"{pool.advice:+d}",
            f"{pool.change:+d}",
        )
        for epoch in epochs
        for name, pool in epoch.pools.items()
    ]
    show(table(("from s", "pool", "vGPUs", "idle", "bad", "advice", "damped"), rows, texts=2))
    show(f"attainment {words.percent(document['attainment'], 2)}; {hours:.3g} GPU-hours")
