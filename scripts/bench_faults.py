"""Faults on a running system at load factor 0.6: what is lost, who waits, how soon all is well.

Two emulated models of two stages on pools of four vGPUs over two nodes each are served by the real
Triton and loaded with requests whose right answers are known. A few seconds into each run one part
is broken; a prober asks for the state ten times a second and tries a request of every model.

    .venv/bin/python scripts/bench_faults.py [--only NAME ...] [--seconds 12] [--output FILE]

Per fault: answers that were wrong; requests not served in time; the longest a client waited past
its deadline, and how many waited more than 100 ms (those that a killed process held are never
answered by Triton, their clients give up after a second); seconds until repaired (every worker up,
every model answers) and until attainment is back at 99 % and stays there.

Full disk and full shared memory need a mount namespace of our own (`unshare`), in which the serve
folder and /dev/shm are small; where that is not allowed they are left out, with the reason.
"""

import argparse
import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from testbed import SERVED, SHARED_FOLDER, Load, Loaded, Served, machine, samples_file, small_plan
from testbed import store as store_result

from flows.clock import Stopwatch, now_utc
from flows.release.admin import ServerError
from flows.release.render import CONTROL_MODEL
from triton_backend.core.errors import PoolPipeError
from triton_backend.serving.driver_letters import Worker

