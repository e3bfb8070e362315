"""Sizes and values of a model's inputs, from options and from workload.yaml."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.flows.cli.conftest import Command
from tests.flows.preparation.splitting.test_inputs import embedding_net, picture_net

SPLIT = ("--blocks", "2", "--max-batch", "2")


@pytest.mark.usefixtures("project")
@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (".", ".: is a folder; name the ONNX file in it"),
        ("a b", "a b: is a folder; name the ONNX file in it"),
        ("none é.onnx", "none é.onnx: no such file"),
    ],
)
def test_what_is_no_file_is_said_before_its_name(
    poolpipe: Command, given: str, reason: str
) -> None:
    Path("a b").mkdir()
    refused = poolpipe("split", given)
    assert (refused.code, refused.err) == (2, f"poolpipe: {reason}\n")


def test_a_file_whose_name_is_no_models_is_refused_with_the_option(poolpipe: Command) -> None:
    embedding_net(Path("Mein Netz.onnx"))
    refused = poolpipe("split", "Mein Netz.onnx", *SPLIT)
    assert (refused.code, refused.out) == (2, "")
    assert refused.err.startswith("poolpipe: Mein Netz.onnx: 'Mein Netz' is no name: ")
    assert refused.err.endswith("; give --name\n")
    assert poolpipe("split", "Mein Netz.onnx", *SPLIT, "--name", "netz").code == 0
    refused = poolpipe("split", "Mein Netz.onnx", *SPLIT, "--name", "mein netz")
    assert refused.err.startswith("poolpipe: model name: 'mein netz' is no name: ")


@pytest.mark.usefixtures("project")
def test_fewer_blocks_than_asked_for_are_said_so(poolpipe: Command) -> None:
    picture_net(Path("net.onnx"))
    size = ("--input-shape", "x=4x8x8", "--max-batch", "2")
    found = poolpipe("split", "net.onnx", *size, "--blocks", "9999").out
    most = json.loads(poolpipe("split", "net.onnx", *size, "--blocks", "9999", "--json").out)
    assert f"net: 9999 blocks were asked for, it can be cut into {most['blocks']}\n" in found
    all_of_them = poolpipe("split", "net.onnx", *size, "--blocks", str(most["blocks"])).out
    assert "asked for" not in all_of_them


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
        (("--input-shape", "x=4x8x8", "--samples", "none.npz"), "none.npz: no such file or folder"),
        (("--name", ""), "model name: is empty"),
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


SIZES = ("--input-shape", "x=4x8x8", "--input-shape", "x=4x8x16")


@pytest.mark.usefixtures("project")
def test_a_repeated_input_is_a_further_size(poolpipe: Command) -> None:
    picture_net(Path("net.onnx"))
    found = poolpipe("split", "net.onnx", *SPLIT, *SIZES, "--json").document
    assert found["name"] == "net"
    assert [size["name"] for size in found["sizes"]] == ["net@4x8x8", "net@4x8x16"]
    assert [[spec["shape"] for spec in size["inputs"]] for size in found["sizes"]] == [
        [[-1, 4, 8, 8]],
        [[-1, 4, 8, 16]],
    ]


@pytest.mark.usefixtures("project")
def test_a_workload_says_the_sizes_of_a_model(poolpipe: Command) -> None:
    picture_net(Path("net.onnx"))
    sizes = [{"input_shapes": {"x": shape}} for shape in ("4x8x8", "4x16x8")]
    model = {"name": "net", "slo_ms": 100, "sizes": sizes}
    Path("load.yaml").write_text(json.dumps({"models": [model]}))
    stated = (*SPLIT, "--workload", "load.yaml")
    found = poolpipe("split", "net.onnx", *stated, "--json").document
    assert [size["name"] for size in found["sizes"]] == ["net@4x8x8", "net@4x16x8"]
    sizes[1]["input_shapes"] = {"x": "4x8x32"}
    Path("load.yaml").write_text(json.dumps({"models": [model]}))
    ran = poolpipe("plan", "--cluster", "cluster.yaml", "--workload", "load.yaml")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.count("\n") == 1
    assert "net@4x8x32" in ran.err


@pytest.mark.usefixtures("project")
def test_a_workload_says_the_sizes_of_a_modules_model(poolpipe: Command) -> None:
    picture_net(Path("net.onnx"))
    sizes = [{"input_shapes": {"x": shape}} for shape in ("4x8x8", "4x16x8")]
    modules = [
        {"name": "fit", "model": "fit", "inputs": {"x": "request.x"}},
        {"name": "net", "model": "net", "inputs": {"x": "fit.x"}, "sizes": sizes},
    ]
    application = {"name": "app", "slo_ms": 100, "modules": modules}
    Path("load.yaml").write_text(json.dumps({"applications": [application]}))
    found = poolpipe("split", "net.onnx", *SPLIT, "--workload", "load.yaml", "--json").document
    assert [size["name"] for size in found["sizes"]] == ["net@4x8x8", "net@4x16x8"]


@pytest.mark.usefixtures("project")
def test_samples_are_those_of_each_size(poolpipe: Command) -> None:
    picture_net(Path("net.onnx"))
    rng = np.random.default_rng(0)
    Path("samples").mkdir()
    small = rng.standard_normal((2, 4, 8, 8)).astype(np.float32)
    np.savez("samples/small.npz", x=small)
    asked = ("split", "net.onnx", *SPLIT, *SIZES, "--samples", "samples", "--json")
    ran = poolpipe(*asked)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == "poolpipe: samples: has no samples of the size x=4x8x16\n"
    np.savez("samples/wide.npz", x=rng.standard_normal((3, 4, 8, 16)).astype(np.float32))
    first, _ = poolpipe(*asked).document["sizes"]
    with np.load(Path(first["folder"]) / "samples.npz") as kept:
        np.testing.assert_array_equal(kept["inputs/x"], small)


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--input-shape", "x=4x8x8") * 2, "--input-shape: the size x=4x8x8 is given twice"),
        (
            (*SIZES, *("--input-shape", "z=1") * 3),
            "--input-shape: gives 'x' 2 times, 'z' 3 times: as many for each input",
        ),
    ],
)
def test_sizes_that_do_not_go_together_are_refused(
    poolpipe: Command, options: tuple[str, ...], said: str
) -> None:
    picture_net(Path("net.onnx"))
    ran = poolpipe("split", "net.onnx", *SPLIT, *options)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"poolpipe: {said}")
    assert ran.err.count("\n") == 1


@pytest.mark.usefixtures("project")
def test_the_quickstart_takes_a_share_for_every_size(poolpipe: Command) -> None:
    picture_net(Path("net.onnx"))
    own = ("quickstart", "--model", "net.onnx", "--slo-ms", "100", *SIZES)
    for shares, said in (
        (("0.7",), "--size-share: 1 shares, and --input-shape gives 2 sizes"),
        (("0.7", "0.7"), "--size-share: shares are positive and add up to 1, not 0.7 + 0.7"),
    ):
        ran = poolpipe(*own, *(part for share in shares for part in ("--size-share", share)))
        assert (ran.code, ran.out) == (2, "")
        assert ran.err.startswith(f"poolpipe: {said}")
        assert ran.err.count("\n") == 1
