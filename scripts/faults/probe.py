"""Probes of a running system.

Its state and one answer of every model, asked by `bench_faults`.
"""

import contextlib
import json
import math
import threading
import time
import urllib.request
from collections.abc import Iterable

from scripts.benchmarks.served import Served
from triton_backend.contract.errors import PoolPipeError
from triton_backend.contract.plan import ModelPlan
from triton_backend.contract.units import s_to_us, us_to_s
from triton_backend.runtimes.clock import SystemClock
from triton_backend.runtimes.stage_tensors import served_models

PROBE_SECONDS = 0.1


class Prober(threading.Thread):
    """Asks for the state and one answer of every model, ten times a second; notes when not well."""

    def __init__(self, served: Served) -> None:
        super().__init__(daemon=True)
        self._served = served
        self._over = threading.Event()
        self.bad_us: list[int] = []
        self.complaints: dict[str, int] = {}

    def run(self) -> None:
        """Probe until it is ended."""
        while not self._over.wait(PROBE_SECONDS):
            complaint = self._complaint()
            if complaint is not None:
                self.bad_us.append(SystemClock().now_us())
                self.complaints[complaint] = self.complaints.get(complaint, 0) + 1

    @property
    def last_bad_us(self) -> int:
        """When it was last not well; 0 for never."""
        return self.bad_us[-1] if self.bad_us else 0

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
        for model in served_models(self._served.plan):
            if not is_served(self._served, model):
                return f"no answer of {model.name}"
        return None


def well_from_us(bad_us: Iterable[int], from_us: int, seconds: float) -> int:
    """The first instant from a given one that begins so many seconds without a bad probe.

    A busy machine drops a request of a short deadline now and then, long after a fault.
    """
    for bad in bad_us:
        if bad - from_us > s_to_us(seconds):
            break
        from_us = max(from_us, bad)
    return from_us


def is_served(served: Served, model: ModelPlan) -> bool:
    """True if a model or an application answers one request; a job alone may take all its time."""
    size = math.prod(model.inputs[0].shape[1:])
    tensor = {
        "name": "input",
        "shape": [1, size],
        "datatype": "UINT8",
        "parameters": {"binary_data_size": size},
    }
    head = json.dumps({"inputs": [tensor]}).encode()
    request = urllib.request.Request(  # our own server
        f"http://{served.state.http_url}/v2/models/{model.name}/infer",
        data=head + bytes(size),
        headers={
            "Content-Type": "application/octet-stream",
            "Inference-Header-Content-Length": str(len(head)),
        },
    )
    try:
        timeout_s = max(1.0, 1.2 * us_to_s(model.slo_us))
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:  # noqa: S310  # as above
            return bool(answer.read())
    except OSError:
        return False


def wait_well(served: Served) -> bool:
    """True if the system is whole again before the next fault."""
    for _ in range(200):
        with contextlib.suppress(PoolPipeError):
            status = served.state.control("status")
            workers, standby = status["workers"], status["scheduler"]["standby"]
            whole = workers["up"] == workers["total"] and standby != "not ready"
            if whole and all(is_served(served, m) for m in served_models(served.plan)):
                return True
        time.sleep(PROBE_SECONDS)
    return False
