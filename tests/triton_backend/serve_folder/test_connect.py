"""Real servers that share a port, of which one is asked for by its name."""

import contextlib
import json
import socket
import threading
from collections.abc import Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from triton_backend.serve_folder.connect import connect_to


class Named(ThreadingHTTPServer):
    """A server that says its name at /v2, and what was asked of it elsewhere."""

    def __init__(self, port: int, name: str) -> None:
        self.name = name
        super().__init__(("127.0.0.1", port), Answer, bind_and_activate=False)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self.server_bind()
        self.server_activate()


class Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        assert isinstance(self.server, Named)
        name = self.server.name
        text = json.dumps({"name": name} if self.path == "/v2" else [name, self.path]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # as the base has it
        pass


@contextlib.contextmanager
def serving(name: str, port: int = 0) -> Generator[int]:
    server = Named(port, name)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def asked(port: int, name: str) -> list[str]:
    with contextlib.closing(connect_to("127.0.0.1", port, name, 5.0)) as connection:
        connection.request("GET", "/mine")
        return json.loads(connection.getresponse().read())


@pytest.mark.long
def test_of_two_on_a_port_the_one_meant_is_asked() -> None:
    with serving("gateway-1") as port, serving("gateway-2", port):
        for name in ["gateway-1", "gateway-2"] * 5:
            assert asked(port, name) == [name, "/mine"]


def test_one_that_is_not_there_is_told_from_the_other() -> None:
    with serving("gateway-1") as port:
        with pytest.raises(OSError, match="gateway-2 does not answer"):
            connect_to("127.0.0.1", port, "gateway-2", 5.0)
        assert asked(port, "gateway-1") == ["gateway-1", "/mine"]
    with pytest.raises(OSError, match="gateway-1 does not answer"):
        connect_to("127.0.0.1", port, "gateway-1", 5.0)
