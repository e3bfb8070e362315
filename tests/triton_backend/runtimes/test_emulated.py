"""The emulated runtime.

Profiled latency by batch, seeded noise, results that tell samples apart.
"""

from pathlib import Path

import numpy as np
import pytest

from tests.fakes.clock import VirtualClock
from tests.triton_backend.runtimes.stages import spec
from triton_backend.contract.errors import InputError, InvariantError
from triton_backend.runtimes.base import Artifact, Runtime
from triton_backend.runtimes.emulated import EmulatedRuntime, drawn_rows
from triton_backend.runtimes.registry import load_runtime

LATENCY_US = [1_000, 1_600, 2_200]


def emulated(folder: Path, clock: VirtualClock, **options: object) -> Runtime:
    folder.mkdir(parents=True, exist_ok=True)
    Artifact(
        runtime="emulated",
        gpu_class="L4",
        inputs=(spec("x"),),
        outputs=(spec("y", "UINT8", 5), spec("z", "FP16", 2)),
        max_batch=3,
        options={"latency_us_by_batch": LATENCY_US, **options},
    ).write(folder)
    return load_runtime(folder, clock=clock)


def run(runtime: Runtime, x: np.ndarray) -> dict[str, np.ndarray]:
    out = {"y": np.zeros((len(x), 5), np.uint8), "z": np.zeros((len(x), 2), np.float16)}
    runtime.run({"x": x}, out)
    return out


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_a_batch_lasts_as_long_as_profiled(tmp_path: Path, batch: int) -> None:
    clock = VirtualClock(at_us=50)
    run(emulated(tmp_path, clock), np.zeros((batch, 3), np.float32))
    assert clock.waits == [50 + LATENCY_US[batch - 1]]


def test_noise_comes_from_the_seed_and_has_median_one(tmp_path: Path) -> None:
    logs: list[list[int]] = []
    for seed in (1, 1, 2):
        clock = VirtualClock()
        runtime = emulated(tmp_path, clock, noise_sigma=0.2, seed=seed)
        lasted: list[int] = []
        for _ in range(301):
            before = clock.at_us
            run(runtime, np.zeros((1, 3), np.float32))
            lasted.append(clock.at_us - before)
        logs.append(lasted)
    assert logs[0] == logs[1] != logs[2]
    assert np.median(logs[0]) == pytest.approx(1_000, rel=0.05)
    assert np.std(np.log(logs[0])) == pytest.approx(0.2, rel=0.2)


def test_results_depend_on_the_sample_and_not_on_its_batch(tmp_path: Path) -> None:
    runtime = emulated(tmp_path, VirtualClock())
    x = np.random.default_rng(0).standard_normal((3, 3)).astype(np.float32)
    together = run(runtime, x)
    for i in range(3):
        alone = run(runtime, x[i : i + 1])
        assert all(np.array_equal(alone[name][0], together[name][i]) for name in ("y", "z"))
    assert len({row.tobytes() for row in together["y"]}) == 3
    assert np.isfinite(together["z"]).all()


@pytest.mark.parametrize("latencies", [[], [0.0], None])
def test_an_artifact_without_latencies_is_refused(tmp_path: Path, latencies: object) -> None:
    with pytest.raises(InputError, match="latency_us_by_batch"):
        emulated(tmp_path, VirtualClock(), latency_us_by_batch=latencies)


def test_a_batch_without_a_latency_is_our_own_mistake(tmp_path: Path) -> None:
    with pytest.raises(InvariantError, match="batch 4, latencies known up to 3"):
        run(emulated(tmp_path, VirtualClock()), np.zeros((4, 3), np.float32))


def test_a_run_is_slowed_down_by_what_runs_beside_it_meanwhile() -> None:
    """Work of 80 ms.

    32 looks, of which the first 16 find nothing, then a neighbour at 0.9 + 0.6.
    """
    clock = VirtualClock(at_us=50)
    looks = iter([None] * 16 + [0.6] * 16)
    runtime = EmulatedRuntime(
        Artifact(
            runtime="emulated",
            gpu_class="L4",
            inputs=(spec("x"),),
            outputs=(spec("y", "UINT8", 5), spec("z", "FP16", 2)),
            max_batch=1,
            options={"latency_us_by_batch": [100_000], "interference": (1.25, 0.9)},
        ),
        clock=clock,
        pressing=lambda: next(looks),
    )
    run(runtime, np.zeros((1, 3), np.float32))
    assert clock.waits[15::16] == [50 + 40_000, 50 + 40_000 + 60_000]
    assert next(looks, "none left") == "none left"


def test_a_neighbour_never_speeds_a_run_up() -> None:
    clock = VirtualClock()
    runtime = EmulatedRuntime(
        Artifact(
            runtime="emulated",
            gpu_class="L4",
            inputs=(spec("x"),),
            outputs=(spec("y", "UINT8", 5), spec("z", "FP16", 2)),
            max_batch=1,
            options={"latency_us_by_batch": [3_000], "interference": (1.5, 0.2)},
        ),
        clock=clock,
        pressing=lambda: 0.1,
    )
    run(runtime, np.zeros((1, 3), np.float32))
    assert clock.waits[-1] == 2_000


@pytest.mark.parametrize("mean", [0.0, 3.0, 1_000.0])
def test_rows_have_the_mean_they_are_drawn_with(mean: float) -> None:
    rows = [drawn_rows(mark, mean, most=10_000) for mark in range(256)]
    assert np.mean(rows) == pytest.approx(mean, rel=0.05)
