"""A receiver of OTLP over HTTP that decodes what it is sent by `opentelemetry-proto`."""

import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span


@dataclass
class Received:
    """Spans as they came.

    Attributes:
        refusals: answers 400 so many times first.
        bodies: what was sent, for tests that look for what must not be in it.
    """

    url: str = ""
    refusals: int = 0
    spans: list[Span] = field(default_factory=list[Span])
    bodies: list[bytes] = field(default_factory=list[bytes])

    def roots(self, trace_id: str | None = None) -> list[Span]:
        """Spans whose parent was not sent, of one trace or all."""
        known = {span.span_id for span in self.spans}
        return [
            span
            for span in self.spans
            if span.parent_span_id not in known
            and (trace_id is None or span.trace_id.hex() == trace_id)
        ]

    def children(self, parent: Span) -> list[Span]:
        """Spans right below one, as they came."""
        return [span for span in self.spans if span.parent_span_id == parent.span_id]

    def names(self, trace_id: str) -> list[str]:
        """Names of the spans right below the root of a trace; none where there is no trace."""
        return [child.name for root in self.roots(trace_id) for child in self.children(root)]

    def tree(self, span: Span) -> tuple[str, list[Any]]:
        """Names of a span and of those below it."""
        return span.name, [self.tree(child) for child in self.children(span)]


def took_us(span: Span) -> int:
    """How long a span lasts."""
    nanoseconds = span.end_time_unix_nano - span.start_time_unix_nano
    assert nanoseconds % 1000 == 0
    return nanoseconds // 1000


def attributes(span: Span) -> dict[str, Any]:
    """Attributes of a span by name, `poolpipe.` left out."""
    return {
        each.key.removeprefix("poolpipe."): getattr(each.value, str(each.value.WhichOneof("value")))
        for each in span.attributes
    }


@contextmanager
def otlp_receiver(*, refusals: int = 0) -> Generator[Received]:
    """A receiver on a free port of loopback."""
    received = Received(refusals=refusals)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            assert self.path == "/v1/traces"
            received.bodies.append(body)
            answer = ExportTraceServiceResponse().SerializeToString()
            if received.refusals:
                received.refusals -= 1
                self.send_response(400, "not today")
            else:
                request = ExportTraceServiceRequest.FromString(body)
                for resource in request.resource_spans:
                    for scope in resource.scope_spans:
                        received.spans.extend(scope.spans)
                self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    received.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield received
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
