"""Every check says what it is about, and every finding that is not good what to do."""

import pytest

from flows.operations.doctor.registry import Finding, Severity, checks
from triton_backend.contract.errors import InvariantError

ASKED_FOR = {
    "server version",
    "open addresses",
    "token age",
    "file modes",
    "GPUs and MPS",
    "clock source",
    "shared memory",
    "solvers",
}


def test_checks_are_found_by_looking_and_say_what_they_are_about() -> None:
    found = checks()
    assert {each.name for each in found} >= ASKED_FOR
    assert all(each.about.endswith(".") for each in found)
    assert len({each.name for each in found}) == len(found)


def test_a_remedy_belongs_to_what_is_not_good() -> None:
    with pytest.raises(InvariantError):
        Finding(severity=Severity.PROBLEM, seen="open")
    with pytest.raises(InvariantError):
        Finding(severity=Severity.GOOD, seen="closed", remedy="open it")
