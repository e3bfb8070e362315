"""Checks of the system served here: old parts, and doors open to the wrong clients.

Where nothing is served, the files it would be served with are looked at all the same.
"""

import json
import os
import stat
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from flows.operations.doctor.registry import (
    Finding,
    Surroundings,
    advice,
    check,
    good,
    problem,
)
from flows.release.server.running import ServerState, gateways_of, keeper_of
from triton_backend.contract.errors import InputError
from triton_backend.serve_folder.endpoints import NO_TRITON, is_loopback
from triton_backend.serve_folder.settings import SETTINGS_NAME
from triton_backend.serve_folder.state import (
    STATE_NAME,
    keeper_runs,
    servers_of,
    whole_state_file,
)

# CVE-2026-24206 to 24209, requests without a login among them; mended in container 26.03, which is
# 2.67.
BULLETIN = "NVIDIA's bulletin 5828 of May 2026"
FIXED_VERSION = (2, 67)
OLDEST_TOKEN = timedelta(days=90)
ANSWER_SECONDS = 5.0
FOR_OTHERS = stat.S_IRWXG | stat.S_IRWXO
WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


@check("server version")
def server_version(at: Surroundings) -> Iterator[Finding]:
    """Triton's security fixes come with its releases; that of the PyTriton wheel is of 2024."""
    served = at.served()
    if served is None:
        try:
            yield good(f"nothing is served; nvidia-pytriton {version('nvidia-pytriton')} would be")
        except PackageNotFoundError:
            yield good(f"nothing is served; {NO_TRITON}")
        return
    try:
        with urllib.request.urlopen(  # our own server
            f"http://{ServerState(served).http_url}/v2", timeout=ANSWER_SECONDS
        ) as answer:
            number = str(json.load(answer)["version"])
    except (OSError, ValueError, KeyError) as error:
        yield problem(f"the server does not say it: {error}", "see `poolpipe status`")
        return
    if tuple(map(int, number.split(".")[:2])) >= FIXED_VERSION:
        yield good(f"Triton {number}; {BULLETIN} is the newest that this check knows of")
        return
    seen = f"Triton {number}, older than the fixes of {BULLETIN}"
    remedy = "leave it on loopback, or serve from a current container (`poolpipe render`)"
    exposed = [a for a in _listening(served) if not is_loopback(a[0])]
    yield problem(seen, remedy) if exposed else advice(seen, remedy)


@check("open addresses")
def open_addresses(at: Surroundings) -> Iterator[Finding]:
    """Where the sockets of the running system can be reached from, as the kernel has them."""
    served = at.served()
    if served is None:
        yield good("nothing is served from here")
        return
    listening = _listening(served)
    exposed = [(address, port) for address, port in listening if not is_loopback(address)]
    for address, port in exposed:
        yield problem(
            f"port {port} listens at {address}, {_what(served, port)}",
            "guard it by a firewall, or serve with --address 127.0.0.1; TLS for gRPC: --tls-cert",
        )
    for name in served.get("opened", ()):
        yield advice(f"{name} is answered without the token", "serve without `--open` of it")
    if not exposed:
        ports = ", ".join(str(port) for _, port in listening)
        yield good(f"loopback alone: {ports}" if ports else "no port is seen")


def _listening(served: dict[str, Any]) -> list[tuple[str, int]]:
    """Address and port of every TCP socket that a process of the system listens on."""
    found: set[tuple[str, int]] = set()
    groups = {int(served[name]) for name in ("process_group", "server_group") if name in served}
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) not in groups:
                continue
            sockets = process.net_connections(kind="tcp")
        except (OSError, psutil.Error):
            continue
        found |= {(s.laddr.ip, s.laddr.port) for s in sockets if s.status == psutil.CONN_LISTEN}
    return sorted(found)


def _what(served: dict[str, Any], port: int) -> str:
    ports: dict[str, int] = served["ports"]
    name = next((name for name, number in ports.items() if number == port), None)
    if any(server is not None and server["metrics_port"] == port for server in servers_of(served)):
        name = "metrics"  # the second server's have a port of their own
    if name == "grpc" and served["tls"]:
        return "gRPC by TLS"
    return f"{name}, unencrypted" if name else "transport between hosts"


@check("token age")
def token_age(at: Surroundings) -> Iterator[Finding]:
    """One token opens the repository API, which runs code; every `poolpipe serve` makes another."""
    path = at.state.serve / SETTINGS_NAME
    if not path.exists():
        yield good("no token yet")
        return
    age = at.now - datetime.fromtimestamp(path.stat().st_mtime, UTC)
    seen = f"{age.days} days, in {path}"
    if age > OLDEST_TOKEN:
        yield advice(seen, "`poolpipe stop` and `poolpipe serve` make a new one")
    else:
        yield good(seen)


@check("file modes")
def file_modes(at: Surroundings) -> Iterator[Finding]:
    """The token is its owner's alone; models and engines are code that serving runs."""
    wrong = 0
    for name in (STATE_NAME, SETTINGS_NAME):
        for path in at.state.serve.glob(name):
            if _mode(path) & FOR_OTHERS:
                wrong += 1
                yield problem(f"{path} holds the token, mode {_mode(path):o}", f"chmod 600 {path}")
    home = at.state.home
    folders = (home, at.state.models, at.state.artifacts, at.state.serve, at.state.prefect)
    for path in (*folders, at.warehouse):
        if path.exists() and _mode(path) & WRITABLE_BY_OTHERS:
            wrong += 1
            yield problem(f"{path} may be written by others", f"chmod go-w {path}")
    if not wrong:
        yield good("token and folders are this user's alone to write")


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@check("keeper")
def keeper(at: Surroundings) -> Iterator[Finding]:
    """The process that restarts tritonserver when it dies."""
    try:
        state = whole_state_file(at.state.serve)
    except InputError as error:
        yield problem(str(error), "`poolpipe serve` begins again then")
        return
    if state is None:
        yield good("nothing is served from here")
    elif at.served() is None and not keeper_runs(state):
        yield advice(
            "the state file is left of a system that was killed", "`poolpipe serve` clears up"
        )
    elif keeper_runs(state):
        yield good("runs")
    else:
        seen, _, remedy = keeper_of(state).partition(": ")
        yield problem(seen, remedy)


@check("gateways")
def gateways(at: Surroundings) -> Iterator[Finding]:
    """Of two gateways, whether each has its server, so that the other may die."""
    state = at.served()
    servers = [] if state is None else servers_of(state)
    if state is None or len(servers) == 1:
        yield good("one server, or none" if state is None else "one server")
        return
    for name, how in gateways_of(state).items():
        if how.startswith("runs"):
            yield good(f"{name} {how}")
        else:
            yield problem(
                f"{name} {how}, no server takes requests if the other one dies", "see server.log"
            )
