"""Steps of a workload.yaml prepared: what is kept, and what is refused before it is served."""

import signal
from pathlib import Path
from textwrap import indent

import numpy as np
import pytest

from flows.preparation.steps.given import read_steps
from flows.preparation.steps.prepare import prepare_step
from triton_backend.contract.errors import InputError
from triton_backend.contract.tensors import TensorSpec
from triton_backend.runtimes.base import REFUSED, REFUSED_BYTES

STEP = """
name: scale
python: shop:run
package: ./shop.py
inputs: {x: FP32 2}
outputs: {y: FP32 2}
max_batch: 4
"""
SOURCE = "def run(x):\n    return x * 2"


def workload(folder: Path, source: str = SOURCE, step: str = STEP) -> Path:
    (folder / "shop.py").write_text(source)
    file = folder / "workload.yaml"
    item = indent(step.strip(), "    ").replace("    ", "  - ", 1)
    file.write_text(f"models: [{{name: net, slo_ms: 100}}]\nsteps:\n{item}\n")
    return file


def test_a_step_is_a_model_of_one_block(tmp_path: Path) -> None:
    (step,) = read_steps(workload(tmp_path)).values()
    split = prepare_step(step, tmp_path / "models")
    refused = TensorSpec.of_bytes(REFUSED, REFUSED_BYTES)
    assert (split.blocks, split.max_batch, split.reused) == (1, 4, False)
    assert split.outputs == (TensorSpec(name="y", dtype="FP32", shape=(-1, 2)), refused)
    assert split.check == {"max_relative_error": 0.0}
    with pytest.raises(InputError, match="is a Python step, which has no layers"):
        split.require_graph("layers")


def test_what_a_step_prints_is_no_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = "print('loaded')\ndef run(x):\n    print('ran')\n    return x"
    (step,) = read_steps(workload(tmp_path, source)).values()
    prepare_step(step, tmp_path / "models")
    out, err = capsys.readouterr()
    assert (out, set(err.split())) == ("", {"loaded", "ran"})


@pytest.mark.parametrize(
    "source",
    [
        "def run(x):\n    while True: pass",
        "while True: pass",
        "def run(x):\n try:\n  while True: pass\n except BaseException: pass\n while True: pass",
    ],
)
def test_a_step_that_never_ends_is_given_up(tmp_path: Path, source: str) -> None:
    (step,) = read_steps(workload(tmp_path, source)).values()
    usual = signal.getsignal(signal.SIGALRM)
    with pytest.raises(InputError, match=r"^step 'scale': has not ended after 0.2 s"):
        prepare_step(step, tmp_path / "models", limit_s=0.2)
    assert list((tmp_path / "models" / "scale").iterdir()) == []
    assert signal.getsignal(signal.SIGALRM) == usual
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_a_step_is_prepared_anew_where_its_package_changed(tmp_path: Path) -> None:
    def key(source: str) -> tuple[str, bool]:
        (step,) = read_steps(workload(tmp_path, source)).values()
        split = prepare_step(step, tmp_path / "models")
        return split.key, split.reused

    first, again, other = key(SOURCE), key(SOURCE), key(SOURCE + " + 0")
    assert again == (first[0], True)
    assert other[0] != first[0]


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("def run(x): return x * 0 + len(x)", "differs by .* with the batch it is in"),
        (
            "def run(x): return x[:, 0]",
            r"sample 0: step shop:run: TypeError: 'y' is of shape \[1\]",
        ),
        ("def run(z): return z", "sample 0: step shop:run: TypeError: .* unexpected keyword"),
        ("def walk(x): return x", "^step 'scale': module shop has no function 'run'$"),
        ("import nothing_such", "^step 'scale': cannot be imported: ModuleNotFoundError: No mod"),
    ],
)
def test_a_step_that_does_not_do_what_is_stated_is_refused(
    tmp_path: Path, source: str, reason: str
) -> None:
    (step,) = read_steps(workload(tmp_path, source)).values()
    with pytest.raises(InputError, match=reason):
        prepare_step(step, tmp_path / "models")
    assert not list((tmp_path / "models" / "scale").iterdir())


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("./shop.py", "numpy", "package: 'numpy' is not the package of 'shop:run'"),
        ("./shop.py", "./stall.py", r"package: .*stall\.py: no such file or folder"),
        ("shop:run", "stall:run", "package: './shop.py' is not the package of 'stall:run'"),
        ("FP32 2}\nmax", "FP32 2x}\nmax", "outputs: 'y' is 'FP32 2x', not as"),
        ("y: FP32", "y: FP31", "outputs, tensor 'y': datatype 'FP31' is none of BYTES, BOOL"),
        ("FP32 2}\nmax", "FP32 0}\nmax", "outputs, tensor 'y': shape .* positive dimensions"),
        ("x: FP32 2", "x: BYTES", "max_bytes: says nothing of 'x', which is BYTES"),
        ("x: FP32 2", "x: BYTES 3", "max_bytes: says nothing of 'x'"),
        ("max_batch: 4", "max_bytes: {y: 9}", r"max_bytes\.y: is no tensor of BYTES"),
        ("max_batch: 4", "arguments: {x: 9}", r"arguments\.x: is the name of an input"),
        ("max_batch: 4", "pickle: 9", "pickle"),
        (
            "y: FP32 2}",
            "y: BYTES, y_rows: INT64}\nmax_bytes: {y: 9}",
            r"outputs\.y: is BYTES, whose rows cannot vary",
        ),
        ("y: FP32 2}", "y: FP32 2, rows: INT64}", r"outputs\.rows: .* state y_rows"),
        (
            "shop:run",
            "shop.run",
            r"step 'scale', python: 'shop.run' is not package.module:function",
        ),
    ],
)
def test_what_a_workload_states_wrongly_is_named(
    tmp_path: Path, old: str, new: str, reason: str
) -> None:
    assert old in STEP
    with pytest.raises(InputError, match=reason) as refused:
        read_steps(workload(tmp_path, step=STEP.replace(old, new, 1)))
    assert refused.value.where.startswith(str(tmp_path / "workload.yaml"))


