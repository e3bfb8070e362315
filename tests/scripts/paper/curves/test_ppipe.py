"""PPipe's figure 8: means over groups by cluster, then over clusters, for both classes."""

from pathlib import Path
from typing import Any

import pytest

from scripts.paper.cells import CLUSTERS, GROUPS, PLANNERS
from scripts.paper.curves import ppipe
from scripts.paper.curves.panels import Asked


class Studied:
    """Every group is as busy as its number says, the low class half as much."""

    def __init__(self, **_: Any) -> None:
        pass

    def busy(self, planner: str) -> dict[tuple[str, str], tuple[float, float]]:
        factor = 1 + PLANNERS.index(planner)
        return {
            (group, cluster): (0.02 * number * factor, 0.01 * number * factor)
            for number, group in enumerate(GROUPS, 1)
            for cluster in CLUSTERS
        }


def test_classes_are_shown_apart_with_the_mean_of_clusters_behind_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ppipe, "Study", Studied)

    def read(_: object) -> None:
        return None

    monkeypatch.setattr(ppipe.PaperData, "read", read)
    found = ppipe.utilisation(Asked(data=Path(), seeds=1, seconds=1, draws=1))
    high, low = found.panels
    assert [name for name, _ in high.series["pool"]] == [*CLUSTERS, "mean"]
    assert [value for _, value in high.series["pool"]] == pytest.approx([7.0] * 5)
    assert [value for _, value in low.series["dart-r"]] == pytest.approx([7.0] * 5)
    assert [figure.value for figure in found.figures] == pytest.approx([7, 3.5, 14, 7, 21, 10.5])
