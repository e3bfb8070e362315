"""Tables of interference: joined, written and read again, complaints name file, line and column."""

from pathlib import Path

import pytest

from flows.preparation.interference import tables
from flows.preparation.interference.stored_tables import read_folder
from flows.preparation.profiling import csv_tables
from triton_backend.contract.errors import InputError
from triton_backend.contract.profiles import InterferenceModel

LATENCY = """model,gpu_class,vgpu_percent,block,batch,latency_us
a,G,40,0,1,100
a,G,40,1,1,100
b,G,60,0,2,400
"""
UTILISATION = """model,gpu_class,vgpu_percent,block,batch,l2_percent,dram_percent
a,G,40,0,1,10,20
a,G,40,1,1,30,40
b,G,60,0,2,50,5
"""
PAIRS = """model_1,model_2,batch_1,batch_2,percent_1,percent_2,latency_1_us,latency_2_us
a,b,1,2,40,60,220,500
b,a,2,1,60,40,480,
a,c,1,2,40,60,300,300
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in (
        (csv_tables.LATENCY_FILE, LATENCY),
        (csv_tables.BOUNDARY_FILE, "model,after_block,bytes_per_sample\na,0,8\n"),
        (csv_tables.UTILISATION_FILE, UTILISATION),
        (tables.PAIRS_FILE, PAIRS),
    ):
        (tmp_path / name).write_text(text)
    return tmp_path


def test_pairs_join_latencies_and_utilisations(folder: Path) -> None:
    found = read_folder(folder)
    rows, unknown = tables.pair_rows(found.pairs, found.profiles, "G")
    assert rows.slowdown == pytest.approx([1.1, 1.25, 1.2])
    assert rows.features[0] == pytest.approx([0.2, 0.5, 0.3, 0.05])
    assert rows.features[1] == pytest.approx([0.5, 0.2, 0.05, 0.3])
    assert rows.pair.tolist() == [0, 0, 0]  # measured in either order, it is one pair
    assert unknown == 2


def test_models_survive_their_file(tmp_path: Path) -> None:
    bare = InterferenceModel(
        c1_l2_self=0.1, c2_l2_other=0.2, c3_dram_self=0.3, c4_dram_other=0.4, c5=1 / 3
    )
    full = InterferenceModel(
        c1_l2_self=0, c2_l2_other=0, c3_dram_self=0, c4_dram_other=0, c5=1.1, residuals=(0.1,) * 6
    )
    tables.write_models(tmp_path / "interference.csv", {"G": bare, "H": full})
    assert tables.read_models(tmp_path / "interference.csv") == {"G": bare, "H": full}


@pytest.mark.parametrize(
    ("file", "old", "new", "complaint"),
    [
        ("block_latency_us.csv", "b,G,60", "b,H,60", "pairs.csv, line 2, gpu_class: is missing"),
        ("utilisation.csv", ",G,", ",H,", "pairs: none of class 'G' whose sides"),
        ("pairs.csv", "a,b,1,2,40,60", "a,b,1,2,40,x", "line 2, percent_2: 'x' is no whole number"),
        ("pairs.csv", "percent_2", "other", "column 'percent_2' is missing"),
        ("pairs.csv", "a,b,1", "z,b,1", ""),
    ],
)
def test_bad_tables_are_named(folder: Path, file: str, old: str, new: str, complaint: str) -> None:
    path = folder / file
    path.write_text(path.read_text().replace(old, new))

    def read() -> None:
        found = read_folder(folder)
        tables.pair_rows(found.pairs, found.profiles, "G")

    if not complaint:
        read()  # the other rows do
        return
    with pytest.raises(InputError, match=complaint):
        read()
