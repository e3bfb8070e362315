"""Metrics as an endpoint gives them, and endpoints that end in the middle of an answer."""

import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager

import pytest

from flows.system_metrics import MetricsError, by_label, parse_metrics, read_metrics

ANSWERS = {
    "cut short": b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\npoolpipe_requests_served 1\n",
    "not HTTP": b"nonsense\r\n\r\n",
    "no answer": b"",
    "an error": b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n",
    "not text": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n\xff\xfe",
}


@contextmanager
def answering(answer: bytes) -> Generator[str]:
    """An endpoint that reads a request, says this and hangs up, as often as it is asked."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(65_536)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/metrics"
        listener.shutdown(socket.SHUT_RDWR)
    thread.join()


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS.keys())
def test_an_endpoint_that_does_not_answer_to_the_end_is_said(answer: bytes) -> None:
    with answering(answer) as url, pytest.raises(MetricsError, match="no metrics from http"):
        read_metrics(url, timeout_s=5)


def test_text_is_read_with_escapes_and_without_foreign_lines() -> None:
    text = (
        '# TYPE a counter\npoolpipe_a{x="1",n="q\\"\\\\\\n"} 2.5 1700000000\npoolpipe_a 3\nnv_b 1\n'
        "nv_c{ 1\n"
    )
    assert parse_metrics(text) == {"a": {(("n", 'q"\\\n'), ("x", "1")): 2.5, (): 3.0}}
    assert by_label({(("k", "a"), ("z", "1")): 1, (("k", "a"),): 2, (): 9}, "k") == {("a",): 3}


@pytest.mark.parametrize(
    "line",
    ["poolpipe_b{ 1", "poolpipe_a{} x", 'poolpipe_a{k="v} 1', "poolpipe_a", "poolpipe_a{k=v} 1"],
)
def test_a_line_that_is_no_metric_is_named(line: str) -> None:
    with pytest.raises(MetricsError, match=r"^http://h/metrics, line 3: not a metric: 'poolpipe_"):
        parse_metrics(f"poolpipe_a 1\n\n{line}\n", "http://h/metrics")


def test_an_endpoint_whose_lines_are_no_metrics_is_said() -> None:
    body = b"poolpipe_a x\n"
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    with answering(answer) as url, pytest.raises(MetricsError, match="line 1: not a metric"):
        read_metrics(url, timeout_s=5)


def test_every_time_is_in_seconds_and_no_counter_says_total() -> None:
    text = """
poolpipe_requests_served_total{model="m"} 7
poolpipe_latency_ms_bucket{model="m",le="250"} 5
poolpipe_latency_seconds_bucket{model="n",le="0.25"} 6
poolpipe_latency_ms_bucket{model="m",le="+Inf"} 7
poolpipe_latency_ms_sum{model="m"} 1500
poolpipe_stage_busy_us_total 2500000
poolpipe_stage_busy_seconds_total{model="m"} 2.5
"""
    m, n = ("model", "m"), ("model", "n")
    assert parse_metrics(text) == {
        "requests_served": {(m,): 7.0},
        "latency_seconds_bucket": {
            (("le", "0.25"), m): 5.0,
            (("le", "0.25"), n): 6.0,
            (("le", "inf"), m): 7.0,
        },
        "latency_seconds_sum": {(m,): 1.5},
        "stage_busy_seconds": {(): 2.5, (m,): 2.5},
    }
