"""The CPU runtime: results in place, stretch by the clock it is given, cores given back."""

import os
from pathlib import Path

import numpy as np
import pytest

from tests.fakes.clock import VirtualClock
from tests.triton_backend.runtimes.stages import WIDTH, write_crops, write_doubling
from triton_backend.contract.errors import InputError, InvariantError
from triton_backend.runtimes.registry import load_runtime


class TickingClock(VirtualClock):
    """The thread has had 700 µs more at every look, of 1,000 µs that passed."""

    def now_us(self) -> int:
        self.at_us += 1_000
        return self.at_us

    def thread_cpu_us(self) -> int:
        self.cpu_us += 700
        return self.cpu_us


def samples(batch: int) -> np.ndarray:
    return np.arange(batch * WIDTH, dtype=np.float32).reshape(batch, WIDTH)


@pytest.mark.parametrize("batch", [1, 4])
def test_results_are_written_into_the_arrays_given(tmp_path: Path, batch: int) -> None:
    write_doubling(tmp_path / "a")
    runtime = load_runtime(tmp_path / "a", clock=VirtualClock())
    memory = np.zeros(64, np.float32)
    out = memory[: batch * WIDTH].reshape(batch, WIDTH)
    runtime.run({"x": samples(batch)}, {"y": out})
    runtime.close()
    assert np.array_equal(memory[: batch * WIDTH], 2 * samples(batch).ravel())
    assert not memory[batch * WIDTH :].any()


def test_rows_that_vary_follow_each_other_and_are_cut_where_there_is_no_room(
    tmp_path: Path,
) -> None:
    write_crops(tmp_path / "a", most=5)
    runtime = load_runtime(tmp_path / "a", clock=VirtualClock())
    given = samples(4)
    given[:, 0] = 2, 0, 5, 1
    for room, counts in ((5, [2, 0, 5, 1]), (3, [2, 0, 3, 1])):
        out = {"crops": np.full((4, room, WIDTH), -1, np.float32), "crops_rows": np.zeros(4, int)}
        runtime.run({"x": given}, out)
        assert out["crops_rows"].tolist() == counts
        rows = out["crops"].reshape(-1, WIDTH)
        assert np.array_equal(rows[: sum(counts)], np.repeat(given, counts, axis=0))
        assert (rows[sum(counts) :] == -1).all()
    runtime.close()


def test_arrays_need_not_be_contiguous(tmp_path: Path) -> None:
    write_doubling(tmp_path / "a")
    runtime = load_runtime(tmp_path / "a", clock=VirtualClock())
    given, out = np.zeros((2, 2 * WIDTH), np.float32), np.zeros((WIDTH, 2), np.float32)
    given[:, ::2] = samples(2)
    runtime.run({"x": given[:, ::2]}, {"y": out.T})
    runtime.close()
    assert np.array_equal(out.T, 2 * samples(2))


def test_read_only_inputs_are_taken(tmp_path: Path) -> None:
    write_doubling(tmp_path / "a")
    runtime = load_runtime(tmp_path / "a", clock=VirtualClock())
    given, out = samples(2), np.zeros((2, WIDTH), np.float32)
    given.flags.writeable = False
    runtime.run({"x": given}, {"y": out})
    runtime.close()
    assert np.array_equal(out, 2 * samples(2))


def test_a_forwarded_tensor_comes_out_as_it_went_in(tmp_path: Path) -> None:
    write_doubling(tmp_path / "a", forwards="skip")
    runtime = load_runtime(tmp_path / "a", clock=VirtualClock())
    out = {name: np.zeros((2, WIDTH), np.float32) for name in ("y", "skip")}
    runtime.run({"x": samples(2), "skip": samples(2) + 7}, out)
    runtime.close()
    assert np.array_equal(out["skip"], samples(2) + 7)
    assert np.array_equal(out["y"], 2 * samples(2))


