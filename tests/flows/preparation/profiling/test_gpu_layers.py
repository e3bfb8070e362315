"""ONNX nodes of an engine's layers."""

import json
from pathlib import Path

import onnx
import pytest

from flows.cli.main import run
from flows.preparation.building.tensorrt.build import build_engines
from flows.preparation.building.tensorrt.requests import EngineRequest, EngineSettings
from flows.preparation.graphs.examples import write_example
from flows.preparation.profiling.gpu_layers import compare_cuts, gpu_layer_times_us
from flows.preparation.splitting.graph import read_layers
from flows.preparation.splitting.layer_times import write_times
from flows.preparation.splitting.model import SplitModel
from flows.preparation.splitting.split import split_model
from tests.flows.preparation.building.tensorrt import stage_models as models
from triton_backend.contract.errors import InputError
from triton_backend.runtimes.tensorrt.layers import (
    EngineDescription,
    EngineLayer,
    description_from_inspector,
    description_from_log,
    node_times_us,
)
from triton_backend.runtimes.tensorrt.library import LogLine


def layer(name: str, *nodes: str, profile: int = 0) -> EngineLayer:
    return EngineLayer(name=name, kind="kgen", nodes=nodes, profile=profile)


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> SplitModel:
    folder = tmp_path_factory.mktemp("layers")
    source = write_example("squeezenet", folder / "squeezenet.onnx")
    return split_model(source, name="squeezenet", out=folder / "models", blocks=6, max_batch=2)


@pytest.fixture(scope="module")
def description(split: SplitModel) -> EngineDescription:
    """Layers of a real engine of the whole model, at two batch sizes."""
    request = EngineRequest(
        stage="whole", onnx=split.model_path, gpu_class="L4-test", batches=(1, 4)
    )
    settings = EngineSettings(library="tensorrt-rtx")
    (result,) = build_engines([request], split.folder / "art", settings).results
    return EngineDescription.from_dict(json.loads((result.folder / "layers.json").read_text()))


@pytest.mark.slow
def test_every_profile_of_an_engine_does_every_node_that_computes(
    split: SplitModel, description: EngineDescription
) -> None:
    graph = onnx.load(split.model_path).graph
    # Concat needs no kernel: its inputs are written in place. Dropout does nothing.
    silent = {n.name for n in graph.node if n.op_type in {"Concat", "Dropout", "Reshape"}}
    expected = {n.name for n in read_layers(graph).nodes} - silent
    for profile in (0, 1):
        done = {name for x in description.of_profile(profile) for name in x.nodes}
        assert expected <= done <= expected | silent


@pytest.mark.slow
def test_layers_that_only_wait_do_no_node(description: EngineDescription) -> None:
    waiting = [x for x in description.layers if not x.works]
    assert waiting
    assert not any(x.nodes for x in waiting)


@pytest.mark.slow
def test_times_of_fused_layers_add_up_over_the_models_layers(
    split: SplitModel, description: EngineDescription
) -> None:
    layers = description.of_profile(0)
    times = {x.name: 10.0 + i for i, x in enumerate(layers) if x.works}
    mapped = gpu_layer_times_us(split, layers, times)
    assert len(mapped) == split.cuts[-1]
    assert sum(mapped) == pytest.approx(sum(times.values()))


