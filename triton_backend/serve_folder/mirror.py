"""Copies of clients' requests that the owner of a serve folder orders, and fronts fill.

An order is a file: which models, how many requests of each, until when. A front looks at it once a
second, copies the next requests that it answers, and writes them to a file of its own: when it has
as many as ordered, or when the order is withdrawn. What is past its time is forgotten unwritten, as
that of a rollout which was killed.

    serve folder/mirror/order.json                      the order
                       /<order>-<gateway>-<model>.npz   "<i>.in.<tensor>", "<i>.out.<tensor>"

All of it is readable for the folder's owner alone.
"""

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from triton_backend.contract.errors import InputError
from triton_backend.contract.fields import Fields
from triton_backend.serve_folder.files import PRIVATE, make_private_folder, whole_file, write_whole

Arrays = Mapping[str, NDArray[np.generic]]
IN, OUT = "in", "out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mirrored:
    """One sample that a client sent, and what it was answered; without the batch dimension's rest.

    Attributes:
        inputs, outputs: arrays of one sample by tensor, the batch dimension first.
    """

    inputs: Arrays
    outputs: Arrays

    @property
    def nbytes(self) -> int:
        """Of all its arrays."""
        return sum(a.nbytes for arrays in (self.inputs, self.outputs) for a in arrays.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorOrder:
    """How many requests of which models fronts are to copy.

    Attributes:
        name: no other order has it.
        requests: of each model, per front.
        models: of which.
        until_us: monotonic time of this host after which nothing is copied or written.
    """

    name: str
    requests: int
    models: tuple[str, ...]
    until_us: int

    @classmethod
    def place(cls, folder: Path, models: Sequence[str], requests: int, until_us: int) -> Self:
        """Write an order in place of any former one.

        Raises:
            OSError: it cannot be written.
        """
        order = cls(
            name=secrets.token_hex(4), requests=requests, models=tuple(models), until_us=until_us
        )
        make_private_folder(_place(folder))
        write_whole(_file(folder), json.dumps(asdict(order)) + "\n", mode=PRIVATE)
        return order

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """The order in force; None where there is none, or none that can be read."""
        try:
            fields = Fields(json.loads(_file(folder).read_text()))
            return cls(
                name=fields.text("name"),
                requests=fields.integer("requests"),
                models=fields.texts("models"),
                until_us=fields.integer("until_us"),
            )
        except (OSError, ValueError, InputError):
            return None

    def copies(self, folder: Path, model: str, gateway: int) -> Path:
        """The file of one front's copies."""
        return _place(folder) / f"{self.name}-{gateway}-{model}.npz"

    def remove(self, folder: Path, gateways: int) -> None:
        """Withdraw the order and remove all that was copied for it."""
        withdraw(folder)
        for gateway in range(gateways):
            for model in self.models:
                self.copies(folder, model, gateway).unlink(missing_ok=True)


def withdraw(folder: Path) -> None:
    """End the order in force: fronts write what they have."""
    _file(folder).unlink(missing_ok=True)


def write_copies(path: Path, copies: Sequence[Mirrored]) -> None:
    """Write requests and their answers, all or nothing.

    Raises:
        OSError: they cannot be written.
    """
    arrays = {
        f"{number}.{side}.{name}": array
        for number, one in enumerate(copies)
        for side, tensors in ((IN, one.inputs), (OUT, one.outputs))
        for name, array in tensors.items()
    }
    with whole_file(path, mode=PRIVATE) as file:
        np.savez(file, **arrays)


def read_copies(path: Path) -> list[Mirrored]:
    """Requests and answers that `write_copies` wrote; none where there is no file.

    Raises:
        OSError: it cannot be read.
        ValueError: it is damaged.
    """
    if not path.exists():
        return []
    found: dict[int, dict[str, dict[str, NDArray[np.generic]]]] = {}
    with np.load(path, allow_pickle=False) as file:
        for key in file.files:
            number, side, name = key.split(".", 2)
            found.setdefault(int(number), {IN: {}, OUT: {}})[side][name] = file[key]
    return [Mirrored(inputs=one[IN], outputs=one[OUT]) for _, one in sorted(found.items())]


def _place(folder: Path) -> Path:
    return folder / "mirror"


def _file(folder: Path) -> Path:
    return _place(folder) / "order.json"
