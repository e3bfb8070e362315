"""Graft's curves on a small model: the same draws for all planners, ratios to the right base."""

from math import inf
from pathlib import Path

import pytest

from scripts.paper.curves import graft
from scripts.paper.curves.panels import Asked
from scripts.paper.graft import fleets
from tests.flows.planning.entries.entry_cases import profile
from triton_backend.contract.entries import Entry
from triton_backend.contract.profiles import ProfileKey

ASKED = Asked(data=Path(), seeds=1, seconds=1.0, draws=2)


@pytest.fixture(autouse=True)
def _small_model(monkeypatch: pytest.MonkeyPatch) -> None:
    net = profile(7, classes=(fleets.GPU,))
    fastest = net.tables[ProfileKey(fleets.GPU, 300)].latency_us[:, 0]
    device_us = {name: tuple(int(us) for us in 100 * fastest) for name in ("nano", "tx2")}
    known = fleets.Model(profile=net, device_us=device_us)

    def models(_: Path) -> dict[str, fleets.Model]:
        return {"net": known}

    for module in (fleets, graft):
        monkeypatch.setattr(module, "models", models)
    monkeypatch.setattr(fleets, "INPUT_BYTES", 20_000)
    monkeypatch.setattr(graft, "MODELS", ("net",))


def test_draws_are_the_same_each_time_and_the_first_of_more() -> None:
    two = graft.fleets(ASKED, "net", ("nano",) * 3)
    assert two == graft.fleets(ASKED, "net", ("nano",) * 3)
    assert two[0] != two[1]


def test_a_client_whose_tail_is_never_in_time_has_no_plan() -> None:
    late = Entry(name="late", block=0, budget_us=2, rate_rps=30.0)
    assert graft.percents_of(Path(), "net", (late,), "exact") == inf


@pytest.mark.long
def test_re_partitioning_never_costs_more_than_clients_alone() -> None:
    found = graft.repartition(ASKED)
    (panel,) = found.panels
    assert all(0 < ratio <= 1 for points in panel.series.values() for _, ratio in points)
    assert [figure.name for figure in found.figures] == [
        "figure 11, net: share saved by re-partitioning: median",
        "figure 11, net: share saved by re-partitioning: worst",
    ]


@pytest.mark.long
def test_exact_plans_are_never_above_those_of_all_groupings() -> None:
    drawn = graft.fleets(ASKED, "net", ("nano",) * 4)
    for entries in drawn:
        exact = graft.percents_of(Path(), "net", entries, "exact")
        assert exact <= graft.percents_of(Path(), "net", entries, "optimal") + 1e-9
        assert exact <= graft.percents_of(Path(), "net", entries, "graft") + 1e-9


@pytest.mark.long
def test_a_fifth_client_out_of_reach_has_no_point(monkeypatch: pytest.MonkeyPatch) -> None:
    def models(_: Path) -> dict[str, fleets.Model]:
        return {"Inc": fleets.models(Path())["net"]}

    four = graft.fleets(ASKED, "net", ("nano",) * 4)

    def drawn(*_: object) -> list[tuple[Entry, ...]]:
        return four

    def percents_of(_: Path, __: str, entries: tuple[Entry, ...], ___: str) -> float:
        return inf if entries[-1].budget_us < 0.9 * last_us else 10.0

    monkeypatch.setattr(graft, "models", models)
    known = graft.models(Path())["Inc"]
    own = known.device_us["nano"]
    block = known.profile.blocks // 3
    last_us = 0.95 * sum(own) - sum(own[:block])
    slow_mbps = 8 * (known.profile.boundary_bytes[block - 1] // 4) / (0.2 * last_us)
    monkeypatch.setattr(graft, "fleets", drawn)
    monkeypatch.setattr(graft, "percents_of", percents_of)
    monkeypatch.setattr(graft, "LINKS_MBPS", (slow_mbps, 1e3, 1e6))
    found = graft.fifth_client(ASKED)
    by_link, _ = found.panels
    points = [(1e3, 10.0), (1e6, 10.0)]
    assert by_link.series == {"exact": points, "graft": points, "alone": points}
    assert all(figure.value == 1 for figure in found.figures)
