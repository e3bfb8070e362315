"""Output into a pipe whose reader leaves early, as `head` does: nobody is told, nothing breaks."""

import os
import sys
from collections.abc import Callable

READER_LEFT = 1
UNWRITTEN = 1


def piped(work: Callable[[], int]) -> int:
    """What `work` returns, its output written out; 1 where that cannot be, or nobody reads it."""
    try:
        code = work()
        sys.stdout.flush()  # here, not when Python exits and can only complain
    except BrokenPipeError:
        read_by_nobody()
        return READER_LEFT
    except OSError as error:
        read_by_nobody()
        sys.stderr.write(f"output: {error.strerror}\n")
        return UNWRITTEN
    return code


def read_by_nobody() -> None:
    """From here on stdout goes nowhere, with what it still has to write."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