def test_one_thread_is_stretched_by_its_cpu_time(tmp_path: Path) -> None:
    write_doubling(tmp_path / "a", threads=1, stretch=3.0)
    clock = TickingClock()
    runtime = load_runtime(tmp_path / "a", clock=clock)
    runtime.run({"x": samples(1)}, {"y": np.zeros((1, WIDTH), np.float32)})
    runtime.close()
    assert clock.waits == [1_000 + 3 * 700]


def test_several_threads_are_stretched_by_the_time_that_passed(tmp_path: Path) -> None:
    write_doubling(tmp_path / "a", threads=2, stretch=3.0)
    clock = TickingClock()
    runtime = load_runtime(tmp_path / "a", clock=clock)
    runtime.run({"x": samples(1)}, {"y": np.zeros((1, WIDTH), np.float32)})
    runtime.close()
    assert clock.waits == [1_000 + 3 * 1_000]


def test_a_share_stretches_on_top(tmp_path: Path) -> None:
    write_doubling(tmp_path / "a", threads=1, stretch=1.5)
    clock = TickingClock()
    runtime = load_runtime(tmp_path / "a", share=75, clock=clock)
    runtime.run({"x": samples(1)}, {"y": np.zeros((1, WIDTH), np.float32)})
    runtime.close()
    assert clock.waits == [1_000 + 6 * 700]


def test_without_stretch_nothing_is_waited_for(tmp_path: Path) -> None:
    write_doubling(tmp_path / "a", threads=1, stretch=1.0)
    clock = TickingClock()
    runtime = load_runtime(tmp_path / "a", clock=clock)
    runtime.run({"x": samples(1)}, {"y": np.zeros((1, WIDTH), np.float32)})
    runtime.close()
    assert clock.waits == []


def test_the_thread_runs_on_the_classes_cores_until_closed(tmp_path: Path) -> None:
    before = os.sched_getaffinity(0)
    core = min(before)
    write_doubling(tmp_path / "a", cores=[core])
    runtime = load_runtime(tmp_path / "a")
    assert os.sched_getaffinity(0) == {core}
    runtime.close()
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize(
    ("given", "out"),
    [
        ({"z": samples(1), "x": samples(1)[:, :2]}, {"y": samples(1)}),
        ({"x": samples(1).astype(np.float64)}, {"y": samples(1)}),
        ({"x": samples(1)}, {"y": samples(2)}),
        ({"x": samples(1)}, {}),
    ],
)
def test_arrays_that_do_not_fit_the_stage_are_never_handed_on(
    tmp_path: Path, given: dict[str, np.ndarray], out: dict[str, np.ndarray]
) -> None:
    write_doubling(tmp_path / "a")
    runtime = load_runtime(tmp_path / "a", clock=VirtualClock())
    with pytest.raises(InvariantError, match=r"tensor '[xy]' is"):
        runtime.run(given, out)
    runtime.close()


def test_a_core_that_is_not_there_is_refused(tmp_path: Path) -> None:
    before = os.sched_getaffinity(0)
    write_doubling(tmp_path / "a", cores=[4000])
    with pytest.raises(InputError, match=r"class 'cpu', cores: \[4000\] cannot be used here"):
        load_runtime(tmp_path / "a")
    assert os.sched_getaffinity(0) == before


def test_a_missing_model_file_is_refused_and_the_cores_given_back(tmp_path: Path) -> None:
    before = os.sched_getaffinity(0)
    write_doubling(tmp_path / "a", cores=[min(before)])
    (tmp_path / "a" / "m.onnx").unlink()
    with pytest.raises(InputError, match=r"model file 'm\.onnx' is missing"):
        load_runtime(tmp_path / "a")
    assert os.sched_getaffinity(0) == before


def test_a_broken_model_file_is_refused(tmp_path: Path) -> None:
    write_doubling(tmp_path / "a")
    (tmp_path / "a" / "m.onnx").write_bytes(b"nonsense")
    with pytest.raises(InputError, match=r"m\.onnx: onnxruntime cannot load it"):
        load_runtime(tmp_path / "a")
