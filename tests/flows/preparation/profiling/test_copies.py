"""Processes of copies: what interrupts their parent does not make them say anything.

And what stages print or raise is no answer.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from flows.preparation.profiling.copies import CORES, Copies, alone_on
from tests.triton_backend.runtimes.python_step.step_folders import write_step
from tests.triton_backend.runtimes.stages import spec
from triton_backend.contract.errors import InputError
from triton_backend.contract.shares import WHOLE_GPU
from triton_backend.contract.tensors import TensorSpec
from triton_backend.runtimes.base import Artifact

LIMITS = {"warm_up": 1, "min_runs": 2, "max_runs": 2, "max_seconds": 1.0, "interval": 0.05}
CODE = """
import time
from flows.preparation.profiling.copies import Copies, CopyProcess
with Copies() as copies:
    copies.processes.append(CopyProcess())
    print(copies.processes[0].pid, flush=True)
    time.sleep(60)
"""


@pytest.mark.slow
@pytest.mark.parametrize("after_seconds", [0.02, 0.1, 0.3])
def test_ctrl_c_while_a_copy_starts_says_nothing_of_it(after_seconds: float) -> None:
    root = str(Path(__file__).parents[4])
    with subprocess.Popen(
        [sys.executable, "-c", f"try:\n exec({CODE!r})\nexcept KeyboardInterrupt: pass"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": root},
        start_new_session=True,
    ) as parent:
        assert parent.stdout is not None
        copy = int(parent.stdout.readline())
        time.sleep(after_seconds)
        os.killpg(parent.pid, signal.SIGINT)
        _, said = parent.communicate(timeout=60)
    assert said == ""
    assert not Path(f"/proc/{copy}").exists()


@pytest.mark.slow
def test_what_a_step_prints_is_no_answer(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source = "import os\nprint('loaded')\ndef run(x):\n    os.system('echo ran')\n    return x"
    folder = write_step(tmp_path, source, inputs=[spec("x")], outputs=[spec("y")])
    with Copies() as copies:
        copies.load(folder, WHOLE_GPU, 1)
        assert len(copies.measure(1, LIMITS)) == 2
    out, err = capfd.readouterr()
    assert (out, err.splitlines()) == ("", ["loaded", "ran", "ran", "ran"])


@pytest.mark.slow
def test_runs_that_measure_at_the_same_time_take_turns(tmp_path: Path) -> None:
    folder = write_step(
        tmp_path, "def run(x):\n    return x", inputs=[spec("x")], outputs=[spec("y")]
    )
    measured = threading.Event()
    with Copies() as copies:
        copies.load(folder, WHOLE_GPU, 1)

        def measure() -> None:
            copies.measure(1, LIMITS)
            measured.set()

        waiting = threading.Thread(target=measure)
        with alone_on(CORES):
            waiting.start()
            with alone_on("another device"):
                assert not measured.wait(1.0)
        waiting.join(60)
    assert measured.is_set()


@pytest.mark.slow
def test_a_stage_that_cannot_run_is_named_without_a_trace(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tensors = [
        helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", 9]),
        helper.make_tensor_value_info("rows", TensorProto.FLOAT, ["batch", 9]),
    ]
    table = numpy_helper.from_array(np.ones(1, np.float32), "table")
    node = helper.make_node("Gather", ["table", "ids"], ["rows"])
    graph = helper.make_graph([node], "g", tensors[:1], tensors[1:], [table])
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), tmp_path / "m.onnx")
    Artifact(
        runtime="onnxruntime",
        gpu_class="c",
        inputs=(TensorSpec(name="ids", dtype="INT64", shape=(-1, 9)),),
        outputs=(TensorSpec(name="rows", dtype="FP32", shape=(-1, 9)),),
        max_batch=2,
        files={"model": "m.onnx"},
    ).write(tmp_path)
    with Copies() as copies:
        copies.load(tmp_path, WHOLE_GPU // 2, 2)
        with pytest.raises(InputError, match=r"profile: .*cannot be run: .*out of data bounds"):
            copies.measure(2, LIMITS)
    assert "Traceback" not in capfd.readouterr().err