@pytest.mark.slow
def test_cuts_follow_the_times_they_are_given(
    split: SplitModel, description: EngineDescription
) -> None:
    layers = description.of_profile(0)
    flat = gpu_layer_times_us(split, layers, {x.name: 10.0 for x in layers if x.works})
    found = compare_cuts(split, flat)
    assert len(found.gpu) == len(split.cuts)
    assert sum(found.gpu_shares) == pytest.approx(1.0)
    assert max(found.gpu_shares) <= max(found.shares) + 1e-9
    late = tuple(100.0 * (position > len(flat) // 2) + 1.0 for position in range(len(flat)))
    assert compare_cuts(split, late).gpu[1] > found.gpu[1]
    assert found.to_dict()["split_at"] == list(split.cuts)


@pytest.mark.slow
def test_a_model_is_split_by_the_times_of_an_engine(
    split: SplitModel, description: EngineDescription, tmp_path: Path
) -> None:
    layers = description.of_profile(0)
    times = gpu_layer_times_us(split, layers, {x.name: 10.0 for x in layers if x.works})
    file = tmp_path / "times.json"
    write_times(file, read_layers(onnx.load(split.model_path).graph), times)
    source = write_example("squeezenet", tmp_path / "squeezenet.onnx")
    again = split_model(
        source, name="squeezenet", out=tmp_path, blocks=6, max_batch=2, layer_times=file
    )
    assert again.cuts == compare_cuts(split, times).gpu


@pytest.mark.slow
def test_layers_cannot_be_measured_without_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    models.convolutions(tmp_path / "tiny.onnx")
    assert run(["split", "tiny.onnx", "--blocks", "2", "--max-batch", "2"]) == 0
    assert run(["layer-times", "tiny", "--class", "L4", "--library", "tensorrt-rtx"]) == 2
    assert "GPU: " in capsys.readouterr().err
    assert not Path("layer_times.json").exists()


def test_inspectors_json_gives_the_same_layers_as_the_log() -> None:
    table = (
        "Layers:\n"
        "Name: n0_myl0_1, LayerType: correlation, Inputs: [], TacticName: , StreamId: 0,"
        " Metadata: [ONNX Layer: n0]\x1f[ONNX Layer: n1]\n"
        "Name: n2 [profile 1]_myl1_2, LayerType: maxpool, Inputs: [], Metadata: [ONNX Layer: n2]\n"
        "\nI/O Tensors:\n"
        " Name: x, IOMode: Input, DataType: Float, Dimensions: [-1,3], Location: Device\n"
        " Name: y, IOMode: Output, DataType: Half, Dimensions: [1,3], Location: Device\n"
    )
    log = description_from_log(
        [
            LogLine(severity="INFO", text="hello"),
            LogLine(severity="VERBOSE", text=table),
        ]
    )
    inspector = json.dumps(
        {
            "Layers": [
                {
                    "Name": "n0_myl0_1",
                    "LayerType": "correlation",
                    "Metadata": "[ONNX Layer: n0]\x1f[ONNX Layer: n1]",
                },
                {
                    "Name": "n2 [profile 1]_myl1_2",
                    "LayerType": "maxpool",
                    "Metadata": "[ONNX Layer: n2]",
                },
            ],
            "Bindings": ["x", "y"],
        }
    )
    assert log is not None
    assert log.layers == description_from_inspector(inspector).layers
    assert [(x.nodes, x.profile) for x in log.layers] == [(("n0", "n1"), 0), (("n2",), 1)]
    assert [(t.name, t.dtype, t.shape) for t in log.tensors] == [
        ("x", "FP32", (-1, 3)),
        ("y", "FP16", (1, 3)),
    ]


def test_log_without_a_table_describes_nothing() -> None:
    assert description_from_log([LogLine(severity="INFO", text="done")]) is None


@pytest.mark.parametrize("text", ["", "[]", '{"Layers": ["only a name"]}'])
def test_other_json_is_no_description(text: str) -> None:
    with pytest.raises(InputError, match="not a detailed description"):
        description_from_inspector(text)


def test_a_layers_time_is_shared_by_weight_or_equally() -> None:
    layers = [layer("a", "conv", "relu"), layer("b", "pool")]
    times = {"a": 12.0, "b": 3.0}
    nodes = ["conv", "relu", "pool", "dropout"]
    assert node_times_us(layers, times, nodes) == {
        "conv": 6.0,
        "relu": 6.0,
        "pool": 3.0,
        "dropout": 0.0,
    }
    weighed = node_times_us(layers, times, nodes, weights={"conv": 3.0, "relu": 1.0})
    assert (weighed["conv"], weighed["relu"]) == (9.0, 3.0)


def test_copies_between_formats_go_to_the_layer_they_are_there_for() -> None:
    layers = [layer("copy"), layer("a", "conv"), layer("wait"), layer("b", "pool"), layer("out")]
    times = {"copy": 1.0, "a": 10.0, "wait": 2.0, "b": 5.0, "out": 4.0}
    assert node_times_us(layers, times, ["conv", "pool"]) == {"conv": 11.0, "pool": 11.0}


def test_times_of_another_engine_are_refused() -> None:
    with pytest.raises(InputError, match="no such layer: c"):
        node_times_us([layer("a", "conv")], {"c": 1.0}, ["conv"])
    with pytest.raises(InputError, match="node 'conv' is not in the stage"):
        node_times_us([layer("a", "conv")], {"a": 1.0}, ["other"])
