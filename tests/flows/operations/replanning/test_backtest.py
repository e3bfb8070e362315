"""Backtests of replanning, with the real planner on a small cluster."""

import gzip
from pathlib import Path

import pytest

from flows.operations.replanning.backtest_run import Backtested, BacktestOptions, run_backtest
from flows.operations.replanning.forecast import ForecastOptions
from flows.operations.replanning.planner import priced
from flows.planning import PlanOptions
from tests.flows.planning.small import cluster, profile, workload
from triton_backend.contract.errors import InputError
from triton_backend.contract.workload import ModelDemand, Workload

HOUR_S = 3600


def demand(name: str) -> ModelDemand:
    return ModelDemand(name=name, slo_us=15_000, weight=1.0, batch_building_rate_rps=1e9)


def write_days(path: Path, days: int) -> Path:
    """Hourly counts: model a is busy in hours 8 to 15 of each day, b always a little."""
    rows = [f"{hour},{600 if 8 <= hour % 24 < 16 else 30},60" for hour in range(24 * days)]
    path.write_bytes(gzip.compress("\n".join(["hour,f,b", *rows]).encode()))
    return path


def run(tmp_path: Path, **options: object) -> Backtested:
    asked = {
        "table": write_days(tmp_path / "counts.csv.gz", days=3),
        "interval_s": HOUR_S,
        "period_s": 2 * HOUR_S,
        "warm_up_s": 24 * HOUR_S,
        "series": {"a": ("f",)},
        "peak_rps": {"a": 1000.0, "b": 100.0},
        "forecast": ForecastOptions(quantile=1.0, headroom=1.1),
        "planning": PlanOptions(),
        **options,
    }
    profiles = {name: profile(name) for name in ("a", "b")}
    return run_backtest(
        profiles,
        cluster(),
        workload(demand("a"), demand("b")),
        BacktestOptions(**asked),  # type: ignore[arg-type]  # tests name what they change
    )


@pytest.mark.long
def test_days_that_repeat_are_served_whole_with_fewer_gpus_than_the_peak_needs(
    tmp_path: Path,
) -> None:
    done = run(tmp_path)
    found = done.found
    assert len(found.periods) == 24
    assert found.served_fraction == 1.0
    assert found.served_by_model == {"a": 1.0, "b": 1.0}
    assert found.mean_gpus < found.static_gpus
    assert max(p.gpus for p in found.periods) >= found.static_gpus
    quiet = [p.gpus for p in found.periods if p.offered_rps[0] < 100]
    busy = [p.gpus for p in found.periods if p.offered_rps[0] > 900]
    assert min(quiet) < min(busy)


@pytest.mark.long
def test_rates_beyond_the_cluster_are_planned_for_as_far_as_it_goes(tmp_path: Path) -> None:
    done = run(tmp_path, peak_rps={"a": 100_000.0, "b": 100.0})
    assert 0 < done.found.served_fraction < 1
    assert done.found.static_gpus <= 6


@pytest.mark.long
def test_sampled_intervals_are_simulated_request_by_request(tmp_path: Path) -> None:
    done = run(tmp_path, simulated_minutes=2, interval_s=60, period_s=120, warm_up_s=24 * 60)
    assert done.busiest is not None
    assert done.drawn is not None
    assert done.busiest.intervals == done.drawn.intervals == 1
    assert done.busiest.offered > done.drawn.offered > 0
    assert 0 <= done.busiest.served <= done.busiest.offered
    assert set(done.to_dict()["simulated"]) == {"busiest", "drawn"}


@pytest.mark.long
@pytest.mark.parametrize(("asked", "busiest", "drawn"), [(1, 1, 0), (1000, 4, 2)])
def test_as_many_intervals_are_simulated_as_there_are(
    tmp_path: Path, asked: int, busiest: int, drawn: int
) -> None:
    table = tmp_path / "few.csv"
    table.write_text("minute,f,b\n0,9,9\n1,9,9\n2,0,0\n3,5,5\n4,0,0")
    done = run(
        tmp_path,
        table=table,
        simulated_minutes=asked,
        interval_s=60,
        period_s=120,
        warm_up_s=60,
        peak_rps={"a": 9.0, "b": 9.0},
    )
    assert done.busiest is not None
    assert done.drawn is not None
    assert (done.busiest.intervals, done.drawn.intervals) == (busiest, drawn)


