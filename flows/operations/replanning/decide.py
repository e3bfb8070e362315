"""The decision to roll out: reasons for and against, in words an operator can act on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flows.operations.replanning.options import Thresholds


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanWorth:
    """A plan's value on given arrivals: simulated attainment per model, and its GPUs."""

    plan_id: str
    attainment: Mapping[str, float]
    served_rps: float
    gpus: int

    @property
    def lowest_attainment(self) -> float:
        """The worst model's."""
        return min(self.attainment.values(), default=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """Roll out or keep, and why."""

    roll_out: bool
    reason: str


def decide(old: PlanWorth | None, new: PlanWorth, thresholds: Thresholds) -> Recommendation:
    """Compare two plans on the same arrivals.

    A plan that would break the target is never rolled out over one that keeps it.
    """
    if old is None:
        return Recommendation(roll_out=True, reason="no plan is in force")
    if old.plan_id == new.plan_id:
        return Recommendation(roll_out=False, reason="the new plan is the plan in force")
    target = thresholds.attainment_target
    if new.lowest_attainment < target <= old.lowest_attainment:
        return Recommendation(
            roll_out=False,
            reason=f"the new plan would attain {new.lowest_attainment:.2%}, under the target of"
            f" {target:.2%} that the old plan keeps ({old.lowest_attainment:.2%})",
        )
    return _weigh(old, new, thresholds)


def _weigh(old: PlanWorth, new: PlanWorth, thresholds: Thresholds) -> Recommendation:
    if old.served_rps > 0:
        goodput = new.served_rps / old.served_rps - 1
    else:
        goodput = float("inf") if new.served_rps > 0 else 0.0
    saved = 1 - new.gpus / old.gpus if old.gpus else 0.0
    if goodput >= thresholds.goodput_gain:
        rates = f"{old.served_rps:.1f} to {new.served_rps:.1f} rps"
        return Recommendation(roll_out=True, reason=f"serves {goodput:+.1%} more in time ({rates})")
    if saved >= thresholds.gpu_gain and goodput > -thresholds.goodput_gain:
        return Recommendation(
            roll_out=True, reason=f"needs {saved:.1%} fewer GPUs ({old.gpus} to {new.gpus})"
        )
    return Recommendation(
        roll_out=False,
        reason=f"gains {goodput:+.1%} goodput and {saved:+.1%} GPUs, under the thresholds of"
        f" {thresholds.goodput_gain:.1%} and {thresholds.gpu_gain:.1%}",
    )


def left_to_loop(recommendation: Recommendation, loop: str) -> Recommendation:
    """Keep the plan in force where a process brings plans by the load, which would undo this one.

    Args:
        recommendation: of the plan that was made.
        loop: the process, in words.
    """
    if not recommendation.roll_out:
        return recommendation
    why = "a loop that brings plans by the load would undo it"
    reason = f"it {recommendation.reason}, but {why}: {loop}"
    return Recommendation(roll_out=False, reason=reason)


def share_shift(planned_rps: Sequence[float], measured_rps: Sequence[float]) -> float:
    """How far the models' shares of all requests moved from the planned ones, 0 to 1.

    Half the sum of absolute differences (total variation distance): the part of the requests that
    now belongs to another model than planned.
    """
    planned, measured = sum(planned_rps), sum(measured_rps)
    if planned <= 0 or measured <= 0:
        return 0.0
    pairs = zip(planned_rps, measured_rps, strict=True)
    return sum(abs(p / planned - m / measured) for p, m in pairs) / 2
