"""Pages of registries: everything that is registered is described."""

from flows.planning import registry
from scripts.reference.registries import (
    COMPARED,
    PLANNERS,
    POLICY_TEXTS,
    reason_texts,
    registry_pages,
    status_of,
)
from triton_backend.contract.decisions import DropReason
from triton_backend.scheduler.policies.registry import POLICIES, SIMULATOR_ONLY


def test_every_planner_and_every_policy_is_described() -> None:
    assert set(PLANNERS) == set(registry.planners())
    assert set(POLICY_TEXTS) == {*POLICIES, *SIMULATOR_ONLY}


def test_policies_of_comparison_stand_apart_and_each_policy_once() -> None:
    page = registry_pages()["policies.md"]
    before, _, after = page.partition("## For comparison")
    for name in (*POLICIES, *SIMULATOR_ONLY):
        apart = name in (*COMPARED, *SIMULATOR_ONLY)
        assert (before.count(f"| `{name}` |"), after.count(f"| `{name}` |")) == (not apart, apart)


def test_reasons_have_the_status_that_a_front_answers() -> None:
    assert set(reason_texts()) == set(DropReason)
    assert status_of(DropReason.DEADLINE) == "UNAVAILABLE"
    assert status_of(DropReason.TOO_LARGE) == "INVALID_ARG"
    assert status_of(DropReason.CANCELLED) == "CANCELLED"
