"""Traces as a receiver sees them."""

import sys
from collections.abc import Iterator

import pytest

from flows.operations.traces.otlp import Receiver, ReceiverError, RefusedError, endpoint
from flows.operations.traces.spans import Span, Trace
from tests.fakes.otlp_receiver import Received, attributes, otlp_receiver, took_us
from tests.ports import free_ports
from triton_backend.contract.errors import InputError
from triton_backend.serve_folder.traceparent import TraceParent

PARENT = TraceParent("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7", sampled=True)
BOOT_US = 1_767_268_800_000_000


def a_trace(number: int = 7, parent: TraceParent | None = PARENT, error: str = "") -> Trace:
    child = Span(name="vgpu 0", start_us=20, end_us=50, attributes={"poolpipe.stage": 0})
    wait = Span(name="wait", start_us=10, end_us=20, attributes={})
    root = Span(
        name="infer a",
        start_us=10,
        end_us=60,
        attributes={"poolpipe.request": number, "poolpipe.events": True},
        children=(wait, child),
    )
    trace_id = parent.trace_id if parent else "f" * 32
    return Trace(root=root, trace_id=trace_id, parent=parent, boot_wall_us=BOOT_US, error=error)


@pytest.fixture
def received() -> Iterator[Received]:
    with otlp_receiver() as received:
        yield received


def send(received: Received, *traces: Trace) -> None:
    receiver = Receiver(received.url, patience_s=5.0)
    try:
        receiver.send(traces)
    finally:
        receiver.close()


def test_a_trace_is_one_tree_below_the_clients_span(received: Received) -> None:
    send(received, a_trace(error="too late"))
    (root,) = received.roots()
    assert received.tree(root) == ("infer a", [("wait", []), ("vgpu 0", [])])
    assert {span.trace_id.hex() for span in received.spans} == {PARENT.trace_id}
    assert root.parent_span_id.hex() == PARENT.span_id
    assert root.start_time_unix_nano == (BOOT_US + 10) * 1000
    assert [took_us(span) for span in (root, *received.children(root))] == [50, 10, 30]
    assert attributes(root) == {"request": 7, "events": True}
    assert (root.kind, root.status.code, root.status.message) == (2, 2, "too late")
    assert [span.kind for span in received.children(root)] == [1, 1]


def test_spans_are_the_same_however_often_they_are_sent(received: Received) -> None:
    own = a_trace(parent=None)
    send(received, a_trace(7), a_trace(8), own)
    first = [span.span_id for span in received.spans]
    assert len(set(first)) == 9
    send(received, a_trace(7), a_trace(8), own)
    assert [span.span_id for span in received.spans[9:]] == first
    assert [root.parent_span_id.hex() for root in received.roots("f" * 32)] == ["", ""]


def test_more_spans_than_one_message_takes_are_sent_in_several(
    received: Received, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flows.operations.traces.otlp.SPANS_AT_ONCE", 4)
    send(received, a_trace(7), a_trace(8))
    assert (len(received.bodies), len(received.spans)) == (2, 6)


def test_a_receiver_that_refuses_or_is_not_there_is_named_with_the_reason() -> None:
    with otlp_receiver(refusals=1) as received, pytest.raises(RefusedError) as refused:
        send(received, a_trace())
    assert str(refused.value) == (
        f"--otlp {received.url}/v1/traces: nothing is received: Failed to export spans batch"
        " code: 400, reason: not today"
    )
    (port,) = free_ports(1)
    receiver = Receiver(f"http://127.0.0.1:{port}", patience_s=1.5)
    with pytest.raises(ReceiverError) as away:
        receiver.send([a_trace()])
    assert not isinstance(away.value, RefusedError)
    assert str(away.value) == (
        f"--otlp http://127.0.0.1:{port}/v1/traces: nothing is received: Failed to establish a new"
        " connection: [Errno 111] Connection refused"
    )


@pytest.mark.parametrize(
    ("url", "where"),
    [
        ("http://collector:4318", "http://collector:4318/v1/traces"),
        ("http://collector:4318/", "http://collector:4318/v1/traces"),
        ("https://collector/otlp/v1/traces", "https://collector/otlp/v1/traces"),
    ],
)
def test_the_path_of_otlp_is_added_where_a_url_has_none(url: str, where: str) -> None:
    assert endpoint(url) == where


@pytest.mark.parametrize(
    "url", ["", "collector:4318", "ftp://a", "http://", "http://a:b", "http://["]
)
def test_what_is_no_url_is_refused_by_name(url: str) -> None:
    with pytest.raises(InputError, match="--otlp: "):
        endpoint(url)


@pytest.mark.parametrize("account", ["shop:secret@", "secret@"])
def test_a_password_in_the_url_is_refused_and_not_shown(account: str) -> None:
    with pytest.raises(InputError, match=r"--otlp: the URL of host has a user") as found:
        endpoint(f"https://{account}host:4318")
    assert "secret" not in str(found.value)


def test_without_the_extra_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(InputError, match=r"traces: .* pip install poolpipe\[otel\]"):
        Receiver("http://localhost:4318", patience_s=1.0)
