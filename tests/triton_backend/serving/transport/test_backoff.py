"""Pauses after failures."""

from triton_backend.serving.transport.backoff import Backoff


def test_pauses_double_up_to_the_longest_however_often_it_fails() -> None:
    backoff = Backoff(2.0, 60.0)
    pauses = [backoff.failed() for _ in range(2000)]
    assert pauses == [2.0, 4.0, 8.0, 16.0, 32.0] + [60.0] * 1995
    backoff.succeeded()
    assert backoff.failed() == 2.0
