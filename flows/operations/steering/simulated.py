"""The closed loop of clients, links and plans in the simulator, with plans that follow."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from flows.clock import Stopwatch
from flows.operations.steering.policy import WATCH_S, Demand, Steering
from triton_backend.contract.errors import InfeasibleError
from triton_backend.contract.plan import Plan
from triton_backend.contract.units import US_PER_S
from triton_backend.simulator.clients.client import ClientSpec
from triton_backend.simulator.clients.closed_loop import ClosedLoop
from triton_backend.simulator.scenario import SimOptions

START_S = 2.0  # simulated: from a plan to its new workers' readiness


@dataclass(frozen=True, slots=True, kw_only=True)
class SteeredRun:
    """A closed loop that ran, with what it cost and how it was steered.

    Attributes:
        loop: the clients' counts.
        steering: None where the plan stayed.
        changes: of plan.
        unsteered: why a change was not made, each once.
    """

    loop: ClosedLoop
    steering: Steering | None
    changes: int = 0
    unsteered: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The object of `simulate --clients --json`, beside policy, seed and duration."""
        client_counts = self.loop.client_counts
        offered = sum(t.offered for t in client_counts)
        feasible, reached = (
            sum(t.feasible for t in client_counts),
            sum(t.reached for t in client_counts),
        )
        return {
            "offered": offered,
            "attainment": sum(t.served for t in client_counts) / offered if offered else 1.0,
            "feasible": feasible,
            "attainment_feasible": sum(t.feasible_served for t in client_counts) / feasible
            if feasible
            else 1.0,
            "possible": (possible := sum(t.possible for t in client_counts)),
            "attainment_possible": sum(t.possible_served for t in client_counts) / possible
            if possible
            else 1.0,
            "tried": sum(t.tried for t in client_counts),
            "tried_served": sum(t.tried_served for t in client_counts),
            "missed": dict(sum((t.missed for t in client_counts), Counter[str]())),
            "reached": reached,
            "attainment_reached": sum(t.reached_served for t in client_counts) / reached
            if reached
            else 1.0,
            "accepted_and_late": self.loop.late_after_accepting(),
            "mean_percent": self.loop.mean_percent(),
            "changes": self.changes,
            "plan_ms": _quantiles([] if self.steering is None else self.steering.plan_s),
            "unsteered": list(self.unsteered),
            "clients": {
                client.spec.name: {
                    "model": client.spec.model,
                    "offered": counts.offered,
                    "feasible": counts.feasible,
                    "feasible_share": counts.feasible / counts.offered if counts.offered else 1.0,
                    "served": counts.served,
                    "attainment": counts.served / counts.offered if counts.offered else 1.0,
                    "feasible_served": counts.feasible_served,
                    "late": counts.late,
                    "not_begun": counts.not_begun,
                    "on_device": counts.device,
                    "refused": counts.refused,
                    "moves": counts.changes,
                    "cuts": {str(cut): count for cut, count in sorted(counts.cuts.items())},
                    "latency_ms": _quantiles([us / US_PER_S for us in counts.total_us], (50, 99)),
                }
                for client, counts in zip(self.loop.clients, client_counts, strict=True)
            },
        }


def _quantiles(seconds: Sequence[float], which: tuple[int, ...] = (50, 99, 100)) -> dict[str, Any]:
    """In ms; None where there is nothing."""
    ordered = sorted(seconds)
    last = len(ordered) - 1
    return {f"p{q}": 1e3 * ordered[round(last * q / 100)] if ordered else None for q in which}


@dataclass(frozen=True, slots=True, kw_only=True)
class SteerTimes:
    """How long a simulated change takes.

    Planning as measured (None) or stated, then new workers' start.
    """

    plan_s: float | None = None
    start_s: float = START_S


def steer_simulated(
    plan: Plan,
    clients: Sequence[ClientSpec],
    options: SimOptions,
    steering: Steering | None,
    times: SteerTimes,
    report: Callable[[str], None],
    *,
    foresight: bool = False,
) -> tuple[ClosedLoop, int, tuple[str, ...]]:
    """Clients against a plan, and plans that follow them.

    The loop, changes, and why some were not made. With `foresight` clients decide by what their
    links will do.

    Raises:
        InputError: clients and plan do not fit.
    """
    loop = ClosedLoop(plan, clients, options, foresight=foresight)
    changes, unsteered = 0, dict[str, None]()
    looks = 0
    while (now_s := looks * WATCH_S) < options.duration_s:
        looks += 1
        now_s = looks * WATCH_S
        loop.advance(round(now_s * US_PER_S))
        if now_s % 10 == 0:
            report(f"at {now_s:g} s, {changes} changes so far")
        if steering is None or loop.changing:
            continue
        watch = Stopwatch()
        demands = [Demand(a.model, a.block, a.budget_us, a.rate_rps) for a in loop.announced()]
        try:
            following = steering.next_plan(demands, now_s)
        except InfeasibleError as error:
            unsteered[str(error)] = None
            continue
        if following is not None:
            planning_s = watch.seconds() if times.plan_s is None else times.plan_s
            loop.change(following, round((now_s + planning_s + times.start_s) * US_PER_S))
            changes += 1
    loop.finish()
    return loop, changes, tuple(unsteered)
