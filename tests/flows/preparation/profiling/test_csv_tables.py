"""Profile tables as CSV files: there and back, and what is wrong with one."""

from pathlib import Path

import numpy as np
import pytest

from flows.preparation.profiling.csv_tables import (
    BOUNDARY_FILE,
    LATENCY_FILE,
    MEMORY_FILE,
    UTILISATION_FILE,
    read_tables,
    write_tables,
)
from tests.flows.planning.small import profile
from triton_backend.contract.errors import InputError
from triton_backend.contract.profiles import ProfileKey
from triton_backend.contract.shares import LOADED, SOLO

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
    assert found["net"].tables.keys() == written.tables.keys()
    for key, table in written.tables.items():
        assert np.array_equal(found["net"].tables[key].latency_us, table.latency_us)


def test_a_table_of_some_batches_is_written_as_it_was_measured(tmp_path: Path) -> None:
    rows = "".join(f"a,fast,1,0,{batch},{10.0 * batch}\n" for batch in (1, 2, 4, 8))
    text = "model,gpu_class,vgpu_divisor,block,batch,latency_us\n" + rows
    found, warnings = read_tables(folder(tmp_path, text.encode(), BOUNDARY.encode()))
    assert warnings == []
    assert found["a"].tables[ProfileKey("fast", 300)].latency_us.tolist() == [
        [10, 20, 40, 40, 80, 80, 80, 80]
    ]
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


SIZES = "model,gpu_class,vgpu_divisor,vgpu_percent,basis,block,batch,latency_us\n"
MIXED = SIZES + (
    "a,G,1,,loaded,0,1,10.0\na,G,2,,loaded,0,1,25.0\na,G,,50,solo,0,1,20.0\na,G,,20,loaded,0,1,70.0\n"
)


def test_shares_and_bases_are_kept_apart(tmp_path: Path) -> None:
    found, warnings = read_tables(folder(tmp_path, MIXED.encode(), BOUNDARY.encode()))
    assert warnings == []
    tables = {key: float(t.latency_us[0, 0]) for key, t in found["a"].tables.items()}
    assert tables == {
        ProfileKey("G", 300, LOADED): 10,
        ProfileKey("G", 150, LOADED): 25,
        ProfileKey("G", 150, SOLO): 20,
        ProfileKey("G", 60, LOADED): 70,
    }
    assert write_tables(tmp_path / "again", found)[0].read_text() == MIXED


def test_percents_are_alone_and_utilisation_stands_beside_them(tmp_path: Path) -> None:
    latency = "model,gpu_class,vgpu_percent,block,batch,latency_us\n" + "".join(
        f"a,G,{percent},0,{batch},{1000.0 * batch / percent}\n"
        for percent in (40, 20)
        for batch in (1, 2, 4)
    )
    at = folder(tmp_path, latency.encode(), BOUNDARY.encode())
    head = "model,gpu_class,vgpu_percent,block,batch,l2_percent,dram_percent\n"
    (at / UTILISATION_FILE).write_text(f"{head}a,G,40,,4,50.0,25.0\nb,G,40,0,1,1.0,1.0\n")
    found, warnings = read_tables(at)
    assert warnings == []
    assert {key.basis for key in found["a"].tables} == {SOLO}
    used = found["a"].utilisation("G", 120)
    assert used is not None
    assert [u.tolist() for u in used] == [
        [0.5] * 4,
        [0.25] * 4,
    ]  # the latency of the next larger batch
    assert found["a"].utilisation("G", 60) is None
    files = write_tables(tmp_path / "again", found)
    assert files[0].read_text() == latency
    rows = "".join(f"a,G,40,0,{batch},50.0,25.0\n" for batch in (1, 2, 4))
    assert files[2].read_text() == head + rows


def test_parts_of_mig_slices_are_spelled_by_slice_and_processes(tmp_path: Path) -> None:
    latency = (
        "model,gpu_class,vgpu_mig,block,batch,latency_us\n"
        "a,G,3g,0,1,10.0\na,G,3g/2,0,1,15.0\na,G,1g,0,1,20.0\n"
    )
    found, warnings = read_tables(folder(tmp_path, latency.encode(), BOUNDARY.encode()))
    assert warnings == []
    assert {key.share: key.basis for key in found["a"].tables} == {128: SOLO, 64: SOLO, 41: SOLO}
    assert write_tables(tmp_path / "again", found)[0].read_text() == latency
    (tmp_path / LATENCY_FILE).write_text(latency + "a,G,6g,0,1,20.0\n")
    with pytest.raises(InputError, match="vgpu_mig: '6g' is none of 1g, 2g, 3g, 4g, 7g"):
        read_tables(tmp_path)


