"""Export torchvision's architectures by both of PyTorch's exporters, without their weights.

The archive is what `run_exports.py` reads. Needs torch, torchvision and onnxscript, which the
project does not depend on, so it runs in an environment of its own that has numpy and onnx too:

    python -m scripts.exports.export_torchvision FILE.zip [--only resnet18 …]
"""

import argparse
import importlib
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import onnx

from scripts.exports.weightless import without_weights

SIDE = 96  # a multiple of 32; the least that all of them take in little time
ARCHITECTURES = (
    "squeezenet1_1",
    "shufflenet_v2_x1_0",
    "mobilenet_v2",
    "mobilenet_v3_large",
    "efficientnet_b0",
    "regnet_y_400mf",
    "resnet18",
    "densenet121",
    "convnext_tiny",
    "swin_t",
    "vit_b_16",
    "deeplabv3_mobilenet_v3_large",
)
SIZED = {"vit_b_16": {"image_size": SIDE}}
WITH_BACKBONE = {"deeplabv3_mobilenet_v3_large": {"weights_backbone": None}}
TEXT = "text_encoder"  # of BERT's kind: tokens of a fixed length, and a mask
TOKENS, WORDS, WIDTH = 32, 1_000, 64
EXPORTERS = ("torchscript", "dynamo")
OPSET = 17


def export(torch: Any, network: Any, given: tuple[Any, ...], exporter: str, path: Path) -> None:
    """One file, with an open batch."""
    if exporter == "dynamo":
        batch = ({0: torch.export.Dim.DYNAMIC},) * len(given)
        torch.onnx.export(network, given, path, dynamo=True, dynamic_shapes=batch)
        return
    names = [f"x{number}" for number in range(len(given))]
    torch.onnx.export(
        network,
        given,
        path,
        dynamo=False,
        opset_version=OPSET,
        input_names=names,
        output_names=["y"],
        dynamic_axes={name: {0: "batch"} for name in (*names, "y")},
    )


def text_encoder(torch: Any) -> Any:
    """Embedded tokens and their places, two layers of attention, the first token's state."""

    class Encoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = torch.nn.Embedding(WORDS, WIDTH)
            self.places = torch.nn.Embedding(TOKENS, WIDTH)
            layer = torch.nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, batch_first=True)
            self.layers = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

        def forward(self, ids: Any, mask: Any) -> Any:
            state = self.words(ids) + self.places(torch.arange(TOKENS))
            return self.layers(state, src_key_padding_mask=mask == 0)[:, 0]

    return Encoder()


def first_of(torch: Any, network: Any) -> Any:
    """The network with the first tensor of its answer, which is a table of names."""

    class First(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network

        def forward(self, x: Any) -> Any:
            return self.inner(x)["out"]

    return First()


def network_of(torch: Any, models: Any, name: str) -> tuple[Any, tuple[Any, ...]]:
    """A network without training, and what to call it with."""
    torch.manual_seed(0)
    if name == TEXT:
        ids = torch.randint(0, WORDS, (2, TOKENS))
        return text_encoder(torch), (ids, torch.ones_like(ids))
    how = SIZED.get(name, {}) | WITH_BACKBONE.get(name, {})
    network = models.get_model(name, weights=None, **how)
    if name in WITH_BACKBONE:
        network = first_of(torch, network)
    return network, (torch.rand(2, 3, SIDE, SIDE),)


def made(torch: Any, models: Any, name: str, exporter: str) -> bytes:
    """An export without weights, and without what names files of this machine."""
    network, given = network_of(torch, models, name)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        path = Path(folder) / "model.onnx"
        export(torch, network.eval(), given, exporter, path)
        model = without_weights(onnx.load(path))
    for node in (*model.graph.node, *(n for f in model.functions for n in f.node)):
        del node.metadata_props[:]
        node.doc_string = ""
    return model.SerializeToString()


def main() -> int:
    """Write the archive; exit code 1 where an exporter fails."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, metavar="FILE")
    known = (*ARCHITECTURES, TEXT)
    parser.add_argument("--only", nargs="+", default=known, choices=known)
    asked = parser.parse_args()
    torch, models = map(importlib.import_module, ("torch", "torchvision.models"))
    torch.backends.mha.set_fastpath_enabled(False)  # TorchScript's exporter knows no fused layer
    failed = 0
    with zipfile.ZipFile(asked.out, "w", zipfile.ZIP_LZMA) as archive:
        for name in asked.only:
            for exporter in EXPORTERS:
                try:
                    data = made(torch, models, name, exporter)
                except Exception as error:  # noqa: BLE001  # each exporter has its own
                    print(f"{name}-{exporter}: {error}", file=sys.stderr)
                    failed += 1
                    continue
                entry = zipfile.ZipInfo(f"{name}-{exporter}.onnx", (2026, 1, 1, 0, 0, 0))
                archive.writestr(entry, data, zipfile.ZIP_LZMA)
                print(f"{entry.filename}: {len(data) >> 10} KB")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
