"""Which MIG slices of a machine stand for those of a plan."""

from pathlib import Path

import pytest

from tests.fakes import slices
from triton_backend.contract.errors import InputError
from triton_backend.runtimes.mig import Slice, assign_slices, list_slices


@pytest.mark.slow
def test_slices_are_those_that_the_driver_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "PATH", str(slices.install(tmp_path, ["3g.20gb"], [], ["1g.5gb", "3g.20gb"]))
    )
    found = (
        Slice("3g.20gb", "MIG-0.0"),
        Slice("1g.5gb", "MIG-2.0"),
        Slice("3g.20gb", "MIG-2.1"),
    )
    assert list_slices() == found
    assert list_slices(("2",)) == list_slices(("GPU-2",)) == found[1:]


@pytest.mark.slow
def test_a_machine_without_the_driver_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(InputError, match="MIG slices: nvidia-smi -L cannot be run"):
        list_slices()


def test_slices_of_a_kind_are_taken_in_order() -> None:
    there = [Slice("1g.5gb", "a"), Slice("3g.20gb", "b"), Slice("1g.5gb", "c")]
    wanted = {1: ("1g.5gb",), 0: ("3g.20gb", "1g.5gb")}
    assert assign_slices("node n", wanted, there) == {0: ("b", "a"), 1: ("c",)}


def test_missing_slices_are_named_with_what_makes_them() -> None:
    reason = (
        "node n: the plan needs 2 of 3g.20gb, 1 are there; divide by:"
        " nvidia-smi mig -i 0 -cgi 3g.20gb,3g.20gb -C"
    )
    with pytest.raises(InputError, match=reason):
        assign_slices("node n", {0: ("3g.20gb", "3g.20gb")}, [Slice("3g.20gb", "b")])