def test_without_prices_every_gpu_counts_the_same() -> None:
    assert [c.hourly_cost for c in priced(cluster()).gpu_classes] == [1.0, 1.0]
    known = cluster(fast_hourly_cost=3.0, slow_hourly_cost=1.0)
    assert priced(known) == known


def test_a_column_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no column 'g'"):
        run(tmp_path, series={"a": ("g",)})


def backtested(tmp_path: Path, asked: Workload, column: str) -> Backtested:
    """Three days of one series for all that a workload asks for."""
    app = BacktestOptions(
        table=write_days(tmp_path / "counts.csv.gz", days=3),
        interval_s=HOUR_S,
        period_s=8 * HOUR_S,
        warm_up_s=24 * HOUR_S,
        series={column: ("f",)},
        peak_rps={column: 60.0},
        forecast=ForecastOptions(quantile=1.0, headroom=1.1),
    )
    profiles = {name: profile(name) for name in ("a", "b")}
    return run_backtest(profiles, cluster(), asked, app)


@pytest.mark.long
def test_applications_are_replanned_by_their_own_rates(tmp_path: Path) -> None:
    modules = [{"name": "one", "model": "a"}, {"name": "two", "model": "b", "after": ["one"]}]
    app = {"name": "app", "slo_ms": 80, "rate_rps": 10, "modules": modules}
    found = backtested(tmp_path, Workload.from_dict({"applications": [app]}), "app").found
    assert found.names == ("app",)
    assert found.served_by_model == {"app": 1.0}
    assert min(p.planned_rps[0] for p in found.periods) < 60 <= found.periods[1].planned_rps[0]


@pytest.mark.long
def test_entries_are_replanned_each_by_its_own_rate(tmp_path: Path) -> None:
    tails = {"name": "tails", "block": 1, "budget_ms": 200, "rate_rps": 10}
    model = {"name": "a", "slo_ms": 200, "entries": [tails]}
    found = backtested(tmp_path, Workload.from_dict({"models": [model]}), "a/tails").found
    assert found.names == ("a/tails",)
    assert found.served_by_model == {"a/tails": 1.0}
    assert found.periods[1].planned_rps[0] > 60


@pytest.mark.long
def test_sizes_of_one_model_are_replanned_each_by_its_own_rate(tmp_path: Path) -> None:
    sizes = [{"input_shapes": {"x": size}, "share": 0.5} for size in ("4", "8")]
    model = {"name": "reader", "slo_ms": 60, "batch_building_rate_rps": 1e9, "sizes": sizes}
    asked = Workload.from_dict({"models": [model]})
    small, large = (size.name for size in asked.models)
    options = BacktestOptions(
        table=write_days(tmp_path / "counts.csv.gz", days=3),
        interval_s=HOUR_S,
        period_s=8 * HOUR_S,
        warm_up_s=24 * HOUR_S,
        series={small: ("f",), large: ("b",)},
        peak_rps={small: 60.0, large: 20.0},
        forecast=ForecastOptions(quantile=1.0, headroom=1.1),
    )
    profiles = {small: profile(small), large: profile(large, fast_us=(2000, 2000, 2000))}
    found = run_backtest(profiles, cluster(), asked, options).found
    assert found.names == (small, large)
    assert found.served_by_model == {small: 1.0, large: 1.0}
    for period in found.periods:
        assert all(
            planned >= offered
            for planned, offered in zip(period.planned_rps, period.offered_rps, strict=True)
        )
    by_size = list(zip(*(period.planned_rps for period in found.periods), strict=True))
    assert max(by_size[0]) > 2 * min(by_size[0])
    assert max(by_size[1]) == pytest.approx(min(by_size[1]))


def test_a_name_that_clients_do_not_ask_for_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--map: 'c' is not in the workload; it has a, b"):
        run(tmp_path, series={"c": ("f",)})
