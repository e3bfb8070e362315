"""Where requests of a model come in: a block, a latency budget and a rate.

A model has one entry (block 0, budget = SLO) unless the workload lists entries; those are then all.
A request that enters at block p brings the tensors that cross before block p.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from triton_backend.contract.errors import InputError
from triton_backend.contract.fields import Fields, check_name
from triton_backend.contract.tensors import TensorSpec
from triton_backend.contract.units import ms_to_us, us_to_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One entry of a model.

    Attributes:
        name: distinct within its model.
        block: the first block that runs here.
        budget_us: from arrival here to the answer.
        rate_rps: planned rate of requests.
        inputs: the tensors that a request brings, those that cross before `block`; none: not known.
        clients: how many send them, where that is stated.
        dtype: in which they are sent, where it is not the model's own.
    """

    name: str
    block: int
    budget_us: int
    rate_rps: float
    inputs: tuple[TensorSpec, ...] = ()
    clients: int | None = None
    dtype: str | None = None

    def __post_init__(self) -> None:
        check_name("entries.name", self.name)
        where = f"entry {self.name!r}"
        if self.block < 0:
            raise InputError(f"{where}, block", f"{self.block} is negative")
        if self.budget_us < 1:
            raise InputError(f"{where}, budget_us", f"{self.budget_us} is not positive")
        if not 0 <= self.rate_rps < float("inf"):
            raise InputError(f"{where}, rate_rps", f"{self.rate_rps} is not a rate")

    def to_dict(self) -> dict[str, Any]:
        """Plain form, as in `plan.json`."""
        out: dict[str, Any] = {
            "name": self.name,
            "block": self.block,
            "budget_us": self.budget_us,
            "rate_rps": self.rate_rps,
        }
        if self.inputs:
            out["inputs"] = [spec.to_dict() for spec in self.inputs]
        return out | self._as_listed()

    def to_workload(self) -> dict[str, Any]:
        """Plain form, as in `workload.yaml`."""
        return {
            "name": self.name,
            "block": self.block,
            "budget_ms": us_to_ms(self.budget_us),
            "rate_rps": self.rate_rps,
        } | self._as_listed()

    def _as_listed(self) -> dict[str, Any]:
        known = {"clients": self.clients, "dtype": self.dtype}
        return {name: value for name, value in known.items() if value is not None}

    @classmethod
    def read(cls, fields: Fields) -> "Entry":
        """Inverse of `to_dict` and of `to_workload`."""
        return cls(
            name=fields.text("name"),
            block=fields.integer("block"),
            budget_us=ms_to_us(fields.number("budget_ms"))
            if fields.has("budget_ms")
            else fields.integer("budget_us", least=1),
            rate_rps=fields.number("rate_rps", least=0),
            inputs=tuple(
                map(TensorSpec.read, fields.items("inputs") if fields.has("inputs") else ())
            ),
            clients=fields.integer("clients", least=1) if fields.has("clients") else None,
            dtype=fields.text("dtype") if fields.has("dtype") else None,
        )


def covering(budgets_us: Mapping[int, int], timeout_us: int) -> int:
    """Which of several entries at one cut takes a request: the largest budget that its time covers, else the least.

    Args:
        budgets_us: by number of the entry.
        timeout_us: of the request; 0: not stated.
    """
    covered = [number for number, budget_us in budgets_us.items() if budget_us <= timeout_us]
    if covered:
        return max(covered, key=budgets_us.__getitem__)
    return min(budgets_us, key=budgets_us.__getitem__)


def check_entries(model: str, entries: Sequence[Entry], blocks: int | None = None) -> None:
    """Whether a model of so many blocks can have these entries.

    Raises:
        InputError: a name is used twice, or an entry lies beyond the model's last block, where it is known.
    """
    names = [entry.name for entry in entries]
    if len(set(names)) < len(names):
        raise InputError(f"model {model!r}, entries", f"a name is listed twice in {names}")
    for entry in entries:
        if blocks is not None and entry.block >= blocks:
            raise InputError(
                f"model {model!r}, entry {entry.name!r}, block",
                f"{entry.block}, but the model has blocks 0 to {blocks - 1}",
            )
