"""Which values of `traceparent` are taken, by the W3C's rules."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triton_backend.serve_folder.traceparent import TraceParent

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.mark.parametrize(
    ("text", "sampled"),
    [
        (f"00-{TRACE}-{SPAN}-01", True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f"00-{TRACE}-{SPAN}-03", True),
        (f"cc-{TRACE}-{SPAN}-01", True),
        (f"cc-{TRACE}-{SPAN}-01-what-the-future-will-be-like", True),
    ],
)
def test_valid_values_name_trace_and_span(text: str, *, sampled: bool) -> None:
    assert TraceParent.parse(text) == (TRACE, SPAN, sampled)


@pytest.mark.parametrize(
    "text",
    [
        "",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE}-{SPAN}-01\n",
        f"cc-{TRACE}-{SPAN}-01.more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE[:-1]}٣-{SPAN}-01",
        f"cc-{TRACE}-{SPAN}-01-{'m' * 1000}",
    ],
)
def test_malformed_values_are_none(text: str) -> None:
    assert TraceParent.parse(text) is None


@given(st.text(max_size=300))
def test_any_text_is_taken_or_none(text: str) -> None:
    parsed = TraceParent.parse(text)
    assert parsed is None or parsed.trace_id in text
