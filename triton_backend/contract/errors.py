"""Errors that say whose fault it is.

Here: the two families every part of PoolPipe raises. Not here: how they are shown
(the command line prints an `InputError` as one line and exits with 2).
"""


class PoolPipeError(Exception):
    """Base of every error PoolPipe raises on purpose."""


class InputError(PoolPipeError):
    """The caller's fault: a file, field or argument that cannot be used.

    Args:
        where: what was wrong, as the caller knows it (file, field, option).
        reason: why, with the values at fault.
    """

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"{where}: {reason}")
        self.where = where
        self.reason = reason


class InfeasibleError(InputError):
    """No configuration can meet what was asked; the reason carries the best that is possible."""


class InvariantError(PoolPipeError):
    """Our fault: something that must always hold does not; the message carries the numbers."""
