"""Which of a node's two models leads, and what it finds when the other one is gone."""

from dataclasses import replace
from pathlib import Path

import pytest

from triton_backend.serve_folder.settings import ServeSettings
from triton_backend.serving.node.leadership import NodeLeadership

NODE = "FAST-0"


@pytest.fixture
def settings(tmp_path: Path) -> ServeSettings:
    return ServeSettings(
        system="s", instance="i", folder=tmp_path, socket_folder=tmp_path, python="", token=""
    )


def begun(settings: ServeSettings, gateway: int = 0) -> NodeLeadership:
    made = NodeLeadership(settings.of_gateway(gateway), NODE)
    with made.begin():
        pass
    return made


def test_alone_it_leads_always_and_leaves_nothing_behind(settings: ServeSettings) -> None:
    one = begun(settings)
    assert (one.alone, one.acquire(), one.acquire()) == (True, True, True)
    assert not one.release()
    assert not list(settings.socket_folder.iterdir())


def test_of_two_one_leads_until_it_leaves(settings: ServeSettings) -> None:
    both = replace(settings, gateways=2)
    first, second = begun(both, 0), begun(both, 1)
    assert (first.acquire(), second.acquire(), first.acquire()) == (True, False, True)
    assert first.release()  # the other one goes on
    assert second.acquire()
    assert not second.release()  # it was the last


def test_who_waits_leaves_the_workers_to_who_does_not(settings: ServeSettings) -> None:
    both = replace(settings, gateways=2)
    first, second = begun(both, 0), begun(both, 1)
    assert first.acquire()
    assert second.release()
    third = begun(both, 1)  # reloaded
    assert not third.acquire()
    assert first.release()
    assert third.acquire()
