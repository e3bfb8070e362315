"""Profile tables as CSV files: there and back, and what is wrong with one."""

from pathlib import Path

import numpy as np
import pytest

from flows.preparation.profiling.csv_tables import (
    BOUNDARY_FILE,
    LATENCY_FILE,
    MEMORY_FILE,
    read_tables,
    write_tables,
)
from tests.flows.planning.small import profile
from triton_backend.contract.errors import InputError

LATENCY = "model,gpu_class,vgpu_divisor,block,batch,latency_us\n"
BOUNDARY = "model,after_block,bytes_per_sample\n"
TWO_BLOCKS = f"{LATENCY}a,L4,1,0,1,5\na,L4,1,1,1,7\n"
ONE_BOUNDARY = f"{BOUNDARY}a,0,16\n"


def folder(at: Path, latency: bytes, boundary: bytes) -> Path:
    (at / LATENCY_FILE).write_bytes(latency)
    (at / BOUNDARY_FILE).write_bytes(boundary)
    return at


def test_tables_are_read_as_they_were_written(tmp_path: Path) -> None:
    written = profile()
    write_tables(tmp_path / "new", {"net": written})
    found, warnings = read_tables(tmp_path / "new")
    assert warnings == []
    assert found["net"].boundary_bytes == written.boundary_bytes
    assert found["net"].latency_us.keys() == written.latency_us.keys()
    for key, table in written.latency_us.items():
        assert np.array_equal(found["net"].latency_us[key], table)


def test_a_table_of_some_batches_is_written_as_it_was_measured(tmp_path: Path) -> None:
    rows = "".join(f"a,fast,1,0,{batch},{10.0 * batch}\n" for batch in (1, 2, 4, 8))
    text = "model,gpu_class,vgpu_divisor,block,batch,latency_us\n" + rows
    found, warnings = read_tables(folder(tmp_path, text.encode(), BOUNDARY.encode()))
    assert warnings == []
    assert found["a"].latency_us["fast", 1].tolist() == [[10, 20, 40, 40, 80, 80, 80, 80]]
    latency, _ = write_tables(tmp_path / "again", found)
    assert latency.read_text() == text


def test_weights_and_workspace_are_read_and_written(tmp_path: Path) -> None:
    at = folder(tmp_path, TWO_BLOCKS.encode(), ONE_BOUNDARY.encode())
    text = "model,block,memory_gib,workspace_gib\na,0,0.5,0.25\na,1,1.5,0.125\n"
    (at / MEMORY_FILE).write_text(text)
    found, warnings = read_tables(at)
    assert warnings == []
    assert found["a"].block_memory_bytes == (2**29, 3 * 2**29)
    assert found["a"].block_workspace_bytes == (2**28, 2**27)
    assert found["a"].stage_memory_bytes((0, 2)) == 2**31 + 2**28
    assert write_tables(tmp_path / "again", found)[2].read_text() == text


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ("a,0,1,", "has no row of block 1"),
        ("a,0,1,\na,1,1,\na,2,1,", "there is no block 2"),
        ("a,0,x,", "line 2, memory_gib: 'x' is no number of GiB"),
        ("a,0,1,-1", "line 2, workspace_gib: '-1' is no number of GiB"),
    ],
)
def test_memory_that_cannot_be_used_is_named(tmp_path: Path, row: str, complaint: str) -> None:
    at = folder(tmp_path, TWO_BLOCKS.encode(), ONE_BOUNDARY.encode())
    (at / MEMORY_FILE).write_text(f"model,block,memory_gib,workspace_gib\n{row}\n")
    with pytest.raises(InputError, match=complaint):
        read_tables(at)


def test_a_mark_of_byte_order_is_no_part_of_the_first_column(tmp_path: Path) -> None:
    found, _ = read_tables(folder(tmp_path, TWO_BLOCKS.encode("utf-8-sig"), ONE_BOUNDARY.encode()))
    assert found["a"].blocks == 2


@pytest.mark.parametrize(
    ("latency", "complaint"),
    [
        (b"", f"{LATENCY_FILE}: column 'batch' is missing"),
        (LATENCY.encode(), f"{LATENCY_FILE}: has no row"),
        (b"\xff\xfe\x00", f"{LATENCY_FILE}: is not a text file"),
        (f"{LATENCY}a,L4,1,0,1,1e300\n".encode(), "no usable cells.*latency nan at block 0"),
        (f"{LATENCY}a,L4,1,0,999999999999,5\n".encode(), "line 2, batch: 1e.12 is not within 1"),
        (f"{LATENCY}a,L4,1,999999999,1,5\n".encode(), "line 2, block: 1e.09 is not within 0"),
        (f"{LATENCY}a,L4,1,-1,1,5\n".encode(), "line 2, block: -1 is not within 0 and 999"),
        (f"{LATENCY}a,L4,5,0,1,5\n".encode(), "line 2, vgpu_divisor: 5 is not within 1 and 4"),
        (f"{LATENCY},L4,1,0,1,5\n".encode(), "line 2, model: is empty"),
        (f"{LATENCY}a,,1,0,1,5\n".encode(), "line 2, gpu_class: is empty"),
        (f"{LATENCY}a,L4\n".encode(), "line 2, vgpu_divisor: '' is no whole number"),
        (LATENCY.encode() + b"a" * 200_000, "line 1: not CSV: field larger"),
    ],
)
def test_latencies_that_cannot_be_used_are_named(
    tmp_path: Path, latency: bytes, complaint: str
) -> None:
    with pytest.raises(InputError, match=complaint):
        read_tables(folder(tmp_path, latency, ONE_BOUNDARY.encode()))


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ("a,0,-1", "line 2, bytes_per_sample: -1 is not within 0 and"),
        ("a,0," + "9" * 40, "line 2, bytes_per_sample: 1e.40 is not within"),
        ("a,-3,5", "line 2, after_block: -3 is not within"),
        ("a,1,5", "model 'a': no bytes after block 0"),
    ],
)
def test_boundaries_that_cannot_be_used_are_named(tmp_path: Path, row: str, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        read_tables(folder(tmp_path, TWO_BLOCKS.encode(), f"{BOUNDARY}{row}\n".encode()))


def test_tables_that_cannot_be_written_leave_those_that_were_there(tmp_path: Path) -> None:
    write_tables(tmp_path, {"net": profile()})
    before = (tmp_path / LATENCY_FILE).read_text()
    (tmp_path / BOUNDARY_FILE).unlink()
    (tmp_path / BOUNDARY_FILE).mkdir()
    with pytest.raises(InputError, match=rf"{BOUNDARY_FILE}: cannot be written"):
        write_tables(tmp_path, {"net": profile()})
    assert (tmp_path / LATENCY_FILE).read_text() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == [LATENCY_FILE, BOUNDARY_FILE]
