"""Output into a pipe whose reader leaves early, as `head` does, is no error."""

import os
import sys
from collections.abc import Callable

READER_LEFT = 1
UNWRITTEN = 1


def exit_code_of(work: Callable[[], int]) -> int:
    """The result of `work` after its output is flushed; 1 if that fails or has no reader."""
    try:
        code = work()
        sys.stdout.flush()  # here, not when Python exits and can only complain
    except BrokenPipeError:
        discard_stdout()
        return READER_LEFT
    except OSError as error:
        discard_stdout()
        sys.stderr.write(f"output: {error.strerror}\n")
        return UNWRITTEN
    return code


def discard_stdout() -> None:
    """From here on stdout goes nowhere, with what it still has to write."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
