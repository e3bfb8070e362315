"""The page's server: the standard library's, on the loopback address by default.

It answers GET for the page, its two JSON documents and nothing else, changes nothing, and refuses
requests for other host names, so that no foreign web page can read it through a browser.
"""

import json
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import FrameType

from markupsafe import Markup

from flows.reporting import words
from flows.reporting.html import environment
from flows.reporting.picture import NARROW, WIDTH, plan_svg
from flows.reporting.svg import model_colour
from flows.reporting.timeline import pool_label, vgpu_label
from flows.reporting.ui.watch import SystemWatch
from flows.reporting.view import view_of
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.contract.units import us_to_ms

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:"


@dataclass(frozen=True, slots=True)
class Response:
    """What goes out."""

    body: bytes
    kind: str
    status: HTTPStatus = HTTPStatus.OK


class PageServer:
    """The page of one watched system.

    Raises:
        InputError: the port cannot be listened on.
    """

    def __init__(self, watch: SystemWatch, *, address: str = "127.0.0.1", port: int = 8080) -> None:
        self._watch = watch
        self._address = address
        try:
            self._server = ThreadingHTTPServer((address, port), partial(_Handler, self))
        except OSError as error:
            reason = f"cannot be listened on at {address}: {error}"
            raise InputError(f"--port {port}", reason) from error
        self._server.daemon_threads = True

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://{self._address}:{self._server.server_address[1]}/"

    def serve(self) -> None:
        """Answer until `close`."""
        self._server.serve_forever(poll_interval=0.2)

    def close(self) -> None:
        """Stop answering (from another thread than `serve`) and give the port back."""
        self._server.shutdown()
        self._server.server_close()

    def answer(self, path: str, host: str) -> Response:
        """The answer to GET `path` asked of `host`."""
        if self._address in LOOPBACK and host.rpartition(":")[0] not in LOOPBACK:
            return Response(b"wrong host\n", "text/plain", HTTPStatus.FORBIDDEN)
        if path == "/":
            page = render_page(self._watch.plan, self._watch.live_json, self._watch.history_json)
            return Response(page.encode(), "text/html; charset=utf-8")
        if path == "/live.json":
            return Response(self._watch.live_json.encode(), "application/json")
        if path == "/history.json":
            return Response(self._watch.history_json.encode(), "application/json")
        return Response(b"not here\n", "text/plain", HTTPStatus.NOT_FOUND)


class _Handler(BaseHTTPRequestHandler):
    """One request."""

    def __init__(self, page: PageServer, *arguments: object) -> None:
        self._page = page
        super().__init__(*arguments)  # type: ignore[arg-type]  # as the server hands them over

    def do_GET(self) -> None:
        """Answer."""
        answer = self._page.answer(self.path.partition("?")[0], self.headers.get("Host", ""))
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.kind)
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("Content-Security-Policy", POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(answer.body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        """Say nothing: a page that looks every two seconds would fill any log."""


def render_page(plan: Plan | None, live_json: str, history_json: str) -> str:
    """The page with the data of this moment in it, so that it is complete at once."""
    view = view_of(plan) if plan else None
    facts = {"models": [], "pools": [], "vgpus": []} if plan is None else _facts(plan)
    return (
        environment()
        .get_template("ui.html.j2")
        .render(
            plan=plan,
            view=view,
            words=words,
            colour=model_colour,
            plan_svgs=[Markup(plan_svg(view, width)) for width in (WIDTH, NARROW)] if view else [],  # noqa: S704 - our own, escaped SVG
            facts=facts,
            live=json.loads(live_json),
            history=json.loads(history_json),
        )
    )


def _facts(plan: Plan) -> dict[str, list[object]]:
    """What the script must know of the plan: names, pools with their stages, vGPUs.

    A stage is [mark in the picture, key in the metrics, model number].
    """
    names = [model.name for model in plan.models]
    stages: list[list[object]] = [[] for _ in plan.pools]
    for model, pipeline, stage, pool in plan.stage_rows():
        mark = f"{model}.{pipeline}.{stage}"
        metric = f"{names[model]}|{pipeline}|{plan.pools[pool].gpu_class}|{stage}"
        stages[pool].append([mark, metric, model])
    pools: list[object] = [
        {"label": pool_label(pool, names), "models": pool.models, "stages": stages[pool.number]}
        for pool in view_of(plan).pools
    ]
    vgpus: list[object] = [[vgpu.pool, vgpu_label(plan, vgpu.slot)] for vgpu in plan.vgpus()]
    models: list[object] = [
        {"name": m.name, "slo_ms": us_to_ms(m.slo_us), "colour": model_colour(i)}
        for i, m in enumerate(plan.models)
    ]
    return {"models": models, "pools": pools, "vgpus": vgpus}


def run_page(
    state_path: Path,
    *,
    address: str = "127.0.0.1",
    port: int = 8080,
    warehouse: Path | None = None,
    on_ready: Callable[[str], None] = lambda _: None,
) -> None:
    """Serve the page until interrupted (the `poolpipe ui` command).

    `on_ready` is called with the URL once the page can be read there.

    Raises:
        InputError: the port cannot be listened on.
    """
    watch = SystemWatch(state_path, warehouse=warehouse)
    server = PageServer(watch, address=address, port=port)
    on_ready(server.url)
    watch.start()
    ended = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        del number, frame
        ended.set()

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    serving = threading.Thread(target=server.serve, name="page", daemon=True)
    serving.start()
    try:
        ended.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        server.close()
        watch.stop()
