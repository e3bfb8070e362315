"""Watching a running system: a thread that samples it and keeps what the page asks for.

Here: finding the system through its state file, fetching its metrics, reading the plan it serves.
Everything the page gets is worked out in this thread and kept as text, so that any number of
viewers cost nothing.
"""

import json
import threading
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from flows.clock import now_utc
from flows.reporting.ui.history import History, read_history
from flows.reporting.ui.live import LiveView, Sample
from flows.reporting.ui.vgpus import VGpuWatch
from flows.system_metrics import Metrics, MetricsError, read_all_metrics
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.serve_folder.state import metrics_urls

INTERVAL_S = 2.0
HISTORY_EVERY, HISTORY_SOONER = 30, 3  # samples
FETCH_S = 3.0
KEEPER_GONE = (
    "The keeper of the server is gone: nothing would restart the server or its models."
    " `poolpipe serve` of the plan in force takes it over."
)
NO_STANDBY = "The scheduler has no standby now: the keeper is loading one."


class SystemWatch:
    """One running system.

    Args:
        state_path: `state.json` of the serve folder; it need not exist yet.
        warehouse: a warehouse with the last day's history; None = only what was seen here.
        now: tells the time.
    """

    def __init__(
        self,
        state_path: Path,
        *,
        warehouse: Path | None = None,
        now: Callable[[], datetime] = now_utc,
    ) -> None:
        self._state_path = state_path
        self._warehouse = warehouse
        self._now = now
        self._view = LiveView()
        self._vgpus: VGpuWatch | None = None
        self._history = History()
        self._samples = 0
        self._served: tuple[str, str] | None = None  # plan id, generation
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self.plan: Plan | None = None
        self.live_json = "{}"
        self.history_json = "{}"

    def start(self) -> None:
        """Take a first sample, then go on in a thread."""
        self.sample()
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        self._thread.join()

    def sample(self) -> None:
        """Look once; a system that cannot be reached becomes the page's message."""
        now = self._now()
        problem: str | None = None
        warning: str | None = None
        vgpus: list[dict[str, Any]] = []
        try:
            state = json.loads(self._state_path.read_text())
            metrics = read_all_metrics(metrics_urls(state), FETCH_S)
            self._view.add(Sample(now.timestamp(), metrics))
            warning = _warning(metrics)
            self._follow(Path(state["folder"]))
            vgpus = self._vgpus.read() if self._vgpus else []
        except FileNotFoundError:
            problem = f"No system is running: there is no {self._state_path}."
        except (OSError, ValueError, KeyError, InputError, MetricsError) as error:
            problem = f"The system cannot be reached: {error}"
        except Exception as error:  # noqa: BLE001 - else the page would stand still for ever
            problem = f"The system cannot be read: {error!r}"
        self._read_history(now)
        self._samples += 1
        live = self._view.now() | {
            "problem": problem,
            "warning": warning,
            "vgpus": vgpus,
            "time": now.isoformat(),
        }
        self.live_json = json.dumps(live)
        self.history_json = json.dumps(self._day())

    def _read_history(self, now: datetime) -> None:
        """About once a minute, sooner while the warehouse is locked; what was read stays."""
        every = HISTORY_SOONER if self._history.note else HISTORY_EVERY
        if self._warehouse is None or self._samples % every != 0:
            return
        try:
            found = read_history(self._warehouse, now)
        except Exception as error:  # noqa: BLE001 - as above
            found = History(note=f"{self._warehouse}: {error}")
        self._history = replace(self._history, note=found.note) if found.note else found

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL_S):
            self.sample()

    def _follow(self, folder: Path) -> None:
        """Read the plan again when another one is served."""
        served = self._view.now()["plan"]
        if served is None:
            return
        key = served["plan_id"], served["generation"]
        if key == self._served:
            return
        path = folder / "generations" / key[1] / "plan.json"
        self.plan = Plan.from_dict(json.loads(path.read_text()))
        self._vgpus = VGpuWatch(folder / "events", self.plan, key[1])
        self._served = key

    def _day(self) -> dict[str, Any]:
        """The warehouse's minutes, and after them those seen here that it does not have."""
        last = self._history.minutes[-1]["minute"] if self._history.minutes else 0
        own = [row for row in self._view.closed_minutes() if row["minute"] > last]
        return asdict(self._history) | {"minutes": self._history.minutes + own}


def _warning(metrics: Metrics) -> str | None:
    """Faults without repair, and losses that the next death would cause.

    A plan may be served without either.
    """
    for name, words in (("keeper_up", KEEPER_GONE), ("standby_ready", NO_STANDBY)):
        if max(metrics.get(name, {}).values(), default=1.0) == 0.0:
            return words
    return None
