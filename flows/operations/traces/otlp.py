"""Traces sent to a receiver by OTLP over HTTP: the one door to OpenTelemetry."""

import hashlib
import logging
import re
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any
from urllib.parse import urlsplit

from flows.operations.traces.spans import Span, Trace
from triton_backend.contract.errors import InputError, PoolPipeError

TRACES_PATH = "/v1/traces"
SPANS_AT_ONCE = 2048
NS_PER_US = 1000
SERVICE = "poolpipe"
_LOGGER = "opentelemetry"
_CAUSE = re.compile(r"""\(Caused by \w+\(["'](?:<[^>]*>|\w+\([^)]*\)): (.*)["']\)\)$""")
"""The reason in urllib3's text of a connection that fails, behind its own objects and numbers."""


class ReceiverError(PoolPipeError):
    """A receiver did not take what it was sent, asked again and again until the time was up."""


class RefusedError(ReceiverError):
    """A receiver is there and refuses what it was sent; the same again would be refused, too."""


class Receiver:
    """The receiver of spans.

    Headers and certificates are those of OpenTelemetry's own variables
    (`OTEL_EXPORTER_OTLP_HEADERS`, `OTEL_EXPORTER_OTLP_CERTIFICATE`).

    Args:
        url: of the receiver; without a path, OTLP's own (`/v1/traces`) is added.
        patience_s: how long one sending may take, attempts and pauses together.

    Raises:
        InputError: it is no URL, or the extra `otel` is not installed.
    """

    def __init__(self, url: str, *, patience_s: float) -> None:
        self.url = endpoint(url)
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415 -- an extra
                OTLPSpanExporter,
            )
            from opentelemetry.sdk.trace.export import SpanExportResult  # noqa: PLC0415
        except ImportError as error:
            raise InputError(
                "traces", "OpenTelemetry is not installed: pip install poolpipe[otel]"
            ) from error
        self._said = _LastMessage()
        self._exporter = OTLPSpanExporter(endpoint=self.url, timeout=patience_s)
        self._success = SpanExportResult.SUCCESS

    def send(self, traces: Sequence[Trace]) -> None:
        """Send traces.

        Raises:
            RefusedError: it refuses some of them.
            ReceiverError: it did not take all of them in time.
        """
        spans = [span for trace in traces for span in _readable(trace)]
        for first in range(0, len(spans), SPANS_AT_ONCE):
            if self._exporter.export(spans[first : first + SPANS_AT_ONCE]) is not self._success:
                text = f"--otlp {self.url}: nothing is received: {self._said.text}"
                raise ReceiverError(text) if self._said.ended_waiting else RefusedError(text)

    def close(self) -> None:
        """Close the connection."""
        self._exporter.shutdown()
        self._said.close()


def endpoint(url: str) -> str:
    """Where spans of a receiver go.

    Raises:
        InputError: it is no URL, or has a password, which messages would show.
    """
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise InputError("--otlp", f"{url!r} is no URL: {error}") from error
    if parts.username is not None or parts.password is not None:
        reason = "has a user or a password; give them by OTEL_EXPORTER_OTLP_HEADERS"
        raise InputError("--otlp", f"the URL of {parts.hostname} {reason}")
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise InputError("--otlp", f"{url!r} is no URL such as http://localhost:4318")
    return parts._replace(path=TRACES_PATH).geturl() if parts.path in {"", "/"} else url


class _LastMessage(logging.Handler):
    """Keeps what the library logs, in place of printing it: the reason of a failure.

    Attributes:
        ended_waiting: the last failure came after attempts that may succeed later; without it, the
            library saw no sense in another.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = "not within the time that it was given"
        self.ended_waiting = False
        self._logger = logging.getLogger(_LOGGER)
        self._propagated, self._logger.propagate = self._logger.propagate, False
        self._logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it."""
        text = " ".join(record.getMessage().split())
        # The attempts before name the reason, the last message only that there were enough.
        self.ended_waiting = "max retries" in text
        if not self.ended_waiting:
            said = text.split(" encountered while ")[0]
            cause = _CAUSE.search(said)
            self.text = cause[1] if cause else said

    def close(self) -> None:
        """Let the library's messages go where they went."""
        self._logger.removeHandler(self)
        self._logger.propagate = self._propagated
        super().close()


def _readable(trace: Trace) -> Iterator[Any]:
    """The spans of a trace as the library's, the root first."""
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
    from opentelemetry.sdk.trace import ReadableSpan  # noqa: PLC0415
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope  # noqa: PLC0415
    from opentelemetry.trace import SpanContext, SpanKind, TraceFlags  # noqa: PLC0415
    from opentelemetry.trace.status import Status, StatusCode  # noqa: PLC0415

    resource = Resource({"service.name": SERVICE})
    scope = InstrumentationScope(SERVICE)
    trace_id, sampled = int(trace.trace_id, 16), TraceFlags(TraceFlags.SAMPLED)

    def spans(span: Span, parent: SpanContext | None, path: str) -> Iterator[ReadableSpan]:
        context = SpanContext(trace_id, _span_id(trace, path), is_remote=False, trace_flags=sampled)
        root = span is trace.root
        status = Status(StatusCode.ERROR, trace.error) if root and trace.error else Status()
        yield ReadableSpan(
            name=span.name,
            context=context,
            parent=parent,
            resource=resource,
            attributes=span.attributes,
            kind=SpanKind.SERVER if root else SpanKind.INTERNAL,
            status=status,
            start_time=(trace.boot_wall_us + span.start_us) * NS_PER_US,
            end_time=(trace.boot_wall_us + span.end_us) * NS_PER_US,
            instrumentation_scope=scope,
        )
        parts = (
            spans(child, context, f"{path}/{place}") for place, child in enumerate(span.children)
        )
        yield from chain.from_iterable(parts)

    client = None
    if trace.parent is not None:
        client_span = int(trace.parent.span_id, 16)
        client = SpanContext(trace_id, client_span, is_remote=True, trace_flags=sampled)
    yield from spans(trace.root, client, "")


def _span_id(trace: Trace, path: str) -> int:
    """The same whenever the same files are read, so that what is sent twice is one span."""
    root = trace.root
    parent = trace.parent.span_id if trace.parent else ""
    text = f"{trace.trace_id}/{parent}/{root.attributes['poolpipe.request']}{path}"
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest) or 1
