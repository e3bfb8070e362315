"""The figures of the Symphony paper, from its tables; a folder without them is refused."""

from pathlib import Path

import numpy as np
import pytest

from scripts.paper.symphony.study import hours_of, main
from triton_backend.contract.errors import InputError

TABLE_2 = """\
model,gpus,alpha_ms,beta_ms,slo_ms,nocoord_batch,nocoord_rps,staggered_batch,staggered_rps,symphony_rps
ResNet50,8,1.053,5.072,25,7,4501,16,5839,5264
"""


def test_a_folder_without_the_tables_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--data", str(tmp_path), "--only", "idle"])
    assert ended.value.code == 2
    assert "table2_theory_and_measured.csv: no such file" in capsys.readouterr().err


def test_an_unknown_figure_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--data", str(tmp_path), "--only", "figure99"])
    assert "'figure99' is none of table2" in capsys.readouterr().err


def test_a_day_is_read_in_hours_of_the_large_series(tmp_path: Path) -> None:
    rows = ["at,small,large", *(f"t,{1},{20 + 10 * (i // 12 % 2)}" for i in range(2 * 288))]
    path = tmp_path / "volume.csv"
    path.write_text("\n".join(rows))
    assert np.allclose(hours_of(path, 2), [[0.8, 1.2] * 12] * 2)
    with pytest.raises(InputError, match="has 2 days of 1 series, too few"):
        hours_of(path, 3)
    with pytest.raises(InputError, match="is no table of volumes"):
        hours_of(tmp_path / "none.csv", 1)


@pytest.mark.slow
def test_use_of_gpus_is_in_proportion_to_load(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "table2_theory_and_measured.csv").write_text(TABLE_2)
    arguments = ["--data", str(tmp_path), "--only", "idle", "--seconds", "2", "--seeds", "1"]
    assert main([*arguments, "--out", str(tmp_path / "figures.json")]) == 0
    assert "idle fraction" in capsys.readouterr().out
    assert (tmp_path / "figures.json").exists()
