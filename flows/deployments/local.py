"""`scripts/operations`: server, worker, deployments and pages of this machine, in one process.

    up [--class NAME ...]   start what does not run yet, and register prefect.yaml
       [--cluster C --workload W --nightly "0 3 * * *"]   and replan every night (UTC)
    status                  what runs, what is registered, and whether nights are replanned
    down                    end what was started here; what it knows stays

State lies in the project's folder (POOLPIPE_HOME, default .poolpipe). The server's port is
POOLPIPE_PREFECT_PORT (4200), the page's POOLPIPE_UI_PORT (8080). With PREFECT_API_URL set no server
is started: worker and deployments join that one. `--class` names GPU classes (or CPU classes that
stand in) that this machine profiles: each has a work pool, a deployment and a worker of its own. On
a host that does nothing else, `--only-classes` leaves the rest out. `--nightly` also arms the
trigger that replans when the load or the cluster changes; later `up`s keep it, `--no-nightly` takes
it back.

Processes are started while this one still imports Prefect, which takes as long as all the rest.
"""

import argparse
import http.client
import os
import platform
import socket
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from flows.clock import Stopwatch
from flows.deployments.orchestration.background import log_of, running, say, start, stop
from flows.deployments.orchestration.home import PROFILES, prepare_prefect, prepare_server
from flows.proxies import pass_proxies
from flows.state import PROJECT_VARIABLE, project_state, warehouse_path
from triton_backend.contract.errors import InputError, PoolPipeError

if TYPE_CHECKING:
    from flows.deployments.orchestration.nightly import Nightly

ROOT = Path(__file__).resolve().parents[2]
POOL = "poolpipe"
CLASS_POOL = "gpu-{}"
PREFECT = (sys.executable, "-m", "prefect")
SERVER_SECONDS, POLL_SECONDS = 120.0, 0.1
NIGHTLY_FILE = "nightly.yaml"
LAST_PORT, LOOPBACK = 65_535, "127.0.0.1"


class OperationsError(PoolPipeError):
    """Something did not start; the message says what and where its log is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where things run: the project's folder, ports, and the server's address."""

    folder: Path
    port: int
    ui_port: int
    own_server: bool

    @property
    def api_url(self) -> str:
        """Of our own server or of the one that the environment names."""
        return f"http://127.0.0.1:{self.port}/api" if self.own_server else os.environ[_API]


_API = "PREFECT_API_URL"


def place_of(environment: Mapping[str, str] = os.environ) -> Place:
    """Settings from the environment.

    Raises:
        InputError: a port is none, or the server's address no URL.
    """
    _check_url(environment.get(_API) or "")
    return Place(
        folder=project_state(environment).home.resolve() / "operations",
        port=_port(environment, "POOLPIPE_PREFECT_PORT", "4200"),
        ui_port=_port(environment, "POOLPIPE_UI_PORT", "8080"),
        own_server=not environment.get(_API),
    )


def _check_url(text: str) -> None:
    try:
        known = urlsplit(text).scheme in {"http", "https"} and bool(urlsplit(text).hostname)
        _ = urlsplit(text).port
    except ValueError:
        known = False
    if text and not known:
        raise InputError(_API, f"{text!r} is no URL, as http://127.0.0.1:4200/api")


def _port(environment: Mapping[str, str], name: str, default: str) -> int:
    text = environment.get(name) or default
    if not text.isdecimal() or not 0 < int(text) <= LAST_PORT:
        raise InputError(name, f"{text!r} is no port")
    return int(text)


def prepare(place: Place) -> None:
    """The environment of this process and of all it starts: absolute paths, one server."""
    home = project_state().home.resolve()
    os.environ[PROJECT_VARIABLE] = str(Path.cwd())
    os.environ["POOLPIPE_HOME"] = str(home)
    os.environ["POOLPIPE_WAREHOUSE"] = str(warehouse_path().resolve())
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])
    )
    os.environ["PREFECT_LOGGING_LEVEL"] = os.environ.get("PREFECT_LOGGING_LEVEL", "INFO")
    os.environ["PREFECT_CLI_COLORS"] = "false"
    os.environ.setdefault("PREFECT_WORKER_QUERY_SECONDS", "2")  # a rollout need not wait ten
    place.folder.mkdir(parents=True, exist_ok=True)
    origins = (f"http://{name}:{place.port}" for name in (LOOPBACK, "localhost"))
    prepare_prefect(home / "prefect", origin=",".join(origins))
    prepare_server()
    os.environ[_API] = place.api_url


def is_up(place: Place) -> bool:
    """True if the server is there."""
    try:
        with urllib.request.urlopen(f"{place.api_url}/health", timeout=5):  # noqa: S310  # our own or the operator's address
            return True
    except (OSError, http.client.HTTPException):  # nothing, or no server of HTTP
        return False


def wait_for_server(place: Place) -> None:
    """Until it answers.

    Raises:
        OperationsError: it does not, or it has ended.
    """
    watch = Stopwatch()
    while not is_up(place):
        ended = place.own_server and running(place.folder, "server") is None
        if ended or watch.seconds() > SERVER_SECONDS:
            where = f", see {log_of(place.folder, 'server')}" if place.own_server else ""
            raise OperationsError(f"no Prefect server answers at {place.api_url}{where}")
        time.sleep(POLL_SECONDS)


def check_ports(place: Place, *, page: bool) -> None:
    """Refuse ports that another program has; it could be a Prefect server of another project.

    Raises:
        InputError: one is taken.
    """
    wanted = [("server", "POOLPIPE_PREFECT_PORT", place.port)] if place.own_server else []
    wanted += [("page", "POOLPIPE_UI_PORT", place.ui_port)] if page else []
    for name, variable, port in wanted:
        if running(place.folder, name) is not None:
            continue
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((LOOPBACK, port))
            except OSError as error:
                raise InputError(f"{variable} {port}", f"cannot be listened on: {error}") from error


