"""`interference fit` on generated tables."""

import json
from pathlib import Path

import numpy as np

from tests.flows.cli.conftest import Command

MODELS = ("a", "b", "c", "d")
BATCHES = (1, 2, 4)


def write_tables(folder: Path, c5: float) -> None:
    """All pairs of four models in three batches, made by a linear model."""
    random = np.random.default_rng(0)
    cells = [(model, batch) for model in MODELS for batch in BATCHES]
    used = {cell: random.uniform(5, 60, 2) for cell in cells}
    latency = ["model,gpu_class,vgpu_percent,batch,latency_us"]
    latency += [f"{m},G,50,{b},{1000 * b}" for m, b in cells]
    utilisation = ["model,gpu_class,vgpu_percent,batch,l2_percent,dram_percent"]
    utilisation += [f"{m},G,50,{b},{used[m, b][0]},{used[m, b][1]}" for m, b in cells]
    pairs = ["model_1,batch_1,percent_1,model_2,batch_2,percent_2,latency_1_us"]
    for one in cells:
        for other in cells:
            slow = c5 + (0.2 * used[one][1] + 0.5 * used[other][1]) / 100
            pairs.append(f"{one[0]},{one[1]},50,{other[0]},{other[1]},50,{slow * 1000 * one[1]}")
    folder.mkdir()
    for name, lines in (
        ("block_latency_us", latency),
        ("utilisation", utilisation),
        ("pairs", pairs),
    ):
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")


def test_the_model_is_shown_and_written(poolpipe: Command) -> None:
    write_tables(Path("tables"), 0.95)
    answer = poolpipe("interference", "fit", "tables", "--json", "-o", "interference.csv")
    assert answer.code == 0
    found = json.loads(answer.out)
    assert not found["refused"]
    assert abs(found["constants"]["c4_dram_other"] - 0.5) < 1e-6
    assert "\nG," in Path("interference.csv").read_text()
    assert "linear model from" in poolpipe("interference", "fit", "tables").out


def test_bad_input_is_one_line(poolpipe: Command) -> None:
    answer = poolpipe("interference", "fit", "nowhere")
    assert answer.code == 2
    assert answer.err.count("\n") == 1
    assert "block_latency_us.csv" in answer.err
