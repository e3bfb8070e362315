"""The program `poolpipe`: an interrupt ends it quietly from its first line on.

Here: Ctrl-C while modules are imported, when nothing is under way that must be cleaned up. Not
here: interrupts of a command (`main`), and any import that takes long, `typing` among them.
"""

import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import NoReturn

INTERRUPTED = 128 + signal.SIGINT  # as shells count


def main() -> "NoReturn":
    """Run the command line of this process and exit."""
    usual = signal.getsignal(signal.SIGINT)
    if usual is signal.default_int_handler:  # else it was started to ignore interrupts
        # No KeyboardInterrupt: imports of other packages may swallow it, or print it.
        signal.signal(signal.SIGINT, _end)
    from flows.cli.main import main as run

    try:
        signal.signal(signal.SIGINT, usual)
        run()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _end(_number: int, _frame: "FrameType | None") -> "NoReturn":
    os._exit(INTERRUPTED)
