"""Hostile bodies, and a short run of what throws them at a served picture step."""

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from scripts.benchmarks.served import Served
from scripts.fuzz.bodies import (
    BODIES,
    MESSAGES,
    good_message,
    hostile_body,
    hostile_message,
    pb,
    picture_body,
    texts,
)
from scripts.fuzz.picture_input import fuzz, prepared
from tests.ports import free_ports

if TYPE_CHECKING:
    from pathlib import Path

HOSTILE, GOOD = 400, 40


def test_the_same_seed_draws_the_same_bodies_and_messages() -> None:
    one, other = (np.random.default_rng(3) for _ in range(2))
    for _ in range(50):
        assert hostile_body(one, b"picture") == hostile_body(other, b"picture")
        assert hostile_message(one, "m", b"picture") == hostile_message(other, "m", b"picture")


def test_honest_bodies_are_as_long_as_they_say() -> None:
    draws = np.random.default_rng(5)
    for make in BODIES.values():
        for _ in range(10):
            body = make(draws, b"picture")
            if body.honest:
                assert dict(body.headers)["Content-Length"] == str(len(body.data))


def test_a_good_request_is_one_text() -> None:
    request = pb.ModelInferRequest.FromString(good_message("m", b"ab").SerializeToString())
    assert (request.model_name, list(request.inputs[0].shape)) == ("m", [1])
    assert list(request.raw_input_contents) == [texts(b"ab")] == [b"\2\0\0\0ab"]
    assert picture_body(b"ab").data == b"ab"


def test_messages_are_of_every_kind() -> None:
    draws = np.random.default_rng(7)
    drawn = {hostile_message(draws, "m", b"picture")[0] for _ in range(300)}
    assert drawn == set(MESSAGES)


@pytest.fixture(scope="module")
def thrown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder: Path = tmp_path_factory.mktemp("project")
    plan, options, here = prepared(folder)
    with Served(plan, free_ports(3)[0], options, within=folder) as served:
        figures, details = fuzz(served, here, count=HOSTILE, good=GOOD, seed=1)
    return {figure.name.strip(): figure.value for figure in figures} | {"details": details}


@pytest.mark.slow
def test_a_served_picture_step_refuses_or_answers_and_loses_nothing(thrown: dict[str, Any]) -> None:
    said = json.dumps(thrown["details"]["said"], indent=1)
    assert thrown["hostile requests"] > HOSTILE - 2 * GOOD
    bad = "neither answered, nor refused in one line, nor closed where a length lied"
    assert thrown[bad] == 0, said
    assert thrown["good requests not answered right"] == 0, said


@pytest.mark.slow
def test_no_process_of_it_changes_and_no_log_has_a_traceback(thrown: dict[str, Any]) -> None:
    assert thrown["processes that are not the same"] == 0
    assert thrown["workers lost"] == 0
    assert thrown["details"]["noise"] == []
