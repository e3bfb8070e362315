"""The `poolpipe` command: what every command shares.

Exit codes: 0 success, 2 wrong usage or bad input (one line on stderr), 1 failure, 130 and 143 when
interrupted. Not here: which commands there are (`registry`), and any heavy import.
"""

import errno
import os
import shutil
import signal
import sys
import tempfile
from io import TextIOWrapper
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import typer

from flows.cli.console import note_compiling
from flows.cli.registry import GroupedCommands, add_commands
from flows.proxies import pass_proxies
from flows.sigpipe import exit_code_of
from triton_backend.contract.errors import InputError, PoolPipeError

FAILURE = 1
WRONG_INPUT = 2
INTERRUPTED = 130
TERMINATED = 143
FULL = (errno.ENOSPC, errno.EDQUOT)

app = typer.Typer(
    name="poolpipe",
    cls=GroupedCommands,
    help="Serve models under latency SLOs on pools of unequal GPUs.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: drawing it with Rich takes longer than all the rest
    context_settings={"help_option_names": ["-h", "--help"]},
)
add_commands(app)


def _version(asked: bool) -> None:  # noqa: FBT001 - as Typer calls it
    if asked:
        from importlib.metadata import version

        sys.stdout.write(f"poolpipe {version('poolpipe')}\n")
        raise typer.Exit


@app.callback()
def options(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_version, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Serve models under latency SLOs on pools of unequal GPUs."""
    del version  # its callback has ended the command


def main() -> NoReturn:
    """Run the command line of this process and exit; a SIGTERM cleans up like Ctrl-C."""
    signal.signal(signal.SIGTERM, _terminate)
    if isinstance(sys.stdout, TextIOWrapper):
        # Names of files need not be UTF-8, and not every terminal has every sign.
        sys.stdout.reconfigure(errors="backslashreplace")
    note_compiling()
    pass_proxies(os.environ)
    sys.exit(exit_code_of(lambda: run(sys.argv[1:])))


def run(arguments: list[str]) -> int:
    """Run one command line. Returns the exit code."""
    try:
        # A command returns nothing, or leaves by typer.Exit, whose code comes back.
        return app(arguments or ["--help"], prog_name="poolpipe", standalone_mode=False) or 0
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        raise  # `exit_code_of` knows what to do
    except (typer.TyperException, PoolPipeError, OSError, MemoryError) as error:
        message, code = _complaint(error)
        sys.stderr.write(f"poolpipe: {' '.join(message.split())}\n")
        return code


def _complaint(error: Exception) -> tuple[str, int]:
    """The line printed for an error, and the exit code."""
    if isinstance(error, typer.TyperException):
        return error.format_message(), WRONG_INPUT
    if isinstance(error, OSError):  # a full disk, a read-only folder: not the user's input
        room = f" ({_room()})" if error.errno in FULL else ""
        where = error.filename2 or error.filename or "output"  # of a copy, the file written
        return f"{where}: {error.strerror or error}{room}", FAILURE
    if isinstance(error, MemoryError):
        return f"not enough memory: {error}", FAILURE
    return str(error), WRONG_INPUT if isinstance(error, InputError) else FAILURE


def _room() -> str:
    """How much is free where commands write.

    An error of a full disk seldom says which one it was.
    """
    from flows.state import project_state, warehouse_path

    places = (project_state().home, warehouse_path().parent, Path(tempfile.gettempdir()))
    there = [next(p for p in (q.absolute(), *q.absolute().parents) if p.exists()) for q in places]
    free = {p.stat().st_dev: (p, shutil.disk_usage(p).free) for p in reversed(there)}
    return ", ".join(f"{p}: {bytes_left:,} bytes free" for p, bytes_left in free.values())


def _terminate(_number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(TERMINATED)
