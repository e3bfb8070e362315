"""Charts are written in the format of the file's suffix, quietly and without a display."""

from pathlib import Path

import pytest

from flows.reporting.backtest_chart import BacktestPicture, ModelCurve, draw_backtest
from flows.reporting.plots import Curve, curve_chart


@pytest.mark.long
@pytest.mark.parametrize(("suffix", "magic"), [(".png", b"\x89PNG"), (".svg", b"<?xml")])
def test_every_chart_can_be_written(tmp_path: Path, suffix: str, magic: bytes) -> None:
    curve = Curve(label="pool", x=[0.5, 1.0], y=[1.0, 0.9])
    paths = [
        curve_chart([curve], tmp_path / "new" / f"c{suffix}", x_label="x", y_label="y", title="t"),
        draw_backtest(
            BacktestPicture(
                title="t",
                hours=[24, 25, 26],
                models=[
                    ModelCurve(name="m", mean_rps=[1, 0], highest_rps=[2, 0], planned_rps=[3, 1])
                ],
                gpus=[3, 1],
                static_gpus=4,
                mean_gpus=2.0,
                served_percent=[100.0, 99.0],
            ),
            tmp_path / f"b{suffix}",
        ),
    ]
    for path in paths:
        assert path.read_bytes().startswith(magic)
