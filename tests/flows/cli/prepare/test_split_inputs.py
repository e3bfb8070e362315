"""Sizes and values of a model's inputs, from options and from workload.yaml."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.flows.cli.conftest import Command
from tests.flows.preparation.splitting.test_inputs import embedding_net, picture_net

SPLIT = ("--blocks", "2", "--max-batch", "2")


@pytest.mark.usefixtures("project")
def test_a_model_with_open_sizes_is_split_for_those_given(poolpipe: Command) -> None:
    picture_net(Path("net.onnx"))
    refused = poolpipe("split", "net.onnx", *SPLIT)
    assert (refused.code, refused.out) == (2, "")
    assert refused.err.startswith("poolpipe: net.onnx: open sizes in x [batch, 4, height, width]")
    assert refused.err.count("\n") == 1
    found = poolpipe("split", "net.onnx", *SPLIT, "--input-shape", "x=4x8x8", "--json").document
    assert [spec["shape"] for spec in found["inputs"]] == [[-1, 4, 8, 8]]
    assert (found["unproven"], found["input_ranges"]) == ([], {})


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--input-shape", "x=4x"), "--input-shape: 'x=4x' is not NAME=SIZExSIZE"),
        (("--input-shape", "x=4x8x0"), "--input-shape: 'x=4x8x0' has a size of 0"),
        (("--input-range", "x=1"), "--input-range: 'x=1' is not NAME=LOW..HIGH"),
        (("--input-shape", "x=4x8x8", "--samples", "none.npz"), "none.npz: no .npz file there"),
        (("--workload", "workload.yaml"), "workload.yaml: has no model 'net2'"),
    ],
)
def test_options_that_do_not_fit_end_in_one_line(
    poolpipe: Command, options: tuple[str, ...], said: str
) -> None:
    picture_net(Path("net2.onnx"))
    ran = poolpipe("split", "net2.onnx", *SPLIT, *options)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"poolpipe: {said}")
    assert ran.err.count("\n") == 1


@pytest.mark.usefixtures("project")
def test_a_workload_says_sizes_ranges_and_samples_of_its_models(poolpipe: Command) -> None:
    picture_net(Path("net.onnx"))
    embedding_net(Path("words.onnx"), rows=50)
    x = np.random.default_rng(0).standard_normal((2, 4, 8, 8)).astype(np.float32)
    np.savez("pictures.npz", x=x)
    models = [
        {"name": "net", "slo_ms": 100, "weight": 1, "input_shapes": {"x": "4x8x8"}},
        {"name": "words", "slo_ms": 100, "weight": 1, "input_ranges": {"ids": "0..9"}},
    ]
    models[0]["samples"] = "pictures.npz"
    Path("load.yaml").write_text(json.dumps({"models": models}))
    stated = (*SPLIT, "--workload", "load.yaml", "--json")
    net = poolpipe("split", "net.onnx", *stated).document
    assert [spec["shape"] for spec in net["inputs"]] == [[-1, 4, 8, 8]]
    with np.load(Path(net["folder"]) / "samples.npz") as kept:
        np.testing.assert_array_equal(kept["inputs/x"], x)
    words = poolpipe("split", "words.onnx", *stated).document
    assert words["input_ranges"] == {"ids": [0, 9]}
    other = poolpipe("split", "words.onnx", *stated, "--input-range", "ids=2..3").document
    assert other["input_ranges"] == {"ids": [2, 3]}


@pytest.mark.usefixtures("project")
def test_the_quickstart_refuses_open_sizes_before_it_starts(poolpipe: Command) -> None:
    picture_net(Path("net.onnx"))
    own = ("quickstart", "--model", "net.onnx", "--slo-ms", "100")
    for options, said in (
        ((), "net.onnx: open sizes in x [batch, 4, height, width]; give --input-shape"),
        (("--input-shape", "z=4x8x8"), "--input-shape: no model has an input 'z'; inputs: ['x']"),
    ):
        ran = poolpipe(*own, *options)
        assert (ran.code, ran.out) == (2, "")
        assert ran.err.startswith(f"poolpipe: {said}")
        assert ran.err.count("\n") == 1
    ran = poolpipe("quickstart", "--input-shape", "x=4x8x8")
    assert (ran.code, "goes with --model" in ran.err) == (2, True)


@pytest.mark.usefixtures("project")
def test_a_plan_for_another_size_than_the_split_one_is_refused(poolpipe: Command) -> None:
    picture_net(Path("net.onnx"))
    assert poolpipe("split", "net.onnx", *SPLIT, "--input-shape", "x=4x8x8").code == 0
    model = {"name": "net", "slo_ms": 100, "weight": 1}
    for shapes, said in (
        ({"x": "4x16x16"}, "model 'net': was split for x=4x8x8, not 4x16x16; split it again"),
        ({"z": "4x8x8"}, "model 'net': has no input 'z'; its inputs: x"),
    ):
        Path("load.yaml").write_text(json.dumps({"models": [{**model, "input_shapes": shapes}]}))
        ran = poolpipe("plan", "--cluster", "cluster.yaml", "--workload", "load.yaml")
        assert (ran.code, ran.out) == (2, "")
        assert ran.err == f"poolpipe: load.yaml, {said}\n"
