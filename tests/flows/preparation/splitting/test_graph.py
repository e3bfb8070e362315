"""Cuts are sets of live tensors; only those that carry the batch may be cut."""

from itertools import pairwise
from pathlib import Path

import onnx

from flows.preparation.splitting import split_model
from flows.preparation.splitting.graph import read_layers
from tests.flows.preparation.splitting import tiny_models
from triton_backend.contract.tensors import TensorSpec

SHAPE = (-1, tiny_models.CHANNELS, tiny_models.SIZE, tiny_models.SIZE)


def test_constants_are_no_layers_and_do_not_cross(tmp_path: Path) -> None:
    layers = read_layers(onnx.load(tiny_models.residual_net(tmp_path / "m.onnx")).graph)
    assert [n.op_type for n in layers.nodes][:4] == ["Conv", "Relu", "Mul", "Conv"]
    crossing = {name for p in range(1, len(layers.nodes)) for name in layers.live_at(p)}
    assert crossing == set("abcdefghij")


def test_a_skip_connection_crosses_beside_the_branch(tmp_path: Path) -> None:
    layers = read_layers(onnx.load(tiny_models.residual_net(tmp_path / "m.onnx")).graph)
    assert [layers.live_at(p) for p in (2, 3, 4, 5, 6)] == [
        ("b",),
        ("c",),
        ("c", "d"),
        ("c", "e"),
        ("f",),
    ]


def test_late_inputs_and_early_outputs_cross_every_boundary(tmp_path: Path) -> None:
    split = split_model(
        tiny_models.two_ended(tmp_path / "m.onnx"), name="m", blocks=4, out=tmp_path / "models"
    )
    for specs in split.boundaries:
        assert {"late", "early"} <= {spec.name for spec in specs}
    assert [spec.name for spec in split.inputs] == ["x", "late"]
    assert [spec.name for spec in split.outputs] == ["early", "y"]


def test_boundaries_have_a_free_batch_and_their_bytes(tmp_path: Path) -> None:
    split = split_model(
        tiny_models.chain(tmp_path / "m.onnx"), name="m", blocks=4, out=tmp_path / "models"
    )
    assert split.boundaries == tuple(
        (TensorSpec(name=f"t{i}", dtype="FP32", shape=SHAPE),) for i in range(3)
    )
    floats = tiny_models.CHANNELS * tiny_models.SIZE**2
    assert split.boundary_bytes == (floats * 4,) * 3


def test_blocks_cover_the_layers_in_order(tmp_path: Path) -> None:
    path = tiny_models.residual_net(tmp_path / "m.onnx")
    split = split_model(path, name="m", blocks=5, out=tmp_path / "models")
    layers = read_layers(onnx.load(split.model_path).graph)
    assert split.cuts[0] == 0
    assert split.cuts[-1] == len(layers.nodes)
    assert all(a < b for a, b in pairwise(split.cuts))
    assert split.blocks == 5
    assert len(split.block_times_us) == len(split.block_memory_bytes) == 5
