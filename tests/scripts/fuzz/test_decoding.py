"""The fuzzer of decoding, for a second: the corpus and what is made of it crashes nothing."""

import logging
from collections.abc import Iterator

import pytest

from scripts.fuzz import decoding

pytestmark = pytest.mark.slow
COUNT = 3_000


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


def test_nothing_but_a_refusal_leaves_what_decodes() -> None:
    found = decoding.fuzz(COUNT, 1, decoding.read_corpus(decoding.CORPUS))
    assert found.crashes == ()
    assert sum(found.tried.values()) == COUNT
    assert all(found.tried.values())
    assert 0 < found.refused < COUNT


def test_the_corpus_reaches_nearly_every_branch_of_decoding() -> None:
    reached, every, missing = decoding.branches(decoding.read_corpus(decoding.CORPUS))
    assert reached >= decoding.LEAST_COVERED * every, missing


def test_a_crash_is_told_with_its_input(monkeypatch: pytest.MonkeyPatch) -> None:
    def weak(data: bytes) -> None:
        if b"\xff" in data:
            raise KeyError(data)

    monkeypatch.setattr(decoding, "DOORS", {**decoding.DOORS, "control": weak})
    found = decoding.fuzz(COUNT, 0)
    assert {door for door, _, _ in found.crashes} == {"control"}
    assert all(b"\xff" in data for _, data, _ in found.crashes)


def test_a_corpus_survives_its_file(tmp_path: decoding.Path) -> None:
    inputs = sorted({*decoding.seeds(), ("proof", b"")})
    decoding.write_corpus(tmp_path / "c", inputs)
    assert decoding.read_corpus(tmp_path / "c") == inputs
