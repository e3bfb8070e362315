"""Replay a gateway's event files through the scheduler core and compare every decision.

The gateway logs the events of its core and what it decided. A fresh core given the same events
must decide alike: the simulator and the gateway run the same scheduler.

    .venv/bin/python scripts/faults/replay_events.py .poolpipe/serve

Prints the number of events and decisions compared; exit 1 at the first decision that differs.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from triton_backend.contract import events
from triton_backend.contract.decisions import Decision
from triton_backend.contract.errors import InputError
from triton_backend.contract.events import Event, PlanChanged
from triton_backend.contract.plan import Plan
from triton_backend.scheduler.scheduler import Scheduler
from triton_backend.scheduler.topology import PUNCTUAL, SharedBatchTimes
from triton_backend.serve_folder.line_files import files_in_order
from triton_backend.serving.gateway.event_log import Gap, read_events

EVENTS = tuple(kind for kind in vars(events).values() if isinstance(kind, type))


def items(folder: Path) -> Iterator[Event | Decision | Gap | dict[str, Any]]:
    """Everything in the event files of a serve folder, oldest first."""
    files = files_in_order(folder / "events", "events")
    if not files:
        raise InputError(str(folder / "events"), "no event files")
    for path in files:
        with path.open() as lines:
            yield from read_events(lines)


def plan_of(folder: Path, header: dict[str, Any]) -> Plan:
    """The plan a header names."""
    path = folder / "generations" / str(header["generation"]) / "plan.json"
    return Plan.from_dict(json.loads(path.read_text()))


class Replay:
    """Tells a core the logged events and compares what it answers with what was logged."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._core: Scheduler | None = None
        self._expected: list[Decision] = []
        self._lost = False  # something is missing since the last life began
        self.events = 0
        self.compared = 0

    def take(self, item: Event | Decision | Gap | dict[str, Any]) -> None:
        """The next item of the log.

        Raises:
            InputError: the core answers differently; the message has both answers.
        """
        if isinstance(item, dict):
            self._begin(item)
        elif isinstance(item, Gap):
            print(f"{item.lines} lines are missing: not compared up to the gateway's next life")
            self._core, self._expected, self._lost = None, [], True
        elif self._lost:
            pass
        elif isinstance(item, EVENTS):
            self._check_done()
            self._tell(item)  # pyright: ignore[reportArgumentType]  # EVENTS are the events
        else:
            self._compare(item)  # pyright: ignore[reportArgumentType]  # what is left: decisions

    def _begin(self, header: dict[str, Any]) -> None:
        """A plan begins: of a new life of the gateway, or by a rollout within one."""
        self._check_done()
        if self._lost and header["rollout"]:
            return
        self._lost = False
        plan = plan_of(self._folder, header)
        times = header.get("shared_batch_times")  # logs of gateways that joined nothing have none
        if self._core is not None and header["rollout"]:
            self._core.set_shared_batch_times(SharedBatchTimes(*(times or PUNCTUAL)))
            inherited = tuple((old, new) for old, new in header.get("inherited", ()))
            self._tell(PlanChanged(now_us=header["now_us"], plan=plan, inherited=inherited))
        else:
            self._core = Scheduler(
                plan,
                policy=header["policy"],
                nic=header["nic"],
                shared_batches=times is not None,
                shared_batch_times=SharedBatchTimes(*(times or PUNCTUAL)),
            )

    def _tell(self, event: Event) -> None:
        if self._core is None:
            raise InputError(str(self._folder), "the event files do not begin with a plan")
        self._expected = list(self._core.handle(event))
        self._last = event
        self.events += 1

    def _compare(self, logged: Decision) -> None:
        answer = self._expected.pop(0) if self._expected else None
        if answer != logged:
            raise InputError(
                f"event {self.events} {self._last}", f"logged {logged}, the replay answers {answer}"
            )
        self.compared += 1

    def _check_done(self) -> None:
        if self._expected:
            raise InputError(
                f"event {self.events} {self._last}", f"the replay also answers {self._expected[0]}"
            )


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="serve folder")
    folder: Path = parser.parse_args().folder
    replay = Replay(folder)
    try:
        for item in items(folder):
            replay.take(item)
    except InputError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{replay.events} events, {replay.compared} decisions alike")
    return 0


if __name__ == "__main__":
    sys.exit(main())
