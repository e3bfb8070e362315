"""The request log."""

import json
from pathlib import Path

from triton_backend.runtimes.clock import SystemClock
from triton_backend.serving.front.requests.log import RequestLog
from triton_backend.serving.front.requests.request import Request


def test_what_a_client_chose_is_logged_in_part(tmp_path: Path) -> None:
    log = RequestLog(tmp_path, "m", SystemClock())
    request = Request({}, 1, 0, 1, print, bool, client_id="c" * 1_000_000, trace="t" * 1_000_000)
    log.note(request, "served")
    log.close()
    (path,) = tmp_path.iterdir()
    line = json.loads(path.read_text())
    assert (line["request_id"], line["traceparent"]) == ("c" * 256, "t" * 256)
