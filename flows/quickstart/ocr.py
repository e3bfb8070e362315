"""The OCR example: three trained models, five Python steps, one endpoint (extra `ocr`).

A project is a folder with the models, samples for the steps and a workload.yaml, which
`poolpipe split`, `steps`, `plan` and `serve` take as they take any other. Here, too: a page read by
the same models and steps in this process, and by the package itself, to compare the served answers
with.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from flows.preparation.splitting.running import open_session, run_session
from flows.quickstart.padding import PADDED, take_padding
from flows.quickstart.pages import DrawnPage, draw_page
from triton_backend.contract.applications.sizes import size_name
from triton_backend.runtimes.python_step import ocr
from triton_backend.runtimes.texts import pack_texts

# As workload.yaml says them, too. A line is read at the least width that has room for it.
HEIGHT, WIDTH, LINES = 1024, 736, (640, 1024, 1344)
PAGES, MOST_LINES = 8, 12
SAMPLE_PAGES, SEED, MOST_SAMPLES = 3, 1_000, 16
WORKLOAD = Path(__file__).with_name("ocr.yaml")
READERS = {size_name("recogniser", {"x": f"3x48x{width}"}): width for width in LINES}
SIZES = {
    "detector": (3, HEIGHT, WIDTH),
    "classifier": (3, 48, 192),
    **{name: (3, 48, width) for name, width in READERS.items()},
}
_PARTS = {"detector": "Det", "classifier": "Cls", "recogniser": "Rec"}
_OUTPUTS = {"detector": "likely", "classifier": "chances"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The lines of a page, in the order of reading.

    Attributes:
        boxes: [lines, 4, (x, y)], corners in pixels of the picture.
        degrees: [lines], 180 where a line lies upside down.
        texts: UTF-8; empty where a line is too uncertain to be said.
        scores: [lines], from 0 to 1.
        widths: [lines], one of `LINES` each, at which it was read.
    """

    boxes: NDArray[np.float32]
    degrees: NDArray[np.int64]
    texts: tuple[str, ...]
    scores: NDArray[np.float32]
    widths: NDArray[np.int64]

    @property
    def text(self) -> str:
        """All of the page, a row for each line."""
        return "\n".join(filter(None, self.texts))


