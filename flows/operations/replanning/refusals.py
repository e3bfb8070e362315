"""How soon a loop asks again for a plan that was refused.

A rollout is refused for reasons that last: an artifact that is missing, a cut that the served
system did not open, another change under way. So a refused plan waits, twice as long every time.
Another plan is asked for at once. Where that is refused for the same reason, both were for another
rate of the same demand, or the reason lies in no plan: all plans wait.
"""

from dataclasses import dataclass, field

from triton_backend.contract.plan import Plan

FIRST_WAIT_S, MOST_WAIT_S = 1.0, 60.0


@dataclass(slots=True)
class Refusals:
    """Plans that were refused for one reason, one after the other.

    Attributes:
        reason: without the plan's name; empty where the last rollout was not refused.
        plan_ids: of the refused plans.
        wait_s: how long they wait, from the look after the refusal on.
        again_s: until when; None before that look.
    """

    reason: str = ""
    plan_ids: set[str] = field(default_factory=set[str])
    wait_s: float = 0.0
    again_s: float | None = None

    def holds(self, plan: Plan | None, now_s: float) -> bool:
        """True if a plan, or whichever would be made (None), is not to be asked for now."""
        if not self.reason:
            return False
        if self.again_s is None:
            self.again_s = now_s + self.wait_s
        known = plan is not None and plan.plan_id in self.plan_ids
        return now_s < self.again_s and (known or len(self.plan_ids) > 1)

    def refused(self, plan: Plan, reason: str) -> float:
        """Note a refusal; seconds after which the plan is asked for again."""
        reason = reason.replace(plan.plan_id, "")
        if reason != self.reason:
            self.reason, self.plan_ids, self.wait_s = reason, set(), 0.0
        self.plan_ids.add(plan.plan_id)
        self.wait_s = min(max(2 * self.wait_s, FIRST_WAIT_S), MOST_WAIT_S)
        self.again_s = None
        return self.wait_s
