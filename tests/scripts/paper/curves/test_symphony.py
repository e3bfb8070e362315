"""Symphony's curves at reduced sizes, on tables written here."""

from pathlib import Path

import numpy as np
import pytest

from scripts.paper.curves import symphony
from scripts.paper.curves.panels import Asked

TABLE_2 = """\
model,gpus,alpha_ms,beta_ms,slo_ms,nocoord_batch,nocoord_rps,staggered_batch,staggered_rps,symphony_rps
ResNet50,8,1.053,5.072,25,7,4501,16,5839,5264
"""
ZOO = """\
model,alpha_ms,beta_ms,beta_over_alpha,slo_ms
DenseNet121,1.0,10.0,10,40
VGG16,2.0,6.0,3,40
BERT,7.0,0.2,0.03,56
"""


@pytest.fixture
def asked(tmp_path: Path) -> Asked:
    folder = tmp_path / "symphony"
    folder.mkdir()
    (folder / "table2_theory_and_measured.csv").write_text(TABLE_2)
    for gpu in ("A100", "1080Ti"):
        (folder / f"profiles_{gpu}.csv").write_text(ZOO)
    return Asked(data=tmp_path, seeds=2, seconds=0.4, draws=3)


def test_no_rate_is_above_largest_batches_without_a_pause(asked: Asked) -> None:
    rows = symphony.alike(symphony.resnet(asked), 25, 2)
    most = int((25 - 5.072) / 1.053)
    expected = 8 * most / (1.053 * most + 5.072) * 1e3
    assert symphony.within_slo_rps(rows, 8) == pytest.approx(expected)
    assert symphony.within_slo_rps(rows, 8, [1.0, 3.0]) == pytest.approx(expected)


def test_drawn_workloads_are_the_same_for_a_seed_and_small_enough(asked: Asked) -> None:
    drawn = [symphony.drawn_7(asked, np.random.default_rng(1)) for _ in range(2)]
    assert drawn[0] == drawn[1]
    random = np.random.default_rng(2)
    for _ in range(30):
        label, rows, gpus, shape = symphony.drawn_7(asked, random)
        assert gpus <= symphony.MOST_GPUS_7
        assert shape in symphony.GRID_7["shape"]
        assert label == "mixed" or len({row.slo_us for row in rows}) == 1


@pytest.mark.slow
def test_a_longer_network_never_serves_more(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(symphony, "SLOS_14_MS", (25,))
    monkeypatch.setattr(symphony, "LEADS_US", (0, 10_000))
    found = symphony.network(asked)
    (panel,) = found.panels
    (none, ten) = panel.series["SLO 25 ms"]
    assert none == (0.01, 1.0)
    assert ten[0] == 10.0
    assert 0 < ten[1] < 1
    assert len(found.figures) == 4


@pytest.mark.slow
def test_every_kind_of_workload_has_a_panel_and_every_system_a_line(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(symphony, "SLOS_11_MS", (25,))
    monkeypatch.setattr(symphony, "SLOS_A_RUN", 10)
    monkeypatch.setattr(symphony, "ALIKE", 4)
    found = symphony.workload_kinds(asked)
    assert [panel.title for panel in found.panels] == [
        "equal, Poisson",
        "equal, gamma 0.05",
        "Zipf 0.9, Poisson",
        "Zipf 0.9, gamma 0.05",
    ]
    for panel in found.panels:
        assert set(panel.series) == set(symphony.FAST)
        assert panel.series["deferred"][0][1] > 0


@pytest.mark.slow
def test_eager_is_compared_with_deferred_at_each_gain_by_batches(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(symphony, "BETAS_6A_MS", (1,))
    monkeypatch.setattr(symphony, "EAGER_GPUS", 4)
    monkeypatch.setattr(symphony, "EAGER_MODELS", 2)
    found = symphony.gain_by_batches(asked)
    (panel,) = found.panels
    assert set(panel.series) == {"eager", "clockwork"}
    assert all(0 < points[0][1] < 2 for points in panel.series.values())
    assert found.figures[0].name == "figure 6a, beta 1 ms: eager / deferred: median"


def test_runs_at_long_slos_last_many_of_them(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    lasted: list[float] = []

    def goodputs(*known: object) -> list[float]:
        lasted.extend(one.seconds for one in known if isinstance(one, Asked))
        return [1.0]

    monkeypatch.setattr(symphony, "GPUS_13", (2, 4))
    monkeypatch.setattr(symphony, "goodputs", goodputs)
    (panel,) = symphony.more_gpus(asked).panels
    assert [gpus for gpus, _ in panel.series["deferred"]] == [2, 4]
    assert lasted == [symphony.SLOS_A_RUN * symphony.SLO_13_MS / 1e3] * 4
