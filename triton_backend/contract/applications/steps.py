"""Python steps: functions that a workload names, each of which serves as the one block of a model.

Only what a workload names is ever imported: a worker compares the function that an artifact asks
for with the steps of its plan's workload.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from triton_backend.contract.errors import InputError
from triton_backend.contract.fields import Fields, check_name

_FUNCTION = re.compile(r"([A-Za-z_]\w*)(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)
_LONGEST = 256  # characters of a function's name


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A model whose block is a Python function.

    Attributes:
        name: of the model, as modules and `before` and `after` name it.
        python: `package.module:function`.
    """

    name: str
    python: str

    def __post_init__(self) -> None:
        check_name("steps.name", self.name)
        if len(self.python) > _LONGEST or not _FUNCTION.fullmatch(self.python):
            raise InputError(
                f"step {self.name!r}, python",
                f"{self.python[:40]!r} is not package.module:function",
            )

    @property
    def package(self) -> str:
        """The package (or module) at the top, of which alone anything is imported."""
        return self.python.partition(":")[0].partition(".")[0]

    def to_dict(self) -> dict[str, Any]:
        """Plain form, as in `plan.json`."""
        return {"name": self.name, "python": self.python}

    @classmethod
    def read(cls, fields: Fields) -> Self:
        """Inverse of `to_dict`."""
        return cls(name=fields.text("name"), python=fields.text("python"))


def check_steps(steps: Sequence[Step]) -> None:
    """Check that every step has a name of its own.

    Raises:
        InputError: two have one name.
    """
    names = [step.name for step in steps]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"step {name!r}.name", "is listed twice")
