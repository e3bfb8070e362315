"""Complaints of a flow about its input: in names of the form, and as one line of the log.

Checks are shared with the command line, so they may name `option vary`, or `--time-limit` in what
they advise. A form has fields. Here: the way from one to the other (the command line's is
`flows.cli.registry.as_typed`), and a log without the traceback of what is no defect.
"""

import logging
import re
from functools import wraps
from typing import Any, TypeVar

from flows.deployments.parameters import Parameters
from triton_backend.contract.errors import InputError, InvariantError, PoolPipeError

LOGGERS = ("prefect.flow_runs", "prefect.task_runs", "prefect.engine")  # of a run's own process
# A command stands as users type it, and that of a process as it was typed.
_COMMAND_OR_FLAG = re.compile(
    r"`poolpipe [^`]*`|process \d+ \(.*\), since|(?<![\w-])--[a-z][a-z-]*"
)
_OPTION = "option "
Made = TypeVar("Made", bound=Any)


def of_form(made: Made) -> Made:
    """The same flow, whose complaints are in terms of its parameters; above `@flow`."""
    work = made.fn

    @wraps(work)
    def run(parameters: Any) -> Any:
        try:
            return work(parameters)
        except InputError as error:
            raise as_of_form(error, type(parameters)) from error

    made.fn = run
    for name in LOGGERS:
        logging.getLogger(name).addFilter(_without_traceback)  # once, however often it is added
    return made


def as_of_form(error: InputError, form: type[Parameters]) -> InputError:
    """A complaint with every option in it named as its field of the form."""

    def named(found: re.Match[str]) -> str:
        return form.field_of(found[0]) or found[0]

    where, reason = (_COMMAND_OR_FLAG.sub(named, text) for text in (error.where, error.reason))
    return type(error)(where.removeprefix(_OPTION), reason)


def _without_traceback(record: logging.LogRecord) -> bool:
    """Keep the record; of an error that was raised on purpose the message says it all."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, PoolPipeError) and not isinstance(error, InvariantError):
        record.exc_info = record.exc_text = None
    return True
