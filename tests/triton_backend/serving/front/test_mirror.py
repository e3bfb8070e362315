"""A front copies requests while there is an order for them, and writes what it copied once."""

from pathlib import Path

import numpy as np
import pytest

from tests.triton_backend.serving.front.requests.test_pending import Asked
from triton_backend.runtimes.clock import SystemClock
from triton_backend.serve_folder.mirror import MirrorOrder, read_copies, withdraw
from triton_backend.serve_folder.settings import ServeSettings
from triton_backend.serving.front.counters import FrontCounters, latency_bounds_s
from triton_backend.serving.front.mirror import MOST_BYTES, Mirror
from triton_backend.serving.front.requests.pending import PendingRequests

LATER_US = 60_000_000


@pytest.fixture
def clock() -> SystemClock:
    return SystemClock()


@pytest.fixture
def mirror(tmp_path: Path, clock: SystemClock) -> Mirror:
    settings = ServeSettings(
        system="s",
        instance="i",
        folder=tmp_path,
        socket_folder=tmp_path,
        token="t",
        python="python",
    )
    return Mirror("m", settings, clock)


def arrays(value: float, samples: int = 3) -> dict[str, np.ndarray]:
    return {"a.b": np.full((samples, 2), value, np.float32)}


def order(folder: Path, clock: SystemClock, requests: int, *models: str) -> MirrorOrder:
    return MirrorOrder.place(folder, models or ("m",), requests, clock.now_us() + LATER_US)


def test_as_many_as_ordered_are_written_one_sample_each(
    tmp_path: Path, mirror: Mirror, clock: SystemClock
) -> None:
    wanted = order(tmp_path, clock, 2)
    mirror.look()
    given = arrays(1.0)
    mirror.copy(given, arrays(10.0))
    given["a.b"][:] = -1.0  # its memory is used again once it is answered
    mirror.copy(arrays(2.0, samples=1), arrays(20.0))
    assert mirror.wanted == 0
    mirror.copy(arrays(3.0), arrays(30.0))
    mirror.look()
    path = wanted.copies(tmp_path, "m", 0)
    copies = read_copies(path)
    assert [one.inputs["a.b"].tolist() for one in copies] == [[[1.0, 1.0]], [[2.0, 2.0]]]
    assert [one.outputs["a.b"].tolist() for one in copies] == [[[10.0, 10.0]], [[20.0, 20.0]]]
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    wanted.remove(tmp_path, 1)
    mirror.look()
    assert not list(path.parent.iterdir())


def test_an_order_that_is_withdrawn_is_answered_by_what_came(
    tmp_path: Path, mirror: Mirror, clock: SystemClock
) -> None:
    wanted = order(tmp_path, clock, 9)
    mirror.look()
    mirror.copy(arrays(1.0), arrays(10.0))
    mirror.look()
    assert not wanted.copies(tmp_path, "m", 0).exists()
    withdraw(tmp_path)
    mirror.look()
    assert len(read_copies(wanted.copies(tmp_path, "m", 0))) == 1
    assert mirror.wanted == 0


def test_nothing_is_kept_of_other_models_or_past_the_time(
    tmp_path: Path, mirror: Mirror, clock: SystemClock
) -> None:
    order(tmp_path, clock, 2, "other")
    mirror.look()
    assert mirror.wanted == 0
    past = MirrorOrder.place(tmp_path, ["m"], 2, clock.now_us() - 1)
    mirror.look()
    mirror.copy(arrays(1.0), arrays(10.0))
    mirror.look()
    assert mirror.wanted == 0
    assert not past.copies(tmp_path, "m", 0).exists()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"name": "x"}', '{"models": 3}'])
def test_a_damaged_order_is_none(tmp_path: Path, mirror: Mirror, text: str) -> None:
    (tmp_path / "mirror").mkdir()
    (tmp_path / "mirror" / "order.json").write_text(text)
    mirror.look()
    assert mirror.wanted == 0


def test_memory_is_bounded_and_texts_are_not_kept(
    tmp_path: Path, mirror: Mirror, clock: SystemClock
) -> None:
    wanted = order(tmp_path, clock, 1000)
    mirror.look()
    mirror.copy({"t": np.array([b"x"], np.object_)}, arrays(1.0))
    assert mirror.wanted == 1000
    large: dict[str, np.ndarray] = {"x": np.zeros((1, MOST_BYTES // 4 // 2), np.float32)}
    for _ in range(3):
        mirror.copy(large, {})
    mirror.look()
    assert len(read_copies(wanted.copies(tmp_path, "m", 0))) == 2


def test_requests_that_are_answered_are_copied(
    tmp_path: Path, mirror: Mirror, clock: SystemClock
) -> None:
    pending = PendingRequests("m", tmp_path, clock, FrontCounters(latency_bounds_s(100_000)))
    pending.mirror = mirror
    wanted = order(tmp_path, clock, 1)
    mirror.look()
    request = Asked().request()
    request.tensors = arrays(1.0)
    assert pending.admit(request, limit=1)
    pending.answer_one(request, arrays(10.0), None, lambda: None)
    mirror.look()
    (copied,) = read_copies(wanted.copies(tmp_path, "m", 0))
    assert copied.outputs["a.b"].tolist() == [[10.0, 10.0]]
