"""Names of hosts: looked up beside the caller, asked again after a failure."""

import threading

import pytest

from triton_backend.serving.transport.names import HostNames


def test_a_look_up_that_no_thread_can_make_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    names = HostNames()

    def no_thread(_: threading.Thread) -> None:
        message = "can't start new thread"
        raise RuntimeError(message)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", no_thread)
        assert names.address("localhost", 0.0) is None
    assert names.address("localhost", 30.0) == "127.0.0.1"
