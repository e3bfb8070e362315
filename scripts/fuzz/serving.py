"""Garbage at every door of a running system: nothing may crash, hang or answer wrongly.

Emulated models of two stages, one of them with entries and a model for its cut, and an application
are served by two real Tritons on two addresses of this machine, as on two hosts, so that our own
TCP sockets are open too. Then come malformed things, a tenth to a third of them each: frames to
every Unix and TCP socket of ours (random bytes, truncated frames, frames of every kind with random
numbers and bodies), to the TCP sockets after a right proof as well; requests over HTTP and gRPC
with wrong names, types, shapes and sizes, or that are no requests at all; raw bytes to the HTTP and
gRPC ports. Between two doors a good request of every model must be answered right. A well-behaved
client asks all the while, for 100 KB, for the cut model and the application: no answer may be
another's. Afterwards every process must be the one it was, and hold as much memory as after the
first tenth.

    .venv/bin/python scripts/fuzz/serving.py [--count 10000] [--seed 0] [--port 18070]
"""

import argparse
import contextlib
import json
import socket
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import grpc
import numpy as np
import psutil
from numpy.typing import NDArray

from flows.clock import Stopwatch
from flows.release.server import admin
from scripts.benchmarks.figures import Figure, add_destinations, exit_code, show, store
from scripts.benchmarks.served import emulated_answer, processes_of, stop_when_terminated
from scripts.fuzz.made import (
    APPLICATION,
    CUT,
    INPUT_BYTES,
    MODEL,
    TARGETS,
    WIDE,
    WIDE_BYTES,
    bad_bytes,
    bad_frame,
    bad_frames,
    bad_json,
    bad_message,
    fuzzed_plan,
)
from triton_backend.serve_folder.endpoints import Endpoints
from triton_backend.serve_folder.repository import render_host, render_repository
from triton_backend.serve_folder.settings import ServeOptions, ServeSettings
from triton_backend.serving.deployment import Deployment
from triton_backend.serving.transport.authentication import (
    CHALLENGE_FRAME_BYTES,
    Prover,
    transport_key,
)

ELSEWHERE = "127.0.0.2"
CONNECTION_TIMEOUT_S = 5.0
MOST_IN_PIECES, PIECES, PIECE_PAUSE_S = 20_000, 8, 0.005
RAW_TIMEOUT_S = 0.05  # Triton waits for the rest of what may become a request
INFER = "/inference.GRPCInferenceService/ModelInfer"
SERVER = "tritonserver"
MEMORY_FRACTION = 0.02
TENTH = 10
GOOD_PAUSE_S = 0.1
# Of every good request: the bytes of its input, and of what its stages or modules give to the next.
GOOD = {
    MODEL: (INPUT_BYTES, [256]),
    WIDE: (WIDE_BYTES, [WIDE_BYTES]),
    CUT: (INPUT_BYTES, [INPUT_BYTES]),
    APPLICATION: (INPUT_BYTES, [INPUT_BYTES]),
}
Draws = np.random.Generator
Address = str | tuple[str, int]


