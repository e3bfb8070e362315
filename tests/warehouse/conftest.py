"""Fixtures of the warehouse's tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from warehouse.db import Warehouse, open_warehouse


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Warehouse]:
    with open_warehouse(tmp_path / "w.duckdb") as warehouse:
        yield warehouse
