"""The W3C header `traceparent`, by which a client says which trace a request belongs to.

Source: W3C Trace Context, level 1, section 3.2. Fronts keep what is valid in their request logs,
`poolpipe traces` reads it there.
"""

import re
from typing import NamedTuple, Self

_LONGEST = 256  # characters; version 00 has 55, later ones may append
_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)
_SAMPLED = 1


class TraceParent(NamedTuple):
    """The client's span, in whose trace a request stands.

    Attributes:
        trace_id: 32 hexadecimal digits.
        span_id: 16 of them.
        sampled: true if the client records its trace.
    """

    trace_id: str
    span_id: str
    sampled: bool

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """The header's value; None where it is malformed, which is no error."""
        found = _FORM.fullmatch(text) if len(text) <= _LONGEST else None
        if found is None:
            return None
        version, trace_id, span_id, flags, more = found.groups()
        unknown = version == "ff" or (version == "00" and more is not None)
        if unknown or not trace_id.strip("0") or not span_id.strip("0"):
            return None
        return cls(trace_id, span_id, bool(int(flags, 16) & _SAMPLED))