class TwoHosts:
    """A gateway with the first stage, and another Triton with the second, while it lasts."""

    def __init__(self, root: Path, port: int) -> None:
        plan = fuzzed_plan()
        self._folders = root / "gateway", root / "node"
        there = Endpoints(http=port + 3, grpc=port + 4, metrics=port + 5, address=ELSEWHERE)
        options = ServeOptions(
            hosts={"THERE": ELSEWHERE},
            base_port=port + 10,
            host_http_port=there.http,
            cut_models=True,
        )
        render_repository(self._folders[0], plan, options)
        settings = ServeSettings.read(self._folders[0] / "settings.json")
        render_host(self._folders[1], settings, plan, ELSEWHERE, None)
        here = Endpoints(http=port, grpc=port + 1, metrics=port + 2)
        self._ports = here, there
        self.token = settings.token

    def __enter__(self) -> Self:
        stop_when_terminated()
        try:
            self.gateway, self.node = (
                admin.start(folder, ports, wait_for_workers=False)
                for folder, ports in zip(self._folders, self._ports, strict=True)
            )
            self._wait_up()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _wait_up(self) -> None:
        for _ in range(200):
            workers = self.gateway.control("status")["workers"]
            if workers["up"] == workers["total"]:
                return
            time.sleep(0.1)
        raise RuntimeError("the workers do not come up")

    def __exit__(self, *_: object) -> None:
        for folder in self._folders:
            admin.stop(folder)

    def unix_doors(self) -> list[Address]:
        """Our Unix sockets on both hosts."""
        folders = (Path(state.data["socket_folder"]) for state in (self.gateway, self.node))
        return [str(p) for folder in folders for p in sorted(folder.iterdir()) if p.is_socket()]

    def tcp_doors(self) -> list[Address]:
        """Our TCP sockets: scheduler, front, and the worker of the other host."""
        deployment = Deployment.read(ServeSettings.read(self._folders[0] / "settings.json"), 1)
        settings = deployment.settings
        gateway = settings.gateway_host
        worker = deployment.vgpus_on("THERE")[0]
        return [
            (gateway, settings.base_port),
            (gateway, deployment.front_port(MODEL)),
            (ELSEWHERE, deployment.worker_port(worker)),
        ]

    def processes(self) -> dict[str, Any]:
        """Every process of the system by name."""
        found: dict[str, Any] = {}
        for number, state in enumerate((self.gateway, self.node)):
            found[f"triton {number}"] = state.data["triton_pid"]
            for file in (state.folder / "pids").iterdir():
                found[file.name] = file.read_text().split()[0]
                if file.name.startswith("poolpipe_node_"):
                    workers = state.ask(file.name, {})["workers"]
                    found |= {f"worker {w['vgpu']}": w["pid"] for w in workers}
        return found

    def memory_mb(self) -> dict[str, float]:
        """Resident memory of Triton's servers, and of all other processes."""
        held = {"server": 0.0, "ours": 0.0}
        for state in (self.gateway, self.node):
            for process in processes_of(state):
                with contextlib.suppress(psutil.Error):
                    whose = "server" if process.name() == SERVER else "ours"
                    held[whose] += process.memory_info().rss / 1e6
        return held

    def right_answer(self, name: str, draws: Draws) -> bool:
        """True if a good request of a model is answered with what its own input gives.

        Raises:
            OSError: it is not answered.
        """
        size, boundaries = GOOD[name]
        given = draws.integers(0, 256, size, dtype=np.uint8)
        (mark,) = emulated_answer(given[None], boundaries)
        answer = _infer(self.gateway.http_url, name, given)
        return bool(len(answer)) and bool((answer == mark).all())