def worker_command(pool: str) -> list[str]:
    """A worker of a pool; one for each machine and pool."""
    name = f"{pool}-{platform.node()}"
    return [*PREFECT, "worker", "start", "--pool", pool, "--name", name, "--type", "process"]


def up(
    place: Place,
    classes: Sequence[str],
    *,
    only_classes: bool = False,
    nightly: "Nightly | None" = None,
) -> None:
    """Start what does not run yet, register every deployment, and arm replanning.

    Raises:
        InputError: another program has a port.
        OperationsError: the server does not come up, or refuses a deployment.
    """
    check_ports(place, page=not only_classes)
    if place.own_server:
        options = ["--host", LOOPBACK, "--port", str(place.port)]
        start(place.folder, "server", [*PREFECT, "server", "start", *options], within=ROOT)
    from flows.deployments.register import register, register_class  # noqa: PLC0415  # while it starts

    wait_for_server(place)
    if not only_classes:
        register(ROOT, POOL)
        if nightly is not None:
            _arm(nightly)
        start(place.folder, "worker", worker_command(POOL), within=ROOT)
        page = Path(sys.executable).with_name("poolpipe")
        start(place.folder, "page", [str(page), "ui", "--port", str(place.ui_port)], within=ROOT)
    for name in classes:
        pool = CLASS_POOL.format(name)
        register_class(ROOT, name, pool)
        start(place.folder, f"worker-{pool}", worker_command(pool), within=ROOT)
    if place.own_server:
        say(
            f"Prefect: http://127.0.0.1:{place.port}, asks for what "
            f"{project_state().prefect / PROFILES} has"
        )
    if not only_classes:
        say(f"page: http://127.0.0.1:{place.ui_port}")


def _arm(nightly: "Nightly") -> None:
    from flows.deployments.orchestration.nightly import arm, described  # noqa: PLC0415  # slow to import

    arm(nightly)
    for line in described():
        say(line)


def nightly_of(place: Place, asked: argparse.Namespace) -> "Nightly | None":
    """The request for nightly replanning: from the options (then stored), or as stored.

    Raises:
        InputError: an option or a file is missing or wrong.
    """
    given = {name: getattr(asked, name) for name in ("cluster", "workload", "nightly")}
    missing = [f"--{name}" for name, value in given.items() if value is None]
    noted = place.folder / NIGHTLY_FILE
    if asked.no_nightly:
        noted.unlink(missing_ok=True)
    if len(missing) == len(given):
        if asked.word != "up" or asked.only_classes or not noted.exists():
            return None
        from flows.deployments.orchestration.nightly import kept  # noqa: PLC0415  # slow to import

        return kept(noted)
    if missing:
        raise InputError(
            ", ".join(missing), "is missing: --cluster, --workload, --nightly go together"
        )
    if asked.word != "up" or asked.only_classes or asked.no_nightly:
        raise InputError("--nightly", "goes with `up` alone, where replanning is registered")
    from flows.deployments.orchestration.nightly import Nightly, write_nightly  # noqa: PLC0415  # as above

    files = {name: Path(given[name]).resolve() for name in ("cluster", "workload")}
    nightly = Nightly(**files, cron=given["nightly"])
    write_nightly(noted, nightly)
    return nightly


def down(place: Place) -> None:
    """End what was started here at once, and the server after those that ask it."""
    names = sorted(path.stem for path in place.folder.glob("*.pid"))
    with ThreadPoolExecutor() as threads:
        list(threads.map(partial(stop, place.folder), (n for n in names if n != "server")))
    if "server" in names:
        stop(place.folder, "server")
    if not names:
        say("nothing runs here")


def status(place: Place) -> None:
    """Processes on this host, and deployments on the server."""
    for path in sorted(place.folder.glob("*.pid")):
        found = running(place.folder, path.stem)
        say(f"{path.stem}: {'does not run' if found is None else f'process {found.pid}'}")
    if not is_up(place):
        say(f"no Prefect server answers at {place.api_url}")
        return
    from flows.deployments.orchestration.nightly import described  # noqa: PLC0415  # slow to import
    from flows.deployments.register import registered  # noqa: PLC0415  # as above

    for line in (*registered(), *described()):
        say(line)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one word."""
    parser = argparse.ArgumentParser(
        prog="scripts/operations",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("word", choices=("up", "status", "down"))
    parser.add_argument("--class", dest="classes", action="append", default=[], metavar="NAME")
    parser.add_argument("--only-classes", action="store_true")
    parser.add_argument("--cluster", type=Path, metavar="FILE", help="of the nights")
    parser.add_argument("--workload", type=Path, metavar="FILE", help="of the nights")
    parser.add_argument("--nightly", metavar="CRON", help="when to replan: five fields, UTC")
    parser.add_argument("--no-nightly", action="store_true", help="take it back")
    # `scripts/operations` changes to the repository; the project is where it was called.
    parser.add_argument("--called-from", type=Path, default=Path(), help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    try:
        os.chdir(asked.called_from)  # the project's folder
        pass_proxies(os.environ)
        place = place_of()
        prepare(place)
        nightly = nightly_of(place, asked)
        if asked.word == "up":
            watch = Stopwatch()
            up(place, asked.classes, only_classes=asked.only_classes, nightly=nightly)
            say(f"up after {watch.seconds():.0f} s")
        elif asked.word == "down":
            down(place)
        else:
            status(place)
    except PoolPipeError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except OSError as error:
        sys.stderr.write(f"{error.filename or 'output'}: {error.strerror or error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
