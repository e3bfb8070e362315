"""The study of the Graft paper: fleets that its GPUs do not serve are said, not a traceback."""

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from flows.planning.registry import Inputs
from scripts.paper.graft import pictures, study
from tests.flows.planning.entries.entry_cases import entry, made, profile
from triton_backend.contract.cluster import NodeGroup


def measured(
    monkeypatch: pytest.MonkeyPatch, folder: Path, served: Sequence[tuple[float, float]]
) -> list[tuple[float | None, str]]:
    """Values and notes of two models, one fleet each, as (exact, gslice-plus) serve them."""
    (folder / "graft").mkdir()
    rows = ["key,model,value", *(f"throughput_vs_gslice_plus,{name},1.5" for name in "AB")]
    (folder / "graft/paper_tables.csv").write_text("\n".join(rows) + "\n")
    fleets = iter(served)

    def measure(*_: object) -> dict[str, float]:
        return dict(zip(study.THROUGHPUT, next(fleets), strict=True))

    monkeypatch.setitem(study.MEASURES, "rates", measure)
    figures, _ = study.throughput(folder, 1, 4, "rates", ["A", "B"])
    return [(figure.value, figure.note) for figure in figures]


def test_a_fleet_that_is_served_at_no_rate_is_left_out_of_the_mean_and_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first, second, mean = measured(monkeypatch, tmp_path, [(3.0, 2.0), (1.0, 0.0)])
    assert first == (1.5, "paper's Graft 1.5; 3 over 2")
    assert second == (None, "paper's Graft 1.5; gslice-plus serves 1 of 1 fleets at no rate")
    assert mean == (1.5, "without B: no fleet is served")


def test_no_fleet_served_has_no_mean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    *_, mean = measured(monkeypatch, tmp_path, [(0.0, 0.0), (0.0, 0.0)])
    assert mean == (None, "without A, B: no fleet is served")


def test_gpus_without_a_plan_at_any_rate_serve_a_multiple_of_zero() -> None:
    net = profile(7)
    fastest = net.tables[min(net.tables, key=lambda key: -key.share)].latency_us[:, 0]
    # half of each budget is just enough on a whole GPU, and there is one
    entries = [entry(f"e{b}", b, 2.001 * (fastest[b:].sum() + 3) / 1e3, 1) for b in (0, 1)]
    case = made(net, entries)
    one = (NodeGroup(count=1, gpu_class="G", gpus=1, nic_gbps=40),)
    inputs = Inputs(
        profiles=case.profiles, cluster=replace(case.cluster, nodes=one), workload=case.workload
    )
    assert study.largest_multiple(inputs, "gslice-plus") == (0, 0)
    able = replace(inputs, cluster=case.cluster)
    found, most = study.largest_multiple(able, "gslice-plus")
    assert 0 < found <= most


@pytest.mark.parametrize("most", [0, 1, 2, 7, 8, 9])
def test_the_most_clients_are_found_by_larger_steps_and_halves(most: int) -> None:
    for known in {0, most // 2, most}:
        assert study.most_able(lambda count: count <= most, known) == most


@pytest.mark.long
def test_pictures_are_drawn_of_what_was_measured_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rows = [{"name": "ViT, 20 entries: exact", "value": 1.0, "note": ""}]
    measured = tmp_path / "study.json"
    measured.write_text(json.dumps({"figures": rows}))
    asked = ["pictures.py", str(measured), "-o", str(tmp_path / "drawn")]
    monkeypatch.setattr(sys, "argv", asked)
    assert pictures.main() == 0
    assert [path.name for path in (tmp_path / "drawn").iterdir()] == ["scale.png"]