LOAD_FACTOR = 0.6
FAULT_AT_S = 3.0
WINDOW_S = 0.5
GOOD = 0.99
GRACE_US = 100_000
RECOVERY_TARGET_S = 5.0
GIVE_UP_S = 1.0
PROBE_SECONDS = 0.1
SLOW_PERIOD_S, SLOW_STOPPED = 0.15, 0.6  # stopped for 90 of every 150 ms
LASTING_S = 3.0
FILL_PIECE = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something that breaks; `inject` returns when the cause is gone (or was momentary)."""

    name: str
    inject: Callable[[Served], None]
    loses: str
    at_least_s: float = 0.0


def stub(served: Served, model: str) -> psutil.Process:
    """The process of a Triton model."""
    text = (served.folder / "pids" / model).read_text()
    return psutil.Process(int(text.split()[0]))


def worker(served: Served, vgpu: int) -> psutil.Process:
    """The process of a vGPU of the generation served."""
    generation = served.state.control("status")["generation"]
    wanted = Worker(generation, vgpu)
    for process in served.processes():
        with contextlib.suppress(psutil.Error):
            words = process.cmdline()
            if "triton_backend.serving.worker" in words and words[-3:-1] == [
                str(wanted.generation),
                str(wanted.vgpu),
            ]:
                return process
    message = f"no process of {wanted}"
    raise RuntimeError(message)


def kill_worker(vgpu: int) -> Callable[[Served], None]:
    """SIGKILL to a worker."""
    return lambda served: worker(served, vgpu).kill()


def stop_worker(served: Served) -> None:
    """SIGSTOP: it lives and says nothing."""
    worker(served, 1).suspend()


def slow_worker(served: Served) -> None:
    """Stopped for the larger part of every period, so that its batches take about twice as long."""
    process = worker(served, 5)
    with contextlib.suppress(psutil.NoSuchProcess):
        for _ in range(int(LASTING_S / SLOW_PERIOD_S)):
            process.suspend()
            time.sleep(SLOW_PERIOD_S * SLOW_STOPPED)
            process.resume()
            time.sleep(SLOW_PERIOD_S * (1 - SLOW_STOPPED))


def kill_stub(prefix: str) -> Callable[[Served], None]:
    """SIGKILL to the stub of the first Triton model whose name begins so."""

    def inject(served: Served) -> None:
        name = min(p.name for p in (served.folder / "pids").iterdir() if p.name.startswith(prefix))
        stub(served, name).kill()

    return inject


def hang_stub(model: str) -> Callable[[Served], None]:
    """SIGSTOP to a stub."""
    return lambda served: stub(served, model).suspend()


def kill_triton(served: Served) -> None:
    """SIGKILL to the server."""
    os.kill(int(served.state.data["triton_pid"]), signal.SIGKILL)


def fill(folder: Callable[[Served], Path]) -> Callable[[Served], None]:
    """Fill a file system to the last byte for a while."""

    def inject(served: Served) -> None:
        path = folder(served) / "filler"
        try:
            with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
                while True:
                    file.write(bytes(FILL_PIECE))
            with path.open("ab", buffering=0) as file, contextlib.suppress(OSError):
                while True:
                    file.write(b"0")
            time.sleep(LASTING_S)
        finally:
            path.unlink()

    return inject


FAULTS = (
    Fault(name="worker killed", inject=kill_worker(1), loses="its batch, where too late to retry"),
    Fault(name="last-stage worker killed", inject=kill_worker(4), loses="its batch"),
    Fault(name="worker hung", inject=stop_worker, loses="its batches until noticed (1 s)"),
    Fault(name="worker slow", inject=slow_worker, loses="batches until its table is corrected"),
    Fault(name="front killed", inject=kill_stub("alpha"), loses="what it held"),
    Fault(name="scheduler killed", inject=kill_stub(CONTROL_MODEL), loses="until it is loaded"),
    Fault(
        name="scheduler hung",
        inject=hang_stub(CONTROL_MODEL),
        loses="until noticed (8 s)",
        at_least_s=18,
    ),
    Fault(name="node killed", inject=kill_stub("poolpipe_node_"), loses="its workers' batches"),
    Fault(
        name="tritonserver killed",
        inject=kill_triton,
        loses="until it is started anew",
        at_least_s=22,
    ),
)
FILLED = (
    Fault(name="disk full", inject=fill(lambda served: served.folder), loses="log lines"),
    Fault(
        name="shared memory full", inject=fill(lambda _: SHARED_FOLDER), loses="requests meanwhile"
    ),
)


class Prober(threading.Thread):
    """Asks for the state and one answer of every model, ten times a second; notes when not well."""

    def __init__(self, served: Served) -> None:
        super().__init__(daemon=True)
        self._served = served
        self._over = threading.Event()
        self.last_bad_us = 0
        self.complaints: dict[str, int] = {}

    def run(self) -> None:
        """Probe until told to end."""
        while not self._over.wait(PROBE_SECONDS):
            complaint = self._complaint()
            if complaint is not None:
                self.last_bad_us = time.monotonic_ns() // 1000
                self.complaints[complaint] = self.complaints.get(complaint, 0) + 1

    def end(self) -> None:
        """Stop probing."""
        self._over.set()
        self.join()

    def _complaint(self) -> str | None:
        try:
            workers = self._served.state.control("status")["workers"]
        except PoolPipeError as error:
            return str(error)[:80]
        if workers["up"] < workers["total"]:
            return f"{workers['up']} of {workers['total']} workers"
        for model in self._served.plan.models:
            if not answers(self._served, model.name):
                return f"no answer of {model.name}"
        return None


def answers(served: Served, model: str) -> bool:
    """Whether a model answers one request."""
    body = {
        "inputs": [{"name": "input", "shape": [1, 4096], "datatype": "UINT8", "data": [0] * 4096}]
    }
    request = urllib.request.Request(  # our own server
        f"http://{served.state.http_url}/v2/models/{model}/infer", data=json.dumps(body).encode()
    )
    try:
        with urllib.request.urlopen(request, timeout=1) as answer:  # noqa: S310  # as above
            return bool(answer.read())
    except OSError:
        return False


def measure(served: Served, fault: Fault, seconds: float) -> dict[str, Any]:
    """One run with one fault in it."""
    checks = [f"--check={m.name}={samples_file(served.root, m)}" for m in served.plan.models]
    load = Load(
        served.state.grpc_url,
        served.write_plan(served.plan, "plan"),
        f"--load-factor={LOAD_FACTOR}",
        f"--duration={seconds}",
        f"--give-up-s={GIVE_UP_S}",
        *checks,
    )
    prober = Prober(served)
    prober.start()
    time.sleep(FAULT_AT_S)
    fault_us = time.monotonic_ns() // 1000
    fault.inject(served)
    gone_us = time.monotonic_ns() // 1000
    loaded = load.result()
    prober.end()
    repaired_us = max(gone_us, prober.last_bad_us)
    return judge(loaded, fault_us, repaired_us) | {"complaints": prober.complaints}


def judge(loaded: Loaded, fault_us: int, repaired_us: int) -> dict[str, Any]:
    """Figures of one run."""
    checks = [row["checked"] for row in loaded.summary["models"].values()]
    begin_us = loaded.started_us
    bad = [at for at, share, _ in loaded.windows(WINDOW_S) if share < GOOD]
    good_again_us = begin_us + round((bad[-1] + WINDOW_S) * 1e6) if bad else fault_us
    waited = loaded.waited_past_deadline_us()
    after = loaded.records[loaded.records["intended_us"] + begin_us >= repaired_us]
    return {
        "offered": len(loaded.records),
        "checked": sum(c["responses"] for c in checks),
        "wrong": sum(c["wrong"] for c in checks),
        **{
            name: sum(row[name] for row in loaded.summary["models"].values())
            for name in ("late", "dropped", "failed")
        },
        "waited_longest_ms": float(waited.max()) / 1000,
        "waited_too_long": int((waited > GRACE_US).sum()),
        "good_before_fault": not bad or begin_us + bad[0] * 1e6 > fault_us - WINDOW_S * 1e6,
        "repaired_s": (repaired_us - fault_us) / 1e6,
        "good_again_s": max(good_again_us - fault_us, 0) / 1e6,
        "good_after_repair_s": max(good_again_us - repaired_us, 0) / 1e6,
        "attainment_after_repair": float((after["outcome"] == SERVED).mean())
        if len(after)
        else 1.0,
        "messages": loaded.summary["messages"],
        "load_average": os.getloadavg()[0],
    }


def wait_well(served: Served) -> bool:
    """Whether the system is whole again before the next fault."""
    for _ in range(200):
        with contextlib.suppress(PoolPipeError):
            workers = served.state.control("status")["workers"]
            if workers["up"] == workers["total"] and all(
                answers(served, m.name) for m in served.plan.models
            ):
                return True
        time.sleep(PROBE_SECONDS)
    return False


def run_all(
    options: argparse.Namespace, faults: tuple[Fault, ...], within: Path | None
) -> list[dict[str, Any]]:
    """All faults against one server, one after the other."""
    rows: list[dict[str, Any]] = []
    with Served(small_plan("faults"), options.port, within=within) as served:
        before = len(served.processes())
        for fault in faults:
            if options.only and fault.name not in options.only:
                continue
            row: dict[str, Any] = {"fault": fault.name, "may_lose": fault.loses}
            try:
                row |= measure(served, fault, max(options.seconds, fault.at_least_s))
            except (RuntimeError, ServerError) as error:
                row |= {"broken": str(error)}
            row["whole_again"] = wait_well(served)
            rows.append(row)
            print(report(row), flush=True)
        after = len(served.processes())
        print(f"processes before {before}, after {after}", flush=True)
        log = (served.folder / "logs" / "server.log").read_text()
        if options.verbose:
            print(log[-6000:])
            print((served.folder / "logs" / "triton.log").read_text()[-6000:])
    return rows


def report(row: dict[str, Any]) -> str:
    """One line."""
    if "broken" in row:
        return f"{row['fault']:<26} BROKEN: {row['broken']}"
    return (
        f"{row['fault']:<26} wrong {row['wrong']} of {row['checked']}; of {row['offered']}:"
        f" late {row['late']}, dropped {row['dropped']}, failed {row['failed']};"
        f" waited past deadline at most {row['waited_longest_ms']:.0f} ms,"
        f" over 100 ms: {row['waited_too_long']};"
        f" repaired after {row['repaired_s']:.1f} s, >= 99 % after {row['good_again_s']:.1f} s,"
        f" {row['good_after_repair_s']:.1f} s after repair (target {RECOVERY_TARGET_S:.0f});"
        f" whole again {row['whole_again']}; machine load {row['load_average']:.1f}"
    )


def in_namespace() -> list[dict[str, Any]]:
    """The faults of full file systems, in a mount namespace of their own."""
    path = Path(f"/tmp/poolpipe-faults-{os.getpid()}.json")  # noqa: S108  # read back at once
    unshare = shutil.which("unshare")
    if unshare is None:
        return [{"fault": f.name, "broken": "not tried: no unshare"} for f in FILLED]
    command = [unshare, "--mount", "--map-root-user", sys.executable, *sys.argv]
    code = subprocess.run([*command, "--inside", str(path)], check=False).returncode
    if code or not path.exists():
        return [
            {"fault": f.name, "broken": f"not tried: unshare ended with {code}"} for f in FILLED
        ]
    rows = json.loads(path.read_text())
    path.unlink()
    return rows


def inside(options: argparse.Namespace) -> None:
    """In the namespace: small file systems, then the faults."""
    mount, umount = shutil.which("mount"), shutil.which("umount")
    if mount is None or umount is None:
        raise SystemExit("no mount")
    within = Path(f"/tmp/poolpipe-small-{os.getpid()}")  # noqa: S108  # a mount point
    within.mkdir()
    for place, megabytes in ((within, 64), (SHARED_FOLDER, 256)):
        subprocess.run(
            [mount, "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(place)], check=True
        )
    try:
        options.inside.write_text(json.dumps(run_all(options, FILLED, within)))
    finally:
        subprocess.run([umount, "--lazy", str(within)], check=True)
        within.rmdir()


def main() -> None:
    """Run, print, store."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--only", nargs="+", help="names of faults")
    add("--seconds", type=float, default=12.0, help="of load per fault")
    add("--port", type=int, default=18_530)
    add("--output", type=Path)
    add("--verbose", action="store_true", help="the server's logs at the end")
    add("--inside", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside is not None:
        inside(options)
        return
    watch, began = Stopwatch(), now_utc().isoformat()
    rows: list[dict[str, Any]] = []
    wanted = {fault.name for fault in itertools.chain(FAULTS, FILLED)}
    wanted = set(options.only or wanted)
    if wanted & {fault.name for fault in FAULTS}:
        rows += run_all(options, FAULTS, None)
    if wanted & {fault.name for fault in FILLED}:
        filled = in_namespace()
        rows += filled
        for row in filled:
            if "offered" not in row:
                print(report(row))
    result = {"began": began, "wall_seconds": watch.seconds(), "machine": machine(), "rows": rows}
    store_result(options.output, result)


if __name__ == "__main__":
    main()
