"""The Prefect server that the flows of one command talk to.

Call `prepare_prefect` before importing this: Prefect reads its settings when it is imported.
"""

import atexit
import signal
import socket
from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread

from prefect.server.api.server import SubprocessASGIServer
from prefect.settings import PREFECT_API_URL


def start_prefect_server() -> bool:
    """Start the server that the flows of this process talk to, unless a shared one is named.

    Returns whether it is this process's own.

    Prefect would start it itself, but then Ctrl-C in a terminal, or a SIGTERM to all of a job, ends
    it together with us, and Prefect waits minutes for it instead of cleaning up; and it could take
    one of Triton's ports. It ends with this process.
    """
    if PREFECT_API_URL.value():
        return False
    server = SubprocessASGIServer()
    if not server.running:
        server.port = _free_port()
        started: Future[None] = Future()
        # A thread of its own: the server inherits its signal mask, and we stay interruptible.
        Thread(target=_start_without_interrupts, args=(server.start, started), daemon=True).start()
        started.result()
        atexit.register(_kill, server)  # before Prefect's own way, a SIGTERM that is blocked
    return True


def _start_without_interrupts(start: Callable[[], None], started: Future[None]) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        start()
    except BaseException as error:  # noqa: BLE001  # raised again in the thread that waits
        started.set_exception(error)
    else:
        started.set_result(None)


def _kill(server: SubprocessASGIServer) -> None:
    if server.server_process is not None:
        server.server_process.kill()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
