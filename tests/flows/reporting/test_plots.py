"""Charts are written in the format of the file's suffix, quietly and without a display."""

import resource
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from flows.reporting.backtest_chart import BacktestPicture, ModelCurve, draw_backtest
from flows.reporting.plots import Curve, curve_chart
from triton_backend.contract.errors import InputError

CURVE = Curve(label="pool", x=[0.5, 1.0], y=[1.0, 0.9])


@contextmanager
def room_for(size_bytes: int) -> Generator[None]:
    """Files cannot be larger, as where a disk is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.long
def test_a_chart_that_finds_no_room_leaves_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "c.svg"
    path.write_text("before")
    with room_for(1_000), pytest.raises(InputError, match=r"c\.svg: cannot be written"):
        curve_chart([CURVE], path, x_label="x", y_label="y", title="t")
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.long
@pytest.mark.parametrize(("suffix", "magic"), [(".png", b"\x89PNG"), (".svg", b"<?xml")])
def test_every_chart_can_be_written(tmp_path: Path, suffix: str, magic: bytes) -> None:
    paths = [
        curve_chart([CURVE], tmp_path / "new" / f"c{suffix}", x_label="x", y_label="y", title="t"),
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
