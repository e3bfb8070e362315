"""The request log: a line for each request that was not served in time, or is traced."""

import json
from pathlib import Path

from triton_backend.runtimes.clock import Clock
from triton_backend.serve_folder.names import short_name
from triton_backend.serve_folder.traceparent import TraceParent
from triton_backend.serving.front.requests.request import Request
from triton_backend.serving.transport.rolling_files import RollingLines

MOST_SHOWN_CHARACTERS = 256  # of what a client chose: a traceparent has 55


def is_traced(request: Request) -> bool:
    """True if the client's `traceparent` says `sampled`."""
    parent = TraceParent.parse(request.trace) if request.trace else None
    return parent is not None and parent.sampled


class RequestLog:
    """The lines `requests-*.jsonl`: requests not served in time, and those their clients trace."""

    def __init__(self, folder: Path, model: str, clock: Clock) -> None:
        self._model = model
        self._clock = clock
        self._lines = RollingLines(folder, f"requests-{short_name(model)}", clock.wall_us())

    def note(self, request: Request, outcome: str, message: str = "") -> None:
        """One line for one request."""
        self._lines.write(
            json.dumps(
                {
                    "wall_us": self._clock.wall_us(),
                    "model": self._model,
                    "request": request.number,
                    "client": request.client,
                    "request_id": request.client_id[:MOST_SHOWN_CHARACTERS],
                    "traceparent": request.trace[:MOST_SHOWN_CHARACTERS],
                    "batch": request.batch_id,
                    "samples": request.samples,
                    "arrival_us": request.arrival_us,
                    "deadline_us": request.deadline_us,
                    "answered_us": self._clock.now_us(),
                    "outcome": outcome,
                    "message": message,
                    "priority": "low" if request.low else "high",
                }
            )
        )

    def flush(self) -> None:
        """Write what is buffered."""
        self._lines.flush()

    def close(self) -> None:
        """Flush and close."""
        self._lines.close()
