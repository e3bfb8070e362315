"""A gateway that keeps what it posts, for tests that tell it things by hand."""

from typing import NamedTuple

from triton_backend.serving.driver import Gateway
from triton_backend.serving.driver_books import Watcher
from triton_backend.serving.driver_letters import Front, Worker
from triton_backend.serving.settings import Deployment


class Letter(NamedTuple):
    """A frame for somebody."""

    to: Front | Worker
    data: bytes


class HeldGateway(Gateway):
    """Its letters lie here until they are taken."""

    def __init__(
        self,
        deployment: Deployment,
        *,
        epoch: int = 1,
        watch: Watcher = lambda _event, _decisions: None,
    ) -> None:
        self._letters: list[Letter] = []
        super().__init__(deployment, epoch=epoch, now_us=0, watch=watch, post=self._keep)

    def _keep(self, to: Front | Worker, data: bytes) -> None:
        self._letters.append(Letter(to, data))

    def letters(self) -> list[Letter]:
        """Take what was posted."""
        letters, self._letters = self._letters, []
        return letters
