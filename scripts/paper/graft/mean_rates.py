"""Clients that cut where the mean rate of their link says, for good.

`static-plus` for them (Graft, section 5). `static-plus` is what the shares of steered plans are set
beside.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from flows.operations.replanning.planner import options_of
from flows.operations.steering.policy import Demand
from flows.planning import make_plan
from triton_backend.client.decide import Cut, Link, decide
from triton_backend.contract.entries import Entry
from triton_backend.contract.plan import Plan
from triton_backend.contract.profiles import ModelProfile
from triton_backend.contract.units import US_PER_S
from triton_backend.simulator.clients.client import ClientSpec


def at_mean_rates(clients: Sequence[ClientSpec], plan: Plan, duration_s: float) -> list[Demand]:
    """Where every client would cut for good, at the mean rate of its link."""
    found: list[Demand] = []
    for spec in clients:
        tails = plan.least_tails_us(spec.model)
        mbit_per_s = spec.trace.bits(duration_s * US_PER_S) / (duration_s * US_PER_S)
        cuts = [
            Cut(
                block=block,
                upload_bytes=spec.upload_bytes[block],
                head_us=spec.heads_us[block],
                tail_us=tail_us,
                least_tail_us=tail_us,
            )
            for block, tail_us in tails.items()
        ]
        blocks = len(spec.upload_bytes)
        device = Cut(block=blocks, upload_bytes=0, head_us=spec.heads_us[blocks])
        decided = decide(cuts, device, Link(mbit_per_s=mbit_per_s, rtt_us=spec.rtt_us), spec.slo_us)
        if decided.feasible and decided.block < blocks:
            found.append(Demand(spec.model, decided.block, decided.budget_us, spec.fps))
    return found


def static_plus(
    profiles: Mapping[str, ModelProfile],
    plan: Plan,
    clients: Sequence[ClientSpec],
    duration_s: float,
) -> Plan | None:
    """`static-plus` for clients that cut by the mean of their link, at their rates and budgets.

    Raises:
        InfeasibleError: its own rule cannot serve them.
    """
    by_model: dict[str, list[Entry]] = {}
    for number, demand in enumerate(at_mean_rates(clients, plan, duration_s)):
        own = by_model.setdefault(demand.model, [])
        own.append(
            Entry(
                name=f"c{number}",
                block=demand.block,
                budget_us=demand.budget_us,
                rate_rps=demand.rate_rps,
            )
        )
    if not by_model:
        return None
    models = tuple(
        replace(model, entries=tuple(by_model[model.name]))
        for model in plan.workload.models
        if model.name in by_model
    )
    workload = replace(plan.workload, models=models)
    options = options_of(plan)
    own = {
        name: value for name, value in options.own.items() if name in ("max_instances", "billing")
    }
    options = replace(options, planner="static-plus", max_partitions=1, own=own, previous=None)
    return make_plan(profiles, plan.cluster, workload, options)
