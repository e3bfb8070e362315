import gzip
from pathlib import Path

import numpy as np
import pytest

from flows.operations.replanning.forecast import ForecastOptions, forecast_rps
from flows.operations.replanning.rates import RateHistory, read_counts
from triton_backend.contract.errors import InputError

EXACT = ForecastOptions(quantile=1.0, headroom=1.0, recent_s=3600)


def daily_peak(days: int) -> RateHistory:
    """One model, hourly: 10 rps at hour 12 of each day, 1 rps otherwise."""
    hours = np.ones((24 * days, 1))
    hours[12::24] = 10.0
    return RateHistory(names=("a",), interval_s=3600, rps=hours)


def test_the_hour_that_peaked_on_earlier_days_is_foreseen() -> None:
    assert forecast_rps(daily_peak(3), at=60, horizon=1, options=EXACT) == [10.0]


def test_a_quiet_hour_is_forecast_quiet_although_the_day_had_a_peak() -> None:
    assert forecast_rps(daily_peak(3), at=54, horizon=1, options=EXACT) == [1.0]


def test_the_last_hour_counts_where_no_earlier_day_is_known() -> None:
    assert forecast_rps(daily_peak(1), at=13, horizon=1, options=EXACT) == [10.0]


def test_nothing_at_or_after_the_instant_is_used() -> None:
    history = daily_peak(3)
    poisoned = history.rps.copy()
    poisoned[50:] = 1e9
    late = RateHistory(names=("a",), interval_s=3600, rps=poisoned)
    before = forecast_rps(history, at=50, horizon=5, options=EXACT)
    assert forecast_rps(late, at=50, horizon=5, options=EXACT) == before


def test_a_model_never_measured_is_forecast_at_zero() -> None:
    history = RateHistory(names=("a",), interval_s=3600, rps=np.full((30, 1), np.nan))
    assert forecast_rps(history, at=30, horizon=1, options=EXACT) == [0.0]


def test_a_forecast_from_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="no measured interval"):
        forecast_rps(daily_peak(1), at=0, horizon=1, options=EXACT)


def test_counts_become_rates_and_keep_the_order_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "counts.csv.gz"
    with gzip.open(path, "wt") as file:
        file.write("minute,x,y\n0,60,120\n1,,30\n")
    series = {"b": ("y",), "a": ("x",), "c": ("x", "y")}
    history = read_counts(path, interval_s=60, series=series)
    assert history.names == ("b", "a", "c")
    assert history.rps.tolist() == [[2.0, 1.0, 3.0], [0.5, 0.0, 0.5]]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("minute,x\n", "needs a header"),
        ("minute,y\n0,1\n", "no column 'x'"),
        ("minute,x\n0,abc\n", "line 2"),
        ("minute,x\n0,nan\n", "line 2: x 'nan' is not a number"),
        ("minute,x\n0,-1\n", "line 2: x '-1' is no count"),
        ("minute,x\n0\n", "line 2: 1 columns, not 2"),
        ("minute,\udcff\n0,1\n", "is not a text file"),
    ],
)
def test_a_count_file_that_cannot_be_used_says_why(
    tmp_path: Path, text: str, complaint: str
) -> None:
    path = tmp_path / "counts.csv"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(InputError, match=complaint):
        read_counts(path, interval_s=60, series={"a": ("x",)})
