"""`simulate --epoch S [--autoscale]`: epochs one by one, pools or plans following the load.

Pools follow the advice on GPUs. Where parts of a GPU are shared in turns, and where pools serve
applications or entries together, a pool cannot grow by itself: plans follow the load instead, as
`poolpipe autoscale` does it.
"""

from typing import TYPE_CHECKING, Any

from flows.cli.console import print_json, progress, show, table
from flows.reporting import words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flows.cli.simulate.options import EpochRun
    from flows.cli.simulate.request import SimulationRequest
    from flows.workspace import Workspace
    from triton_backend.contract.plan import Plan
    from triton_backend.simulator.autoscale import EpochResult
    from triton_backend.simulator.scenario import SimOptions


def _show_plans(
    plan: "Plan", options: "SimOptions", period_s: float, work: "Workspace", *, as_json: bool
) -> None:
    """The same where plans follow.

    An epoch has `gpus` and `plan_id` of its beginning, and no pools.
    """
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
    asked: "EpochRun",
    request: "SimulationRequest",
    work: "Workspace",
    *,
    as_json: bool,
) -> None:
    """Simulate and print epochs, after each of which pools or plans may follow the load.

    The JSON object has `policy`, `seed`, `duration_s`, `attainment` over all, `gpu_hours` that
    pools held, and `epochs`.

    Raises:
        InputError: an option does not fit the plan, or a file cannot be used.
    """
    from triton_backend.simulator.autoscale import epochs_of, pools_depend

    options, epoch_s = request.complete_options(), asked.epoch_s
    turns = all(model.policy.startswith("turns") for model in plan.models)
    if asked.autoscale and (turns or pools_depend(plan)):
        _show_plans(plan, options, epoch_s, work, as_json=as_json)
        return
    with progress("simulating"):
        epochs = list(epochs_of(plan, options, epoch_s, follow=asked.autoscale))
    document = _document(plan, options, epochs)
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
    attained, hours = document["attainment"], document["gpu_hours"]
    show(f"attainment {words.percent(attained, 2)}; {hours:.3g} GPU-hours")


def _document(
    plan: "Plan", options: "SimOptions", epochs: "Sequence[EpochResult]"
) -> dict[str, Any]:
    from triton_backend.contract.shares import WHOLE_GPU

    offered = sum(epoch.offered for epoch in epochs)
    served = sum(epoch.attainment * epoch.offered for epoch in epochs)
    shares = {pool.name: pool.share / WHOLE_GPU for pool in plan.pools}
    return {
        "policy": options.policy_of(plan),
        "seed": options.seed,
        "duration_s": options.duration_s,
        "attainment": served / offered if offered else 1.0,
        "gpu_hours": sum(
            pool.vgpus * shares[name] * (epoch.end_s - epoch.start_s) / 3600
            for epoch in epochs
            for name, pool in epoch.pools.items()
        ),
        "epochs": [epoch.to_dict() for epoch in epochs],
    }
