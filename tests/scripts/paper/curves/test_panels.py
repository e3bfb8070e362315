"""Panels hold numbers of four digits; seeds are told by median and worst."""

import numpy as np

from scripts.paper.curves.panels import BARS, Panel, distribution, over_seeds


def test_a_panel_is_kept_with_names_as_they_are_and_numbers_of_four_digits() -> None:
    panel = Panel(title="t", x="x", y="y", series={"a": [("m", 1.23456)]}, kind=BARS, mark=1.0)
    assert panel.to_dict() == {
        "title": "t",
        "x": "x",
        "y": "y",
        "kind": "bars",
        "log": "",
        "mark": 1.0,
        "series": {"a": [["m", 1.235]]},
    }


def test_several_seeds_are_their_median_and_the_worst_of_them() -> None:
    found = over_seeds("goodput", [3.0, 1.0, 2.0], "rps")
    assert [(figure.name, figure.value) for figure in found] == [
        ("goodput: median", 2.0),
        ("goodput: worst", 1.0),
    ]
    assert over_seeds("cost", [3.0, 1.0, 2.0], worst="most")[1].value == 3.0


def test_one_value_stands_alone() -> None:
    assert [(figure.name, figure.value) for figure in over_seeds("share", [0.5])] == [
        ("share", 0.5)
    ]


def test_a_distribution_goes_from_the_least_at_0_to_the_most_at_100() -> None:
    points = distribution(np.arange(11.0).tolist(), points=10)
    assert points[0] == (0.0, 0.0)
    assert points[5] == (5.0, 50.0)
    assert points[-1] == (10.0, 100.0)
