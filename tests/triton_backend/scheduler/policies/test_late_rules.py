"""Rules of late binding in place of a policy's own: which exist, and what each changes."""

from typing import Any

import pytest

from triton_backend.contract.errors import InputError
from triton_backend.scheduler.policies.late import (
    AS_NEEDED,
    AT_FRONTRUN,
    AT_TIMEOUT,
    BY_HEAD,
    BY_WINDOW,
    LEAST_LATEST,
    LEAST_WASTE,
    MEASURED,
    POLICIES,
)
from triton_backend.scheduler.policies.late_rules import changed, check_changes, lead_of
from triton_backend.scheduler.topology import LateRules, Lead
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.simulator.scenario import SimOptions

RULES = LateRules(opens=AT_TIMEOUT, heads=BY_WINDOW, rank=LEAST_LATEST, timeout_share=0.25)


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ({}, {}),
        ({"heads": "head"}, {"heads": BY_HEAD}),
        (
            {"rank": "efficiency", "target": "measured"},
            {"rank": LEAST_WASTE, "target": MEASURED},
        ),
        ({"batch_timeout_ms": 1.5}, {"timeout_us": 1500, "timeout_share": 0.0}),
        ({"batch_timeout_share": 0.5}, {"timeout_share": 0.5}),
    ],
)
def test_what_is_stated_takes_the_place_of_the_policys_own(
    stated: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert SimOptions(**stated).late_binding == ServeOptions(late_binding=stated).late_binding
    assert changed(stated, RULES) == RULES._replace(**expected)


def test_a_time_out_that_is_stated_is_fixed() -> None:
    own = POLICIES["timeout"]
    assert changed({"heads": "head"}, own).opens == AS_NEEDED
    for stated in ({"batch_timeout_ms": 1.5}, {"batch_timeout_share": 0.5}):
        assert changed(stated, own).opens == AT_TIMEOUT
        assert changed(stated, POLICIES["deferred"]).opens == AT_FRONTRUN


@pytest.mark.parametrize(
    ("stated", "reason"),
    [
        ({"heads": "tail"}, "heads: 'tail' is none of window, head"),
        ({"batch_timeout_ms": -1.0}, "batch_timeout_ms: -1.0 is not a number that is 0 or more"),
        (
            {"batch_timeout_ms": 1.0, "batch_timeout_share": 0.1},
            "batch_timeout_share: stands beside batch_timeout_ms",
        ),
    ],
)
def test_a_rule_that_does_not_exist_is_refused(stated: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        SimOptions(**stated)
    with pytest.raises(InputError, match=reason):
        ServeOptions(late_binding=stated)


def test_what_is_no_rule_is_refused() -> None:
    with pytest.raises(InputError, match=r"height: is none of heads, rank"):
        check_changes({"height": 3})
    with pytest.raises(InputError, match=r"lead_us: 1.5 is not a whole number"):
        check_changes({"lead_us": 1.5})


def test_a_lead_is_of_a_batch_and_of_its_samples() -> None:
    assert lead_of({"lead_us": 200, "lead_us_per_sample": 10}) == Lead(200, 10)
    assert lead_of({"heads": "head"}) == Lead(0, 0)
    assert SimOptions().late_binding == {}
