"""The MPS daemon of a node, against a control program of our own."""

from pathlib import Path

import pytest

from tests.fakes import mps_control
from triton_backend.contract.errors import InputError
from triton_backend.runtimes.mps import MpsDaemon, gpu_environment, thread_percentage


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MpsDaemon:
    monkeypatch.setenv("PATH", str(mps_control.install(tmp_path)))
    return MpsDaemon.in_folder(tmp_path / "mps", ("GPU-1", "GPU-2"))


@pytest.mark.slow
def test_daemon_is_started_found_and_stopped(daemon: MpsDaemon) -> None:
    assert not daemon.running()
    daemon.start()
    assert daemon.running()
    assert (daemon.pipes / "nvidia-cuda-mps-control.pid").read_text() == "GPU-1,GPU-2"
    daemon.stop()
    assert not daemon.running()


@pytest.mark.slow
def test_second_start_keeps_the_daemon_that_runs(daemon: MpsDaemon) -> None:
    daemon.start()
    before = (daemon.pipes / "nvidia-cuda-mps-control.pid").stat().st_mtime_ns
    daemon.start()
    assert (daemon.pipes / "nvidia-cuda-mps-control.pid").stat().st_mtime_ns == before


def test_stopping_what_does_not_run_does_nothing(daemon: MpsDaemon) -> None:
    daemon.stop()
    assert not daemon.running()


@pytest.mark.slow
def test_daemon_with_clients_stays_until_they_leave(daemon: MpsDaemon) -> None:
    daemon.start()
    (daemon.pipes / "clients").write_text("1234")
    daemon.stop_if_idle()
    assert daemon.running()
    (daemon.pipes / "clients").unlink()
    daemon.stop_if_idle()
    assert not daemon.running()


@pytest.mark.slow
def test_two_daemons_in_two_folders_do_not_meet(daemon: MpsDaemon, tmp_path: Path) -> None:
    other = MpsDaemon.in_folder(tmp_path / "other", ("GPU-3",))
    daemon.start()
    assert not other.running()


def test_without_mps_the_error_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    daemon = MpsDaemon.in_folder(tmp_path / "mps", ("0",))
    assert not daemon.running()
    daemon.stop()
    with pytest.raises(InputError, match="leave vGPU divisors above 1 out of"):
        daemon.start()


@pytest.mark.slow
def test_daemon_that_does_not_start_is_an_error_with_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(mps_control.install(tmp_path, broken=True)))
    with pytest.raises(InputError, match="Cannot find a GPU"):
        MpsDaemon.in_folder(tmp_path / "mps", ("0",)).start()


@pytest.mark.parametrize(
    ("share", "percent"), [(300, "100"), (150, "50"), (100, "33.33"), (75, "25"), (3, "1")]
)
def test_worker_gets_its_share_and_finds_its_daemon(
    daemon: MpsDaemon, share: int, percent: str
) -> None:
    assert daemon.environment("GPU-2", share) == {
        "CUDA_VISIBLE_DEVICES": "GPU-2",
        "CUDA_MPS_PIPE_DIRECTORY": str(daemon.pipes),
        "CUDA_MPS_LOG_DIRECTORY": str(daemon.logs),
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": percent,
    }


def test_whole_gpu_or_slice_needs_no_daemon() -> None:
    assert gpu_environment("MIG-7") == {"CUDA_VISIBLE_DEVICES": "MIG-7"}


@pytest.mark.parametrize("share", [0, 1, 301])
def test_no_such_share(share: int) -> None:
    with pytest.raises(InputError, match=r"neither 1/v nor whole percents"):
        thread_percentage(share)
