"""Answer times of golden plans over load."""

import json
import sys
from pathlib import Path

import pytest

from scripts.golden.latency import LOADS, POLICIES, Level, Point, main

POLICY = next(iter(POLICIES))


def test_a_figure_is_the_mean_over_plans() -> None:
    points = [
        Point(policy=POLICY, load=0.3, median=0.2, attainment=1.0, busy=0.1),
        Point(policy=POLICY, load=0.3, median=None, attainment=0.5, busy=0.3),
        Point(policy=POLICY, load=0.5, median=9.0, attainment=0.0, busy=1.0),
    ]
    level = Level.of(POLICY, 0.3, points)
    assert [figure.value for figure in level.figures()] == pytest.approx([0.2, 0.75, 0.2])
    assert (level.plans, level.worst) == (2, 0.5)


@pytest.mark.slow
def test_every_policy_is_measured_at_every_load(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out = tmp_path / "run.json"
    arguments = ["--only", "one-model-00", "--seconds", "1", "--processes", "1", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["latency", *arguments])
    assert main() == 0
    figures = {each["name"]: each["value"] for each in json.loads(out.read_text())["figures"]}
    assert len(figures) == 3 * len(POLICIES) * len(LOADS)
    for policy in POLICIES:
        assert 0 < figures[f"{policy} at 0.3: median answer time over SLO"] < 1
        low, high = (figures[f"{policy} at {load}: vGPUs busy"] for load in (0.1, 0.9))
        assert 0 < low < high <= 1
