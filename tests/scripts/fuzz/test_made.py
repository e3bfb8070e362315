"""Inputs of the fuzzer of a running system, and the system it serves.

Requests of entries are refused, not failed on; the plan renders.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from scripts.fuzz.made import APPLICATION, TARGETS, WIDE, bad_frames, bad_offload, fuzzed_plan
from triton_backend.contract.errors import InputError
from triton_backend.serve_folder.repository import render_repository
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.serving.gateway.offload import Offload
from triton_backend.serving.transport.wire import FrameError, Kind, parse_header


@pytest.mark.long
def test_every_target_is_a_model_of_the_repository(tmp_path: Path) -> None:
    render_repository(tmp_path, fuzzed_plan(), ServeOptions(cut_models=True))
    rendered = {path.name for path in (tmp_path / "repository").iterdir()}
    assert {*TARGETS, WIDE, APPLICATION} <= rendered


def test_what_clients_of_entries_ask_is_answered_or_refused_in_one_line() -> None:
    draws = np.random.default_rng(0)
    plan = fuzzed_plan()
    offload = Offload(lambda: plan, lambda: 0)
    answers: list[str] = []
    refusals: list[str] = []
    for _ in range(2_000):
        try:
            answers.append(json.dumps(offload.answer(bad_offload(draws).decode())))
        except InputError as error:
            refusals.append(str(error))
    assert min(len(answers), len(refusals)) > 100
    assert not any("\n" in text for text in refusals)


def test_some_frames_in_a_row_begin_as_a_peer_does() -> None:
    draws = np.random.default_rng(0)
    kinds: list[Kind] = []
    for _ in range(300):
        try:
            kinds.append(parse_header(bad_frames(draws).ljust(64, b"\0")).kind)
        except FrameError:
            continue
    assert kinds.count(Kind.HELLO) > 50
