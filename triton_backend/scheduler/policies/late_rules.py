"""Rules of late binding in place of a policy's own (Symphony, sections 3.1 to 3.4).

The policies' kernels know every rule (`late`); no policy states a measured target, nor a rank by
deadline or by efficiency. A time-out that is stated is fixed: a batch waits for it, whatever the
rate. Simulator and gateway take the same table of changes, by name:

    {"heads": "head", "rank": "deadline", "target": "measured", "batch_timeout_ms": 5.0,
     "batch_timeout_share": 0.1, "lead_us": 200, "lead_us_per_sample": 10}
"""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from triton_backend.contract.errors import InputError
from triton_backend.contract.units import ms_to_us
from triton_backend.scheduler.policies.late import (
    AS_NEEDED,
    AT_TIMEOUT,
    BY_HEAD,
    BY_WINDOW,
    LEAST_DEADLINE,
    LEAST_LATEST,
    LEAST_WASTE,
    MEASURED,
    PLANNED,
)
from triton_backend.scheduler.topology import LateRules, Lead, QueuePolicy

CHOICES = {
    "heads": {"window": BY_WINDOW, "head": BY_HEAD},
    "rank": {"latest": LEAST_LATEST, "deadline": LEAST_DEADLINE, "efficiency": LEAST_WASTE},
    "target": {"planned": PLANNED, "measured": MEASURED},
}
TIMEOUTS = ("batch_timeout_ms", "batch_timeout_share")
LEADS = ("lead_us", "lead_us_per_sample")
NAMES = (*CHOICES, *TIMEOUTS, *LEADS)


def check_changes(changes: Mapping[str, Any]) -> None:
    """Refuse rules that do not exist.

    Raises:
        InputError: a name is none of `NAMES`, a value none of `CHOICES`, or a time is negative or
            stated twice.
    """
    for name, value in changes.items():
        known = CHOICES.get(name)
        if name not in NAMES:
            raise InputError(name, f"is none of {', '.join(NAMES)}")
        if known is not None and value not in known:
            raise InputError(name, f"{value!r} is none of {', '.join(known)}")
        whole = not isinstance(value, int) and name in LEADS
        if known is None and (whole or not 0 <= value < float("inf")):
            kind = "whole number" if name in LEADS else "number"
            raise InputError(name, f"{value} is not a {kind} that is 0 or more")
    if set(TIMEOUTS) <= set(changes):
        raise InputError("batch_timeout_share", "stands beside batch_timeout_ms; one is allowed")


def check_bound_late(changes: Mapping[str, Any], policies: Iterable[QueuePolicy]) -> None:
    """Rules are given only where they change something.

    Raises:
        InputError: one is given, and no model is bound late.
    """
    if changes and all(policy.rules is None for policy in policies):
        reason = "is of late binding, and no model of the plan is bound late"
        raise InputError(next(iter(changes)), reason)


def changed(changes: Mapping[str, Any], rules: LateRules) -> LateRules:
    """The rules of a policy with the changes in their place."""
    stated = {name: known[changes[name]] for name, known in CHOICES.items() if name in changes}
    rules = rules._replace(**stated)
    if rules.opens == AS_NEEDED and not changes.keys().isdisjoint(TIMEOUTS):
        rules = rules._replace(opens=AT_TIMEOUT)
    if "batch_timeout_ms" in changes:
        timeout_us = ms_to_us(changes["batch_timeout_ms"])
        rules = rules._replace(timeout_us=timeout_us, timeout_share=0.0)
    if "batch_timeout_share" in changes:
        rules = rules._replace(timeout_us=0, timeout_share=changes["batch_timeout_share"])
    return rules


def of_late_binding(changes: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a scheduler that runs by these changes."""
    return {"adjust": partial(changed, changes), "lead": lead_of(changes)}


def lead_of(changes: Mapping[str, Any]) -> Lead:
    """How long before its start a batch of late binding is sent."""
    return Lead(*(changes.get(name, 0) for name in LEADS))
