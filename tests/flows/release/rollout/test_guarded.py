"""Watching a plan that was rolled out: what is a breach, and what is only a look that failed."""

import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from flows.release.rollout.guarded import RolloutOptions, bake
from flows.release.rollout.outcomes import breach_of, outcomes_of
from flows.release.server.running import ServerState
from flows.system_metrics import MetricsError, parse_metrics
from tests.fakes.plans import two_stages

PLAN = two_stages()
NAME = PLAN.models[0].name
OPTIONS = RolloutOptions(bake_seconds=0.3, poll_seconds=0.02)


@contextmanager
def counting(served: int, late: int) -> Generator[ServerState]:
    """A system whose metrics say this; every other answer is cut short."""

    class Metrics(BaseHTTPRequestHandler):
        looks = 0

        def do_GET(self) -> None:
            type(self).looks += 1
            lines = (("served", served), ("late", late))
            body = "".join(
                f'poolpipe_requests_{name}{{model="{NAME}"}} {count}\n' for name, count in lines
            ).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body) + 100 * (self.looks % 2)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Metrics)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    ports = {"metrics": server.server_address[1]}
    yield ServerState({"address": "127.0.0.1", "ports": ports})
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_breach_is_seen_between_answers_that_are_cut_short() -> None:
    with counting(50, 50) as state:
        assert "attains 50.00% of 100 requests" in str(bake(state, PLAN, {}, OPTIONS))


def test_a_plan_that_does_well_passes_though_looks_fail() -> None:
    with counting(100, 0) as state:
        assert bake(state, PLAN, {}, OPTIONS) is None


def test_a_watch_that_sees_nothing_says_so() -> None:
    gone = ServerState({"address": "127.0.0.1", "ports": {"metrics": 9}})
    with pytest.raises(MetricsError, match="no metrics"):
        bake(gone, PLAN, {}, OPTIONS)


def test_requests_over_a_quota_are_no_breach() -> None:
    """Their client is to blame, not the plan."""
    lines = [
        f'poolpipe_requests_served_total{{model="{NAME}"}} 100',
        f'poolpipe_requests_dropped_total{{model="{NAME}",reason="quota"}} 900',
        f'poolpipe_requests_dropped_total{{model="{NAME}",reason="overload"}} 2',
    ]
    seen = outcomes_of(parse_metrics("\n".join(lines)))[NAME]
    assert (seen.served, seen.dropped) == (100, 2)
    assert breach_of(NAME, 10.0, seen, OPTIONS) is None
