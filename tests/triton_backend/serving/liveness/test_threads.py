"""Threads that run, wait, stand still, or have no processor."""

import os
import signal
import subprocess
import sys

import pytest

from tests.triton_backend.serving.system import wait_for
from triton_backend.serving.liveness.threads import Starvation, ThreadUse, thread_uses

NOW_US = 10**9


def test_who_wants_a_processor_and_has_none_is_starved() -> None:
    starvation = Starvation()
    runs, waits, sleeps = 1, 2, 3
    looks = (
        {
            runs: ThreadUse(wants=True, ran_us=0),
            waits: ThreadUse(wants=True, ran_us=7),
            sleeps: ThreadUse(wants=False, ran_us=0),
        },
        {
            runs: ThreadUse(wants=True, ran_us=100),
            waits: ThreadUse(wants=True, ran_us=7),
            sleeps: ThreadUse(wants=False, ran_us=0),
        },
        {
            runs: ThreadUse(wants=True, ran_us=200),
            waits: ThreadUse(wants=True, ran_us=47),
            sleeps: ThreadUse(wants=False, ran_us=0),
        },
        {runs: ThreadUse(wants=True, ran_us=300), sleeps: ThreadUse(wants=False, ran_us=0)},
        {
            runs: ThreadUse(wants=True, ran_us=320),
            sleeps: ThreadUse(wants=False, ran_us=0),
            4: ThreadUse(wants=True, ran_us=0),
        },
        {},
    )
    assert [starvation.look(one, NOW_US + 100 * n) for n, one in enumerate(looks)] == [
        *(0, 100, 160, 160, 240, 240)
    ]


@pytest.mark.slow
def test_threads_are_seen_to_run_to_wait_and_to_stand_still() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        wait_for(lambda: any(t.wants and t.ran_us for t in thread_uses(process.pid).values()))
        os.kill(process.pid, signal.SIGSTOP)
        wait_for(lambda: not any(t.wants for t in thread_uses(process.pid).values()))
        process.kill()
    assert thread_uses(process.pid) == {}
