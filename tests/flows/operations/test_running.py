"""Loops of the running system: one at a time, and how long they go on."""

import json
import os
from pathlib import Path

import pytest

from flows.operations.replanning.options import AutoscaleOptions, SteerOptions
from flows.operations.running import follow_served, steer_served, time_over
from flows.release.rollout.lock import one_loop
from flows.workspace import Workspace
from tests.flows.operations.fake_gateway import workspace_of
from tests.triton_backend.serve_folder.state_files import LEFT
from triton_backend.contract.errors import InputError
from triton_backend.serve_folder.state import STATE_NAME

ANOTHER = rf"another loop brings plans into force, .*: process {os.getpid()} \("


@pytest.fixture
def served(tmp_path: Path) -> Workspace:
    """A project with the state file of a system that is gone."""
    work = workspace_of(tmp_path)
    (work.state.serve / STATE_NAME).write_text(json.dumps(LEFT))
    return work


def test_hours_count_from_when_the_loop_begins() -> None:
    assert not time_over(AutoscaleOptions())()
    assert not time_over(AutoscaleOptions(hours=1.0))()


def test_a_second_loop_of_either_kind_is_refused(served: Workspace) -> None:
    said: list[str] = []
    with one_loop(served.state.loop_lock):
        with pytest.raises(InputError, match=ANOTHER):
            follow_served(served, AutoscaleOptions(), None, said.append)
        with pytest.raises(InputError, match=ANOTHER):
            steer_served(served, SteerOptions(), None, said.append)
    assert said == []


def test_a_loop_that_gives_advice_alone_goes_beside_another(served: Workspace) -> None:
    said: list[str] = []
    with one_loop(served.state.loop_lock), pytest.raises(Exception, match="no answer from"):
        follow_served(served, AutoscaleOptions(advisory=True), None, said.append)


def test_where_nothing_is_served_no_lock_is_left(tmp_path: Path) -> None:
    work = workspace_of(tmp_path)
    with pytest.raises(InputError, match="nothing is being served from here"):
        follow_served(work, AutoscaleOptions(), None, print)
    assert not work.state.loop_lock.exists()
