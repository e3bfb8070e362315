"""Fleets of spread cuts: tails are in time by half, and cuts of one model differ."""

from pathlib import Path

import numpy as np
import pytest

from scripts.paper.graft import fleets
from tests.flows.planning.entries.entry_cases import profile
from triton_backend.contract.profiles import ProfileKey


def test_spread_cuts_differ_and_leave_twice_the_least_tail(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net = profile(7, classes=(fleets.GPU,))
    fastest = net.tables[ProfileKey(fleets.GPU, 300)].latency_us[:, 0]
    device_us = {"board": tuple(int(us) for us in 100 * fastest)}
    known = fleets.Model(profile=net, device_us=device_us)

    def models(_: Path) -> dict[str, fleets.Model]:
        return {"net": known}

    monkeypatch.setattr(fleets, "models", models)
    monkeypatch.setattr(fleets, "INPUT_BYTES", 20_000)
    drawn = [
        fleets.spread_fleet(Path(), "net", ["board"] * 20, np.random.default_rng(3))
        for _ in range(2)
    ]
    assert drawn[0] == drawn[1]
    assert len({entry.block for entry in drawn[0]}) > 2
    for entry in drawn[0]:
        assert entry.budget_us >= 2 * float(fastest[entry.block :].sum())
        assert entry.budget_us <= fleets.SLO * sum(device_us["board"])
