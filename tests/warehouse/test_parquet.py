"""Columns written as Parquet: whole, or not at all."""

import resource
from pathlib import Path

import duckdb
import numpy as np
import pytest

from triton_backend.contract.errors import InputError
from warehouse.parquet import write_columns

ROWS = 100_000
LIMIT_BYTES = 20_000  # a file beyond it cannot be written


@pytest.mark.parametrize("before", [False, True])
def test_records_that_do_not_fit_leave_what_was_there(
    tmp_path: Path, request: pytest.FixtureRequest, *, before: bool
) -> None:
    path = tmp_path / "records.parquet"
    if before:
        write_columns(path, {"number": np.arange(3)})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    request.addfinalizer(lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard)))
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT_BYTES, hard))
    numbers = np.random.default_rng(0).integers(0, 1 << 62, ROWS)
    with pytest.raises(InputError, match=r"records\.parquet: cannot be written: "):
        write_columns(path, {"number": numbers})
    assert [*tmp_path.iterdir()] == ([path] if before else [])
    if before:
        assert len(duckdb.read_parquet(str(path)).fetchall()) == 3


def test_records_may_go_into_a_device() -> None:
    write_columns(Path("/dev/null"), {"number": np.arange(3)})
