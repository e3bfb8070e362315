"""Prefect's environment.

Whom a server that is started from here lets in, and who has its credentials.
"""

import asyncio
import base64
import json
import os
import signal
import stat
import subprocess
import sys
import threading
import tomllib
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
import websockets

from flows.clock import now_utc
from flows.deployments.orchestration import home
from flows.deployments.orchestration.home import PROFILES, prepare_prefect
from flows.operations.doctor.prefect_server import prefect_server
from flows.operations.doctor.registry import Finding, Severity, Surroundings
from flows.state import ProjectState
from tests.flows.deployments.conftest import wait_for_health
from tests.ports import free_ports
from triton_backend.contract.errors import InputError

ROOT = Path(__file__).parents[4]
FOREIGN = "http://attacker.example"
PREPARED = """
import json, os
from flows.deployments import local
local.prepare(local.place_of())
print(json.dumps(dict(os.environ)))
"""
FLOW = """
from prefect import flow, task
@task
def twice(number): return 2 * number
@flow
def six(): return twice(3)
print(six())
"""
AUTH, SERVER_AUTH = "PREFECT_API_AUTH_STRING", "PREFECT_SERVER_API_AUTH_STRING"


def prepared(
    monkeypatch: pytest.MonkeyPatch, folder: Path, **environment: str
) -> Mapping[str, str]:
    """The environment after `prepare_prefect` in another one."""
    monkeypatch.setattr(home.os, "environ", environment)
    prepare_prefect(folder)
    return environment


def test_credentials_are_made_once_for_the_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = prepared(monkeypatch, tmp_path / "a")
    assert first[AUTH] == first[SERVER_AUTH] != prepared(monkeypatch, tmp_path / "b")[AUTH]
    profiles = tmp_path / "a" / PROFILES
    assert stat.S_IMODE(profiles.stat().st_mode) == 0o600
    assert list((tmp_path / "a").iterdir()) == [profiles]
    profiles.chmod(0o644)
    assert prepared(monkeypatch, tmp_path / "a") == first
    assert stat.S_IMODE(profiles.stat().st_mode) == 0o600


def test_profiles_of_the_user_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profiles = tmp_path / PROFILES
    own = 'active = "mine"\n\n[profiles.mine]\nPREFECT_LOGGING_LEVEL = "DEBUG"\n'
    profiles.write_text(own)
    first = prepared(monkeypatch, tmp_path)
    assert profiles.read_text().startswith(own)
    assert prepared(monkeypatch, tmp_path) == first
    profiles.write_text("active = ")
    with pytest.raises(InputError, match=r"profiles\.toml: not Prefect's profiles"):
        prepared(monkeypatch, tmp_path)


def test_a_file_of_profiles_that_cannot_be_made_is_named_with_the_system_s_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / PROFILES).mkdir()
    with pytest.raises(InputError, match=r"profiles\.toml: cannot be used: Is a directory$"):
        prepared(monkeypatch, tmp_path)


def test_a_profile_of_that_name_without_credentials_is_no_reason_to_spoil_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profiles = tmp_path / PROFILES
    own = (
        f'active = "{home.PROFILE}"\n\n[profiles.{home.PROFILE}]\nPREFECT_LOGGING_LEVEL = "DEBUG"\n'
    )
    profiles.write_text(own)
    first = prepared(monkeypatch, tmp_path)
    assert first[AUTH].startswith(f"{home.PROFILE}:")
    assert prepared(monkeypatch, tmp_path) == first
    kept = tomllib.loads(profiles.read_text())["profiles"]
    assert kept == {home.PROFILE: {"PREFECT_LOGGING_LEVEL": "DEBUG", AUTH: first[AUTH]}}


