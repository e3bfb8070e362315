"""Rules of late binding in place of a policy's own, for ablations (Symphony, sections 3.1 to 3.4).

The policies' kernels know every rule (`scheduler/policies/late.py`); no policy states a measured
target, nor a rank by deadline or by efficiency. They are tried here, as are other heads and
time-outs.
"""

from triton_backend.contract.errors import InputError
from triton_backend.contract.units import ms_to_us
from triton_backend.scheduler.policies.late import (
    BY_HEAD,
    BY_WINDOW,
    LEAST_DEADLINE,
    LEAST_LATEST,
    LEAST_WASTE,
    MEASURED,
    PLANNED,
)
from triton_backend.scheduler.topology import LateRules
from triton_backend.simulator.scenario import SimOptions

CHOICES = {
    "heads": {"window": BY_WINDOW, "head": BY_HEAD},
    "rank": {"latest": LEAST_LATEST, "deadline": LEAST_DEADLINE, "efficiency": LEAST_WASTE},
    "target": {"planned": PLANNED, "measured": MEASURED},
}
TIMEOUTS = ("batch_timeout_ms", "batch_timeout_share")


def check(options: SimOptions) -> None:
    """Refuse rules that do not exist.

    Raises:
        InputError: a name is none of `CHOICES`, or a time-out is negative or stated twice.
    """
    for name, known in CHOICES.items():
        value = getattr(options, name)
        if value is not None and value not in known:
            raise InputError(name, f"{value!r} is none of {', '.join(known)}")
    for name in TIMEOUTS:
        value = getattr(options, name)
        if value is not None and not 0 <= value < float("inf"):
            raise InputError(name, f"{value} is not a number that is 0 or more")
    if options.batch_timeout_ms is not None and options.batch_timeout_share is not None:
        raise InputError("batch_timeout_share", "stands beside batch_timeout_ms; one is allowed")


def changed(rules: LateRules, options: SimOptions) -> LateRules:
    """The rules of a policy with those that a simulation states in their place."""
    stated = {
        name: known[value]
        for name, known in CHOICES.items()
        if (value := getattr(options, name)) is not None
    }
    rules = rules._replace(**stated)
    if options.batch_timeout_ms is not None:
        rules = rules._replace(timeout_us=ms_to_us(options.batch_timeout_ms), timeout_share=0.0)
    if options.batch_timeout_share is not None:
        rules = rules._replace(timeout_us=0, timeout_share=options.batch_timeout_share)
    return rules