def test_nothing_is_imported_when_a_workload_is_read(tmp_path: Path) -> None:
    file = workload(tmp_path, f"import os\nos.mkdir({str(tmp_path / 'imported')!r})\n{SOURCE}")
    (step,) = read_steps(file).values()
    assert not (tmp_path / "imported").exists()
    prepare_step(step, tmp_path / "models")
    assert (tmp_path / "imported").exists()


BYTES_STEP = """
name: sizes
python: shop:run
package: ./shop.py
inputs: {text: BYTES}
max_bytes: {text: 20}
outputs: {size: INT64}
samples: texts
"""


def test_files_of_a_folder_are_samples_of_bytes(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    for number in range(3):
        (tmp_path / "texts" / f"{number}.txt").write_bytes(b"x" * (number + 1))
    source = "def run(text): return [len(t) for t in text]"
    (step,) = read_steps(workload(tmp_path, source, BYTES_STEP)).values()
    split = prepare_step(step, tmp_path / "models")
    with np.load(split.folder / "samples.npz") as saved:
        assert saved["text"].shape == (3, 7)
    (tmp_path / "texts" / "long.txt").write_bytes(b"x" * 21)
    with pytest.raises(InputError, match=r"long\.txt: 21 bytes, max_bytes is 20"):
        prepare_step(step, tmp_path / "models")


def test_a_file_that_a_step_refuses_is_named(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    for name, text in (("a.txt", b"fine"), ("b.txt", b"odd")):
        (tmp_path / "texts" / name).write_bytes(text)
    source = """def run(text):
    if b'odd' in list(text):
        raise ValueError('cannot be read')
    return [len(t) for t in text]"""
    (step,) = read_steps(workload(tmp_path, source, BYTES_STEP)).values()
    said = r"^step 'sizes', sample 1 \(.*/texts/b\.txt\): .*cannot be read$"
    with pytest.raises(InputError, match=said):
        prepare_step(step, tmp_path / "models")


def test_bytes_without_samples_are_refused(tmp_path: Path) -> None:
    stated = BYTES_STEP.replace("samples: texts\n", "")
    (step,) = read_steps(workload(tmp_path, step=stated)).values()
    with pytest.raises(InputError, match="samples: is missing: input 'text' is BYTES"):
        prepare_step(step, tmp_path / "models")