@pytest.mark.parametrize(
    ("said", "known"),
    [
        ({}, "ours"),
        ({"PREFECT_API_URL": "http://127.0.0.1:4200/api"}, "ours"),
        ({"PREFECT_API_URL": "http://localhost:4200/api", AUTH: "me:mine"}, "me:mine"),
        ({"PREFECT_API_URL": "https://prefect.example/api"}, None),
        ({"PREFECT_API_URL": "https://prefect.example/api", AUTH: "me:mine"}, "me:mine"),
        ({"PREFECT_API_URL": "http://127.0.0.1:4200/api", "PREFECT_API_KEY": "key"}, None),
    ],
)
def test_a_server_elsewhere_is_not_told_the_credentials_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: dict[str, str], known: str | None
) -> None:
    ours = prepared(monkeypatch, tmp_path)[AUTH]
    found = prepared(monkeypatch, tmp_path, **said)
    assert found.get(AUTH) == (ours if known == "ours" else known)
    assert (found.get("PREFECT_PROFILE") == "ephemeral") == (
        AUTH not in found or "https" in str(said)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server as `scripts/operations up` starts it."""

    url: str
    folder: Path
    environment: dict[str, str]

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, str, Any]:
        """Status, origin that may read the answer, answer."""
        request = urllib.request.Request(
            f"{self.url}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"}
            | {name.replace("_", "-"): value for name, value in headers.items()},
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                allowed = answer.headers.get("Access-Control-Allow-Origin", "")
                return answer.status, allowed, answer.read()
        except HTTPError as error:
            return error.code, error.headers.get("Access-Control-Allow-Origin", ""), error.read()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("operations")
    (port,) = free_ports(1)
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "POOLPIPE_"))}
    plain |= {"POOLPIPE_HOME": str(folder), "POOLPIPE_PREFECT_PORT": str(port)}
    said = subprocess.run(
        [sys.executable, "-c", PREPARED], env=plain, cwd=ROOT, stdout=subprocess.PIPE, check=True
    )
    environment = json.loads(said.stdout)
    process = subprocess.Popen(
        [sys.executable, "-m", "prefect", "server", "start", "--port", str(port), "--no-ui"],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    url = f"http://127.0.0.1:{port}/api"
    try:
        wait_for_health(url, process)
        yield Server(url=url, folder=folder, environment=environment)
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()


POOL = {"name": "hostile", "type": "process"}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_page_of_another_origin_and_a_client_without_credentials_are_refused(
    server: Server,
) -> None:
    own = server.url.removesuffix("/api")
    asked = {"Access_Control_Request_Method": "POST", "Access_Control_Request_Headers": "x"}
    for origin, status in ((FOREIGN, 400), ("null", 400), (own, 200)):
        found, allowed, _ = server.ask("OPTIONS", "/work_pools/", Origin=origin, **asked)
        assert (found, allowed) == (status, origin if origin == own else ""), origin
    for headers in (
        {},
        {"Origin": FOREIGN},
        {"Origin": own},
        {"Authorization": "Basic cG9vbHBpcGU6"},
        {"Authorization": "Bearer key"},
    ):
        for method, path, body in (
            ("POST", "/work_pools/", POOL),
            ("POST", "/deployments/filter", {}),
            ("GET", "/admin/settings", None),
            ("GET", "/csrf-token?client=mine", None),
        ):
            status, allowed, _ = server.ask(method, path, body, **headers)
            assert status in {401, 403}, (method, path, headers)
            assert allowed != FOREIGN
    assert server.ask("GET", "/health")[0] == 200


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_change_needs_a_token_beside_the_credentials(server: Server) -> None:
    word = base64.b64encode(server.environment[AUTH].encode()).decode()
    known = {"Authorization": f"Basic {word}"}
    status, _, answer = server.ask("POST", "/work_pools/", POOL, **known)
    assert (status, json.loads(answer)) == (403, {"detail": "Missing CSRF token."})
    assert server.ask("POST", "/work_pools/filter", {}, **known)[0] == 403
    assert server.ask("GET", "/work_pools/hostile", **known)[0] == 404


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_events_which_arm_replanning_are_refused_without_credentials(server: Server) -> None:
    async def greeted(**options: Any) -> None:
        url = f"ws{server.url.removeprefix('http')}/events/in"
        async with websockets.connect(url, **options) as socket:
            await socket.send(json.dumps({"type": "auth", "token": "poolpipe:"}))
            await socket.recv()

    with pytest.raises(websockets.InvalidStatus):
        asyncio.run(greeted())
    with pytest.raises(websockets.ConnectionClosed):
        asyncio.run(greeted(subprotocols=["prefect"], origin=FOREIGN))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_flows_and_the_command_get_in_and_show_no_credentials(server: Server) -> None:
    flow = subprocess.run(
        [sys.executable, "-c", FLOW],
        env=server.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (flow.returncode, flow.stdout) == (0, "6\n"), flow.stderr
    named = {"PREFECT_API_URL": server.url, "PREFECT_HOME": str(server.folder / "prefect")}
    named["COLUMNS"] = "200"  # of the table
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "POOLPIPE_"))}
    listing = [sys.executable, "-m", "prefect", "flow-run", "ls"]
    command = subprocess.run(
        listing, env=plain | named, capture_output=True, text=True, check=False
    )
    assert (command.returncode, "six" in command.stdout) == (0, True), command.stderr
    shown = flow.stdout + flow.stderr + command.stdout + command.stderr
    assert server.environment[AUTH].partition(":")[2] not in shown
    named["PREFECT_HOME"] = str(server.folder / "elsewhere")
    refused = subprocess.run(listing, env=plain | named, capture_output=True, check=False)
    assert refused.returncode != 0


def looked_at(folder: Path) -> list[Finding]:
    state = ProjectState(home=folder)
    return list(prefect_server(Surroundings(state=state, warehouse=folder / "w", now=now_utc())))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_doctor_sees_who_is_let_in(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", server.url)
    (found,) = looked_at(server.folder)
    assert found.severity is Severity.GOOD, found
    assert "asks for credentials" in found.seen
    profiles = server.folder / "prefect" / PROFILES
    profiles.chmod(0o640)
    assert [f.remedy for f in looked_at(server.folder) if f.remedy] == [f"chmod 600 {profiles}"]
    profiles.chmod(0o600)


def test_the_doctor_sees_a_server_that_lets_everybody_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Open(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.send_response(200)
            self.send_header("Access-Control-Allow-Origin", "*")
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_POST = do_OPTIONS = answer  # noqa: N815 - names of the base class

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as above
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Open) as opened:
        monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{opened.server_port}/api")
        thread = threading.Thread(target=opened.serve_forever, args=(0.05,))
        thread.start()
        found = looked_at(tmp_path)
        opened.shutdown()
        thread.join()
    assert [f.severity for f in found] == 3 * [Severity.PROBLEM]
    told = [f.remedy.rpartition(" ")[2].partition("=")[0] for f in found]
    assert told == [
        SERVER_AUTH,
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS",
        "PREFECT_SERVER_CSRF_PROTECTION_ENABLED",
    ]
    monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{opened.server_port}/api")
    (found_none,) = looked_at(tmp_path)
    assert "none answers" in found_none.seen