def write_models(folder: Path) -> dict[str, Path]:
    """The package's models with outputs that have names; the recogniser says the likeliest symbol.

    Of each of a line's steps it would give 6,625 numbers else, of which only the largest is read.
    It is given the width to which a line is padded (`padding`), and is a file for each of `LINES`.

    Raises:
        InputError: the package is not installed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, Path] = {}
    for name, part in _PARTS.items():
        if name in _OUTPUTS:
            model = onnx.load(ocr.model_file(part))
            _rename_output(model.graph, _OUTPUTS[name])
            found[name] = _written(model, folder / f"{name}.onnx")
            continue
        for size, width in READERS.items():
            model = onnx.load(ocr.model_file(part))
            _say_the_likeliest(model.graph, width)
            found[size] = _written(model, folder / f"{name}-{width}.onnx")
    return found


def _written(model: onnx.ModelProto, path: Path) -> Path:
    path.write_bytes(model.SerializeToString(deterministic=True))
    return path


def _rename_output(graph: onnx.GraphProto, name: str) -> None:
    was = graph.output[0].name
    graph.node.append(helper.make_node("Identity", [was], [name], name=name))
    graph.output[0].name = name


def _say_the_likeliest(graph: onnx.GraphProto, width: int) -> None:
    """Symbols and how certain they are, [batch, steps], in place of [batch, steps, symbols]."""
    own = take_padding(graph, width)
    scores = graph.output[0].name
    found = {"symbols": TensorProto.INT64, "certain": TensorProto.FLOAT}
    graph.node.extend(  # as operator sets up to 17 have them
        [
            helper.make_node("ArgMax", [scores], ["best"], axis=2, keepdims=0),
            helper.make_node("ReduceMax", [scores], ["chance"], axes=[2], keepdims=0),
            helper.make_node("Cast", [own], ["own"], to=TensorProto.INT64),
            helper.make_node("Mul", ["best", "own"], ["symbols"]),
            helper.make_node("Mul", ["chance", own], ["certain"]),
        ]
    )
    batch = graph.input[0].type.tensor_type.shape.dim[0].dim_param
    del graph.output[:]
    for name, kind in found.items():
        graph.output.append(helper.make_tensor_value_info(name, kind, [batch, width // 8]))


class ReaderHere:
    """Models and steps in this process, one page and one line at a time."""

    def __init__(self, models: Mapping[str, Path]) -> None:
        self._sessions = {name: open_session(path, str(path)) for name, path in models.items()}

    def _run(self, name: str, **rows: NDArray[Any]) -> dict[str, NDArray[Any]]:
        session, count = self._sessions[name], len(rows["x"])
        found = [
            run_session(session, {key: array[i : i + 1] for key, array in rows.items()})
            for i in range(count)
        ]
        return {key: np.concatenate([one[key] for one in found]) for key in found[0]}

    def _said(self, lines: Sequence[NDArray[Any]], padded: NDArray[Any]) -> dict[str, Any]:
        """Each line read at its width; beyond the last step of a narrower one are zeros."""
        steps = max(LINES) // 8
        said = {
            "symbols": np.zeros((len(lines), steps), np.int64),
            "certain": np.zeros((len(lines), steps), np.float32),
        }
        names = {width: name for name, width in READERS.items()}
        for number, line in enumerate(lines):
            name = names[line.shape[-1]]
            found = self._run(name, x=line[None], padded=padded[number : number + 1])
            for output, row in found.items():
                said[output][number, : row.shape[1]] = row[0]
        return said

    def read(self, picture: bytes) -> Reading:
        """One page.

        Raises:
            ValueError: the bytes are no picture, or one that is too large.
        """
        return self.steps_of(picture)[0]

    def steps_of(self, picture: bytes) -> tuple[Reading, dict[str, dict[str, NDArray[Any]]]]:
        """One page, and the inputs of its steps and recognisers, as their samples have them."""
        pixels = ocr.page([picture], height=HEIGHT, width=WIDTH)
        image, likely = pack_texts([picture]), self._run("detector", x=pixels)["likely"]
        found = ocr.crops([picture], likely)
        boxes, lines = found["box"][0], found["crop"][0]
        given = {"page": {"image": image}, "crops": {"image": image, "likely": likely}}
        if not len(lines):
            none = np.empty(0, np.float32)
            nothing = none.astype(np.int64)
            empty = Reading(boxes=boxes, degrees=nothing, texts=(), scores=none, widths=nothing)
            return empty, given
        seen = ocr.views(lines)
        chances = self._run("classifier", x=seen.pop("angle"))
        widths = ",".join(map(str, LINES))
        turned = ocr.upright(seen["line"], chances["chances"], widths=widths)
        said = self._said(turned["upright"], turned["padded"])
        read = ocr.text(said["symbols"], said["certain"])
        given |= {
            "views": {"crop": lines},
            "upright": {**seen, **chances},
            "text": said,
            **{name: _cut(turned, width) for name, width in READERS.items()},
        }
        reading = Reading(
            boxes=boxes,
            degrees=turned["degrees"],
            texts=tuple(read["text"]),
            scores=read["score"],
            widths=np.array([line.shape[-1] for line in turned["upright"]], np.int64),
        )
        return reading, given


def _cut(turned: Mapping[str, Any], width: int) -> dict[str, NDArray[Any]]:
    """Every line as one recogniser reads it: longer ones are cut off."""
    lines: list[NDArray[np.float32]] = turned["upright"]
    x = np.zeros((len(lines), *lines[0].shape[:2], width), np.float32)
    for row, line in zip(x, lines, strict=True):
        kept = min(width, line.shape[-1])
        row[..., :kept] = line[..., :kept]
    return {"x": x, PADDED: np.minimum(turned[PADDED], width)}


def draw_pages(count: int, *, first: int = 0) -> list[DrawnPage]:
    """Pages of at most `MOST_LINES` lines, for a load that two cores carry."""
    return [draw_page(first + n, most_lines=MOST_LINES) for n in range(count)]


def write_project(folder: Path) -> tuple[dict[str, Path], Path]:
    """Models, a workload.yaml and, beside it, samples for its steps and recognisers.

    Returns:
        the models by name, and the workload.yaml.

    Raises:
        InputError: the package is not installed.
    """
    models = write_models(folder)
    here = ReaderHere(models)
    seen: dict[str, dict[str, list[NDArray[Any]]]] = {}
    for page in draw_pages(SAMPLE_PAGES, first=SEED):
        for step, inputs in here.steps_of(page.picture)[1].items():
            for name, rows in inputs.items():
                seen.setdefault(step, {}).setdefault(name, []).append(rows)
    for step, arrays in seen.items():
        joined = {name: _joined(parts)[:MOST_SAMPLES] for name, parts in arrays.items()}
        np.savez(folder / f"{step}.npz", **joined)
    workload = folder / WORKLOAD.name
    workload.write_bytes(WORKLOAD.read_bytes())
    return models, workload


def write_answers(here: ReaderHere, pages: Sequence[DrawnPage], path: Path) -> list[Reading]:
    """Pages and their answers, for `load --check`; the readings.

    Arrays are as `reference_outputs.write_application_answers` has them.
    """
    read = [here.read(page.picture) for page in pages]
    outputs = {
        "boxes": np.concatenate([one.boxes for one in read]),
        "degrees": np.concatenate([one.degrees for one in read]),
        "text": pack_texts([text.encode() for one in read for text in one.texts]),
        "score": np.concatenate([one.scores for one in read]),
    }
    rows = np.array([len(one.texts) for one in read])
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(
        path,
        **{"inputs/image": pack_texts([page.picture for page in pages])},
        **{f"outputs/{name}": array for name, array in outputs.items()},
        **{f"rows/{name}": rows for name in outputs},
    )
    return read


def shares_of_widths(read: Sequence[Reading]) -> dict[str, float]:
    """By size of the recogniser, the share of lines that it read; of none, as of one line."""
    widths = np.concatenate([one.widths for one in read])
    lines = {name: max(int((widths == width).sum()), 1) for name, width in READERS.items()}
    return {name: count / sum(lines.values()) for name, count in lines.items()}


def compared_with_package(pages: Sequence[DrawnPage], read: Sequence[Reading]) -> str:
    """In words, on how many pages the text is the package's own."""
    alike = sum(
        one.text == "\n".join(text for _, text in lines_of_package(page.picture))
        for page, one in zip(pages, read, strict=True)
    )
    return f"text as the package reads it on {alike} of {len(pages)} pages"


@cache
def _package() -> Any:
    from rapidocr_onnxruntime import RapidOCR  # noqa: PLC0415  # of the extra `ocr`

    return RapidOCR()


def lines_of_package(picture: bytes) -> list[tuple[NDArray[np.float32], str]]:
    """Corners and text of each line of a page, as the package reads it by itself."""
    found, _ = _package()(picture)
    return [(np.asarray(box, np.float32), text) for box, text, _ in found or ()]


def _joined(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Samples of several pages; texts are packed as wide as the longest."""
    width = max(part.shape[-1] for part in parts)
    return np.concatenate(
        [
            np.pad(part, [*[(0, 0)] * (part.ndim - 1), (0, width - part.shape[-1])])
            if part.ndim > 1
            else part
            for part in parts
        ]
    )
