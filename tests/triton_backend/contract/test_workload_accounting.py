"""Accounting of waits, as plans state it or leave it out."""

from dataclasses import replace
from typing import Any

import pytest

from tests.fakes.plans import two_stages, two_tails
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.contract.workload import GATHERING, MARGIN, TURN, Accounting, derived_accounting


@pytest.mark.parametrize(
    ("options", "meant"),
    [
        ({}, Accounting(GATHERING)),
        ({"gathering": "fixed"}, Accounting(GATHERING)),
        ({"gathering": "tc-tail"}, Accounting(GATHERING, "tc-tail")),
        ({"utilisation": 0.9}, Accounting(TURN)),
        ({"pipeline_margin": 0.4}, Accounting(GATHERING)),
    ],
)
def test_options_of_earlier_plans_tell_their_accounting(
    options: dict[str, Any], meant: Accounting
) -> None:
    assert derived_accounting(options, in_entries=False, in_turns=False) == meant


@pytest.mark.parametrize("where", ["in_entries", "in_turns"])
def test_entries_and_turns_of_earlier_plans_are_paid_by_the_margin(where: str) -> None:
    given = {"in_entries": False, "in_turns": False, where: True}
    assert derived_accounting({}, **given) == Accounting(MARGIN)


def test_a_plan_that_states_nothing_is_read_and_written_as_it_is() -> None:
    document = two_stages().to_dict()
    assert "waits" not in document
    assert "waits" not in Plan.from_dict(document).to_dict()
    assert Plan.from_dict(document).accounting == Accounting(GATHERING)
    assert two_tails().accounting == Accounting(MARGIN)


def test_what_a_plan_states_counts_whatever_its_options_are() -> None:
    plan = replace(two_stages(), options={"utilisation": 0.9}, waits=MARGIN)
    assert Plan.from_dict(plan.to_dict()).accounting == Accounting(MARGIN)
    ruled = replace(plan, waits=GATHERING, gathering_rule="dt")
    assert Plan.from_dict(ruled.to_dict()).accounting == Accounting(GATHERING, "dt")


@pytest.mark.parametrize(
    ("stated", "complaint"),
    [
        ({"waits": "long"}, r"plan .*, waits: 'long' is none of \('gathering', 'turn', 'margin'\)"),
        ({"waits": GATHERING, "gathering_rule": "quick"}, r"gathering_rule: 'quick' is none of"),
        ({"waits": TURN, "gathering_rule": "dt"}, r"gathering_rule: 'dt' needs waits 'gathering'"),
        ({"gathering_rule": "dt"}, r"gathering_rule: 'dt' needs waits 'gathering', not None"),
    ],
)
def test_an_unknown_accounting_is_refused(stated: dict[str, str], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        replace(two_stages(), **stated)
