"""Trace texts of the three forms and the faults in them."""

from collections.abc import Callable

import numpy as np
import pytest

from triton_backend.contract import traces
from triton_backend.contract.errors import InputError

REQUESTS = ["t_s,service,tokens", "2.5,code,1", "1.0,conv,2", "1.5,code,3"]
COUNTS = ["minute,a,b", "0,1,5", "1,0,2"]


def test_requests_start_at_zero_and_are_sorted_per_model() -> None:
    series = traces.parse_requests(REQUESTS, time_column="t_s", model_column="service")
    assert {name: times.tolist() for name, times in series.items()} == {
        "code": [500_000, 1_500_000],
        "conv": [0],
    }


def test_without_a_model_column_there_is_one_series() -> None:
    series = traces.parse_requests(REQUESTS, time_column="t_s")
    assert series[traces.ALL].tolist() == [0, 500_000, 1_500_000]


def test_a_map_renames_and_leaves_out() -> None:
    series = traces.parse_requests(
        REQUESTS, time_column="t_s", model_column="service", names={"code": "resnet"}
    )
    assert list(series) == ["resnet"]
    counts = traces.parse_counts(COUNTS, names={"b": "resnet"})
    assert counts["resnet"].tolist() == [5, 2]


def test_counts_take_every_column_but_the_first() -> None:
    counts = traces.parse_counts(COUNTS)
    assert {name: values.tolist() for name, values in counts.items()} == {"a": [1, 0], "b": [5, 2]}


def test_intervals_are_told_from_tables_by_the_first_line() -> None:
    assert traces.is_intervals("1000\n")
    assert not traces.is_intervals("arrival_s\n")
    assert np.array_equal(traces.parse_intervals(["10\n", "20\n", "\n"]), [10, 20])


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda: traces.parse_requests(REQUESTS), "no column 'arrival_s'"),
        (lambda: traces.parse_requests(["arrival_s"]), "no requests"),
        (lambda: traces.parse_requests(["arrival_s", "x"]), "trace line 2"),
        (lambda: traces.parse_counts(COUNTS, names={"z": "m"}), "no column 'z'"),
        (lambda: traces.parse_counts(["minute,a"]), "needs a header"),
        (lambda: traces.parse_counts(["minute,a", "0,nan"]), "not a number"),
        (lambda: traces.parse_counts(["minute,a", "", "0,-1"]), "line 3: a '-1' is no count"),
        (lambda: traces.parse_counts(["minute,a,b", "0,1"]), "line 2: 2 columns, not 3"),
        (lambda: traces.parse_counts(["minute,a", "x" * 200_000]), "not CSV: field larger"),
        (lambda: traces.parse_requests(["arrival_s", "1e300"]), "line 2: arrival_s '1e300'"),
        (lambda: traces.parse_requests([]), "it has none at all"),
        (lambda: traces.parse_intervals(["5", "-1"]), "0 or more"),
    ],
)
def test_faults_are_named(call: Callable[[], object], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        call()