def _infer(url: str, name: str, given: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The bytes of the one output."""
    tensor: dict[str, Any] = {
        "name": "input",
        "shape": [1, len(given)],
        "datatype": "UINT8",
        "parameters": {"binary_data_size": len(given)},
    }
    body = {"inputs": [tensor], "parameters": {"binary_data_output": True}}
    head = json.dumps(body).encode()
    request = urllib.request.Request(  # our own server
        f"http://{url}/v2/models/{name}/infer",
        data=head + given.tobytes(),
        headers={
            "Content-Type": "application/octet-stream",
            "Inference-Header-Content-Length": str(len(head)),
        },
    )
    with urllib.request.urlopen(request, timeout=CONNECTION_TIMEOUT_S) as reply:  # noqa: S310  # as above
        data = reply.read()
        begin = int(reply.headers["Inference-Header-Content-Length"])
    return np.frombuffer(data, dtype=np.uint8)[begin:]


class GoodClient(threading.Thread):
    """Asks for one model after the other until it is ended.

    Counts answers right, wrong and missing.
    """

    def __init__(self, system: TwoHosts, seed: int) -> None:
        super().__init__(daemon=True)
        self._system = system
        self._draws = np.random.default_rng(seed)
        self._over = threading.Event()
        self.answers: Counter[str] = Counter()

    def run(self) -> None:
        """Ask."""
        while not self._over.wait(GOOD_PAUSE_S):
            for name in GOOD:
                try:
                    right = self._system.right_answer(name, self._draws)
                except OSError:
                    self.answers["missing"] += 1
                else:
                    self.answers["right" if right else "wrong"] += 1

    def end(self) -> Counter[str]:
        """Stop; what was counted."""
        self._over.set()
        self.join()
        return self.answers


def throw(
    address: Address, data: bytes, timeout_s: float, *, and_end: bool = True
) -> tuple[str, bytes]:
    """Bytes over a connection of their own; how it ended, and the first bytes that came back."""
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    with socket.socket(family) as peer:
        peer.settimeout(timeout_s)
        peer.connect(address)
        first = b""
        try:
            peer.sendall(data)
            if and_end:
                peer.shutdown(socket.SHUT_WR)
            while piece := peer.recv(4096):
                first = first or piece
        except TimeoutError:
            return "left open", first
        except OSError:
            return "closed", first
    return "closed", first


def frames(doors: list[Address]) -> Callable[[int, Draws], Counter[str]]:
    """Frames to our own sockets in turn."""

    def run(count: int, draws: Draws) -> Counter[str]:
        return Counter(
            throw(doors[i % len(doors)], bad_frame(draws), CONNECTION_TIMEOUT_S)[0]
            for i in range(count)
        )

    return run


def proven(doors: list[Address], token: str) -> Callable[[int, Draws], Counter[str]]:
    """Frames to our TCP sockets in turn, after a right proof."""
    key = transport_key(token)

    def run(count: int, draws: Draws) -> Counter[str]:
        ends: Counter[str] = Counter()
        for i in range(count):
            door = doors[i % len(doors)]
            assert isinstance(door, tuple)
            with socket.create_connection(door, CONNECTION_TIMEOUT_S) as peer:
                try:
                    challenge = peer.recv(CHALLENGE_FRAME_BYTES, socket.MSG_WAITALL)
                    proof = Prover(key, f"tcp:{door[0]}:{door[1]}").answer(challenge)
                    peer.sendall(proof + bad_frames(draws))
                    peer.shutdown(socket.SHUT_WR)
                    while peer.recv(4096):
                        pass
                except TimeoutError:
                    ends["left open"] += 1
                    continue
                except OSError:
                    pass
            ends["closed"] += 1
        return ends

    return run


def raw(port: int, opening: bytes) -> Callable[[int, Draws], Counter[str]]:
    """Raw bytes to a port of Triton's, half of them after a proper beginning."""

    def run(count: int, draws: Draws) -> Counter[str]:
        ends: Counter[str] = Counter()
        for _ in range(count):
            start = opening if draws.random() < 0.5 else b""  # noqa: PLR2004  # half of them
            end, first = throw(("127.0.0.1", port), start + bad_bytes(draws), RAW_TIMEOUT_S)
            status = first.split()[1].decode() if first.startswith(b"HTTP/1") else ""
            ends[f"{end}{status and ', ' + status}"] += 1
        return ends

    return run


def http_requests(url: str) -> Callable[[int, Draws], Counter[str]]:
    """Malformed requests; how often each HTTP status came."""

    def run(count: int, draws: Draws) -> Counter[str]:
        statuses: Counter[str] = Counter()
        for _ in range(count):
            name = str(draws.choice(TARGETS)) if draws.random() < 0.9 else "nobody"  # noqa: PLR2004  # nine tenths
            request = urllib.request.Request(  # our own server
                f"http://{url}/v2/models/{name}/infer", data=bad_json(draws)
            )
            try:
                with urllib.request.urlopen(request, timeout=CONNECTION_TIMEOUT_S) as answer:  # noqa: S310  # as above
                    statuses[str(answer.status)] += 1
            except urllib.error.HTTPError as error:
                statuses[str(error.code)] += 1
                error.close()
            except TimeoutError:
                statuses["no answer"] += 1
        return statuses

    return run


def in_pieces(port: int) -> Callable[[int, Draws], Counter[str]]:
    """Good and bad requests that trickle in, a few bytes at a time; the status, or how it ended."""

    def run(count: int, draws: Draws) -> Counter[str]:
        ends: Counter[str] = Counter()
        pause = threading.Event()
        for _ in range(count):
            body = bad_json(draws)[:MOST_IN_PIECES]
            said = len(body) + int(draws.choice([0, 0, 0, -1, 1, 1_000_000]))
            head = (
                f"POST /v2/models/{MODEL}/infer HTTP/1.1\r\n"
                f"Host: x\r\nContent-Length: {said}\r\n\r\n"
            )
            data = head.encode() + body
            cuts = sorted(int(at) for at in draws.integers(len(data) + 1, size=PIECES))
            with socket.create_connection(("127.0.0.1", port), CONNECTION_TIMEOUT_S) as peer:
                peer.settimeout(10 * RAW_TIMEOUT_S)
                try:
                    for begin, end in pairwise([0, *cuts, len(data)]):
                        peer.sendall(data[begin:end])
                        pause.wait(PIECE_PAUSE_S)
                    first = peer.recv(4096)
                except TimeoutError:
                    ends["left open"] += 1
                except OSError:
                    ends["closed"] += 1
                else:
                    ends[first.split()[1].decode() if first else "closed"] += 1
        return ends

    return run


def grpc_requests(url: str) -> Callable[[int, Draws], Counter[str]]:
    """Malformed messages over one channel; how often each gRPC status came."""

    def run(count: int, draws: Draws) -> Counter[str]:
        statuses: Counter[str] = Counter()
        with grpc.insecure_channel(url) as channel:
            infer = channel.unary_unary(INFER)
            for _ in range(count):
                try:
                    infer(bad_message(draws), timeout=CONNECTION_TIMEOUT_S)
                    statuses["OK"] += 1
                except grpc.RpcError as error:
                    statuses[error.code().name] += 1
        return statuses

    return run


def answered_right(system: TwoHosts, model: str, draws: Draws) -> bool:
    """True if a good request has its own answer."""
    try:
        return system.right_answer(model, draws)
    except OSError:
        return False


def fuzz(root: Path, port: int, count: int, seed: int) -> tuple[list[Figure], dict[str, Any]]:
    """Serve, throw, compare."""
    draws = np.random.default_rng(seed)
    with TwoHosts(root, port) as system:
        before = system.processes()
        state = system.gateway
        http_opening = f"POST /v2/models/{MODEL}/infer HTTP/1.1\r\nHost: x\r\n".encode()
        tcp = system.tcp_doors()
        doors = (
            ("our Unix sockets", 0.3, frames(system.unix_doors())),
            ("our TCP sockets", 0.1, frames(tcp)),
            ("our TCP sockets, proven", 0.1, proven(tcp, system.token)),
            ("requests over HTTP", 0.2, http_requests(state.http_url)),
            ("requests over gRPC", 0.1, grpc_requests(state.grpc_url)),
            ("HTTP in pieces", 0.02, in_pieces(port)),
            ("raw bytes to HTTP", 0.08, raw(port, http_opening)),
            ("raw bytes to gRPC", 0.1, raw(port + 1, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")),
        )
        raw_results: dict[str, Any] = {}
        figures: list[Figure] = []
        client = GoodClient(system, seed)
        client.start()
        for _, share, run in doors:  # memory of the first requests is no growth
            run(round(share * count / TENTH), draws)
        memory_mb = [system.memory_mb()]
        for name, share, run in doors:
            watch, thrown = Stopwatch(), round(share * count)
            ends = run(thrown, draws)
            raw_results[name] = {"ends": dict(ends), "seconds": watch.seconds()}
            note = ", ".join(f"{end}: {n}" for end, n in sorted(ends.items()))
            figures.append(Figure(name=f"malformed: {name}", value=thrown, note=note))
            wrong = sum(not answered_right(system, model, draws) for model in GOOD)
            figures.append(
                Figure(name="  good requests afterwards not answered", value=wrong, most=0)
            )
        memory_mb.append(system.memory_mb())
        answers = client.end()
        left_open = sum(raw_results[name]["ends"].get("left open", 0) for name, *_ in doors[:3])
        unanswered = raw_results["requests over HTTP"]["ends"].get("no answer", 0)
        unanswered += raw_results["requests over gRPC"]["ends"].get("DEADLINE_EXCEEDED", 0)
        after = system.processes()
        counters = state.control("status")["counters"]
    changed = [name for name, pid in before.items() if after.get(name) != pid]
    raw_results |= {
        "changed": changed,
        "refused_by_scheduler": counters["frames_refused"],
        "good_client": dict(answers),
        "memory_mb": memory_mb,
    }
    held = {whose: [look[whose] for look in memory_mb] for whose in memory_mb[0]}
    asked = f"of {answers.total()}, {answers['missing']} not answered"
    figures += [
        Figure(
            name="answers of a client beside it that were wrong",
            value=answers["wrong"],
            most=0,
            note=asked,
        ),
        Figure(
            name="memory of our processes at the end, of that after the first tenth",
            value=held["ours"][1] / held["ours"][0],
            most=1 + MEMORY_FRACTION,
            note=" -> ".join(f"{each:.0f} MB" for each in held["ours"]),
        ),
        Figure(
            name="memory of Triton's servers, likewise",
            value=held["server"][1] / held["server"][0],
            note=" -> ".join(f"{each:.0f} MB" for each in held["server"]),
        ),
        Figure(name="of our sockets, connections left open", value=left_open, most=0),
        Figure(name="requests never answered", value=unanswered, most=0),
        Figure(name="processes that are not the same", value=len(changed), most=0),
        Figure(name="workers lost", value=counters["workers_lost"], most=0),
    ]
    return figures, raw_results


def main() -> int:
    """Run, print the table; exit 1 when something gave way."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--port", type=int, default=18_070, help="the first of those used")
    add_destinations(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="poolpipe-fuzz-") as folder:
        figures, results = fuzz(Path(folder), options.port, options.count, options.seed)
    show(figures)
    with contextlib.suppress(BrokenPipeError):
        store(options, "fuzz", figures, results)
    return exit_code(figures)


if __name__ == "__main__":
    sys.exit(main())
