"""The page's server: the standard library's, on the loopback address by default.

It answers GET for the page, its two JSON documents and nothing else, changes nothing, and refuses
requests for other host names or of other origins, so that no foreign web page can read it through a
browser. A host is known by the address that a request came in at, or by a name that the user gave;
a name that another party made point here is not (DNS rebinding).
"""

import ipaddress
import json
import signal
import socket
import sys
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import urlsplit

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
from triton_backend.runtimes.stage_tensors import served_models
from triton_backend.serve_folder.endpoints import check_listening, is_loopback
from triton_backend.serve_folder.settings import check_host

MOST_THREADS = 32  # requests at once; one that comes beyond them is closed unanswered
SILENT_S = 10.0  # after which a client that sends or takes nothing loses its thread
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline';"
    " connect-src 'self'; img-src data:"
)


@dataclass(frozen=True, slots=True)
class Response:
    """A response."""

    body: bytes
    kind: str
    status: HTTPStatus = HTTPStatus.OK


class PageServer:
    """The page of one watched system.

    Args:
        watch: the system.
        address: to listen at.
        port: likewise; 0: any.
        hosts: names that requests may ask for beside the address that they came in at.

    Raises:
        InputError: the address is no IPv4 address, a name none of a host, or the port cannot be
            listened on.
    """

    def __init__(
        self,
        watch: SystemWatch,
        *,
        address: str = "127.0.0.1",
        port: int = 8080,
        hosts: Collection[str] = (),
    ) -> None:
        check_listening("--address", address)  # an empty one would be every address
        for host in hosts:
            check_host("--host-name", host)
        self._watch = watch
        self._address = address
        self._hosts = {host.lower() for host in hosts}
        self._rendering = threading.Lock()
        self._rendered: tuple[tuple[Plan | None, str, str], bytes] | None = None
        try:
            self._server = _Server((address, port), partial(_Handler, self))
        except OSError as error:
            reason = f"cannot be listened on at {address}: {error}"
            raise InputError(f"--port {port}", reason) from error

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

    def answer(self, path: str, host: str, origin: str | None, came_in_at: str) -> Response:
        """The answer to GET `path`.

        Args:
            path: without what follows a question mark.
            host: that was asked for, with or without a port.
            origin: of the page that asks, where a browser says it.
            came_in_at: numeric address of this machine.
        """
        if not self._is_known(_name_of(f"//{host}"), came_in_at):
            return Response(
                b"wrong host: `poolpipe ui --host-name NAME` allows one more\n",
                "text/plain",
                HTTPStatus.FORBIDDEN,
            )
        if origin is not None and not self._is_known(_name_of(origin), came_in_at):
            return Response(b"wrong origin\n", "text/plain", HTTPStatus.FORBIDDEN)
        if path == "/":
            return Response(self._page(), "text/html; charset=utf-8")
        if path == "/live.json":
            return Response(self._watch.live_json.encode(), "application/json")
        if path == "/history.json":
            return Response(self._watch.history_json.encode(), "application/json")
        return Response(b"not here\n", "text/plain", HTTPStatus.NOT_FOUND)

    def _is_known(self, name: str, came_in_at: str) -> bool:
        if name in self._hosts:
            return True
        if is_loopback(came_in_at):
            return is_loopback(name)
        try:
            return ipaddress.ip_address(name) == ipaddress.ip_address(came_in_at)
        except ValueError:
            return False

    def _page(self) -> bytes:
        """The page, rendered once for all requests between two looks at the system."""
        with self._rendering:
            seen = self._watch.plan, self._watch.live_json, self._watch.history_json
            if self._rendered is None or any(
                one is not other for one, other in zip(self._rendered[0], seen, strict=True)
            ):
                self._rendered = seen, render_page(*seen).encode()
            return self._rendered[1]


def _name_of(url: str) -> str:
    """The host's name or address of `//host:port` or an origin, in lower case.

    Empty where it is none.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    return "" if parts.path or parts.username is not None else parts.hostname or ""


class _Server(ThreadingHTTPServer):
    """A thread per request, and not more than so many."""

    daemon_threads = True
    request_queue_size = MOST_THREADS

    def __init__(self, address: tuple[str, int], handler: Any) -> None:
        self._free = threading.BoundedSemaphore(MOST_THREADS)
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(
            sys.exc_info()[1], OSError
        ):  # a client that left, or was silent for too long
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    """One request."""

    timeout = SILENT_S
    connection: socket.socket

    def __init__(self, page: PageServer, *arguments: object) -> None:
        self._page = page
        super().__init__(*arguments)  # type: ignore[arg-type]  # as the server hands them over

    def do_GET(self) -> None:
        """Answer."""
        answer = self._page.answer(
            self.path.partition("?")[0],
            self.headers.get("Host", ""),
            self.headers.get("Origin"),
            str(self.connection.getsockname()[0]),
        )
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
    nothing: dict[str, list[object]] = {"models": [], "served": [], "pools": [], "vgpus": []}
    facts = nothing if plan is None else _facts(plan)
    return (
        environment()
        .get_template("ui.html.j2")
        .render(
            plan=plan,
            view=view,
            words=words,
            plan_svgs=[Markup(plan_svg(view, width)) for width in (WIDTH, NARROW)] if view else [],  # noqa: S704 - our own, escaped SVG
            facts=facts,
            live=json.loads(live_json),
            history=json.loads(history_json),
        )
    )


def _facts(plan: Plan) -> dict[str, list[object]]:
    """The plan for the page and its script: models, what clients ask for, pools with stages, vGPUs.

    `models` are the plan's, which pools and vGPUs run; `served` are the names that metrics of
    requests have: an application stands for models that only its modules run. A stage is [mark in
    the picture, key in the metrics, model number].
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
    numbers = {name: i for i, name in enumerate((*names, *(one.name for one in plan.applications)))}
    served: list[object] = [
        {
            "name": one.name,
            "slo_ms": us_to_ms(one.slo_us),
            "rate_rps": one.throughput_rps,
            "colour": model_colour(numbers[one.name]),
        }
        for one in served_models(plan)
    ]
    models: list[object] = [
        {"name": name, "colour": model_colour(i)} for i, name in enumerate(names)
    ]
    return {"models": models, "served": served, "pools": pools, "vgpus": vgpus}


def run_page(
    state_path: Path,
    *,
    address: str = "127.0.0.1",
    port: int = 8080,
    hosts: Collection[str] = (),
    warehouse: Path | None = None,
    on_ready: Callable[[str], None] = lambda _: None,
) -> None:
    """Serve the page until interrupted (the `poolpipe ui` command); `hosts` as of `PageServer`.

    `on_ready` is called with the URL once the page can be read there.

    Raises:
        InputError: as `PageServer`.
    """
    watch = SystemWatch(state_path, warehouse=warehouse)
    server = PageServer(watch, address=address, port=port, hosts=hosts)
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
