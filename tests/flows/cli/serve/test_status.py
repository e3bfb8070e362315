from typing import Any

import pytest

from flows.release.server import running
from tests.flows.cli.conftest import Command

FOUND: dict[str, Any] = {
    "state": "serving",
    "workers": {"plan_id": "a", "up": 2, "total": 2},
    "prepared": None,
    "counters": {
        "offered": {"net": 25, "sub": 3},
        "dropped": {},
        "stage_busy_us": {"net/0": 1_413_405},
        "decision_mean_us": 1020.0,
    },
}


@pytest.mark.usefixtures("project")
def test_counters_stand_one_a_line_and_durations_have_units(
    monkeypatch: pytest.MonkeyPatch, poolpipe: Command
) -> None:
    def status(_: object) -> dict[str, Any]:
        return FOUND

    monkeypatch.setattr(running, "status", status)
    lines = poolpipe("status").out.replace("\N{NO-BREAK SPACE}", " ").splitlines()
    assert [line.rstrip() for line in lines] == [
        "state: serving",
        "workers: plan_id a, up 2, total 2",
        "prepared: -",
        "counters:",
        "  offered: net 25, sub 3",
        "  stage_busy: net/0 1.41 s",
        "  decision_mean: 1.02 ms",
    ]
    assert poolpipe("status", "--json").document == FOUND