@pytest.mark.parametrize(
    ("file", "row", "complaint"),
    [
        (LATENCY_FILE, "a,G,2,50,,0,1,5", "line 2: both vgpu_divisor and vgpu_percent are given"),
        (LATENCY_FILE, "a,G,,101,,0,1,5", "line 2, vgpu_percent: 101 is not within 1 and 100"),
        (LATENCY_FILE, "a,G,,50,busy,0,1,5", "line 2, basis: 'busy' is none of loaded, solo"),
        (UTILISATION_FILE, "a,G,50,0,1,101,5", "line 2, l2_percent: '101' is not within 0 and 100"),
        (UTILISATION_FILE, "a,G,50,0,1,5,", "line 2, dram_percent: '' is not within 0 and 100"),
        (UTILISATION_FILE, "a,,50,0,1,5,5", "line 2, gpu_class: is empty"),
    ],
)
def test_bad_shares_and_utilisations_are_named(
    tmp_path: Path, file: str, row: str, complaint: str
) -> None:
    at = folder(tmp_path, MIXED.encode(), BOUNDARY.encode())
    heads = {
        LATENCY_FILE: SIZES,
        UTILISATION_FILE: "model,gpu_class,vgpu_percent,block,batch,l2_percent,dram_percent\n",
    }
    (at / file).write_text(f"{heads[file]}{row}\n")
    with pytest.raises(InputError, match=rf"{file}, {complaint}"):
        read_tables(at)


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ("a,0,1,", "has no row of block 1"),
        ("a,0,1,\na,1,1,\na,2,1,", "there is no block 2"),
        ("a,0,x,", "line 2, memory_gib: 'x' is no number of GiB"),
        ("a,0,nan,", "line 2, memory_gib: 'nan' is no number of GiB"),
        ("a,0,-1,", "line 2, memory_gib: '-1' is no number of GiB"),
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
        (
            f"{LATENCY}a,L4,1,0,1,1e300\n".encode(),
            r"line 2, latency_us: '1e300' is no latency in µs",
        ),
        (f"{LATENCY}a,L4,1,0,1,3,5\n".encode(), "line 2: 7 cells, the head has 6"),
        (f"{LATENCY}a,L4,1,0,1,inf\n".encode(), "line 2, latency_us: 'inf' is no latency in µs"),
        (f"{LATENCY}a,L4,1,0,1,nan\n".encode(), "line 2, latency_us: 'nan' is no latency in µs"),
        (f"{LATENCY}a,L4,1,0,1,fast\n".encode(), "line 2, latency_us: 'fast' is no latency in µs"),
        (f"{LATENCY}a,L4,1,0,1,0\n".encode(), "line 2, latency_us: '0' is no latency in µs"),
        (f"{LATENCY}a,L4,1,0,1,-7\n".encode(), "line 2, latency_us: '-7' is no latency in µs"),
        (f"{LATENCY}a,L4,1,0,1,\n".encode(), "no usable cells.*no latency at block 0, batch 1"),
        (f"{LATENCY}a,L4,1,0,999999999999,5\n".encode(), "line 2, batch: 1e.12 is not within 1"),
        (f"{LATENCY}a,L4,1,999999999,1,5\n".encode(), "line 2, block: 1e.09 is not within 0"),
        (f"{LATENCY}a,L4,1,-1,1,5\n".encode(), "line 2, block: -1 is not within 0 and 999"),
        (f"{LATENCY}a,L4,5,0,1,5\n".encode(), "line 2, vgpu_divisor: 5 is not within 1 and 4"),
        (f"{LATENCY},L4,1,0,1,5\n".encode(), "line 2, model: is empty"),
        (f"{LATENCY}a,,1,0,1,5\n".encode(), "line 2, gpu_class: is empty"),
        (f"{LATENCY}a,L4\n".encode(), "line 2: neither vgpu_divisor nor vgpu_percent"),
        (LATENCY.encode() + b"a" * 200_000, "line 1: not CSV: field larger"),
        (b"a" * 200_000, f"{LATENCY_FILE}, line 0: not CSV: field larger"),
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


@pytest.mark.parametrize(
    ("latency", "boundary", "complaint"),
    [
        ("a,L4,1,0,1,6\n", "", r"line 4, latency_us: 6.0, but 5.0 is stated before"),
        ("", "a,0,32\n", r"line 3, bytes_per_sample: 32, but 16 is stated before"),
        ("", "a,7,32\n", r"boundary_bytes.csv, model 'a': bytes after block 7, of 2 blocks"),
    ],
)
def test_rows_that_contradict_others_are_named(
    tmp_path: Path, latency: str, boundary: str, complaint: str
) -> None:
    at = folder(tmp_path, (TWO_BLOCKS + latency).encode(), (ONE_BOUNDARY + boundary).encode())
    with pytest.raises(InputError, match=complaint):
        read_tables(at)


def test_a_row_may_be_said_twice(tmp_path: Path) -> None:
    twice = (TWO_BLOCKS + "a,L4,1,0,1,5\n").encode(), (ONE_BOUNDARY + "a,0,16\n").encode()
    found, warnings = read_tables(folder(tmp_path, *twice))
    assert warnings == []
    assert found["a"].boundary_bytes == (16,)


def test_tables_that_cannot_be_written_leave_those_that_were_there(tmp_path: Path) -> None:
    write_tables(tmp_path, {"net": profile()})
    before = (tmp_path / LATENCY_FILE).read_text()
    (tmp_path / BOUNDARY_FILE).unlink()
    (tmp_path / BOUNDARY_FILE).mkdir()
    with pytest.raises(InputError, match=rf"{BOUNDARY_FILE}: cannot be written"):
        write_tables(tmp_path, {"net": profile()})
    assert (tmp_path / LATENCY_FILE).read_text() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == [LATENCY_FILE, BOUNDARY_FILE]
