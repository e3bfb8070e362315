"""Where requests of a model come in: a block, a latency budget and a rate.

A model has one entry (block 0, budget = SLO) unless the workload lists entries; those are then all.
A request that enters at block p brings the tensors that cross before block p. Of several entries at
one block the budget decides which takes a request (`covering`), or a stated share of the requests
(`ShareTurns`): one rule for the front and the simulator.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Annotated, Any, NamedTuple, Self

from triton_backend.contract.errors import InputError
from triton_backend.contract.fields import About, Fields, Form, check_form, check_name, read_form
from triton_backend.contract.tensors import EXAMPLE, TensorSpec
from triton_backend.contract.units import ms_to_us, us_to_ms

LEAST_SHARE = 1e-4
_SHARES_OFF = 1e-6  # how far the sum of shares may be from 1
_WHOLE = 1 << 20  # all requests, as a share


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry(Form):
    """One entry of a model; `inputs` are empty where they are not known."""

    name: Annotated[str, About("Name of the entry, distinct within its model.", "tails")]
    block: Annotated[int, About("First block that runs here.", 4, least=0)]
    budget_us: Annotated[int, About("Time from arrival to answer, in µs.", 120000, least=1)]
    rate_rps: Annotated[float, About("Planned rate, in requests/s.", 90, least=0)]
    inputs: Annotated[
        tuple[TensorSpec, ...],
        About("Tensors that cross before the block.", [EXAMPLE], kind="tensor[]", written=False),
    ] = ()
    clients: Annotated[int | None, About("Number of clients, if stated.", 20, least=1)] = None
    dtype: Annotated[
        str | None, About("Datatype in which tensors are sent, if not the model's.", "FP16")
    ] = None
    share: Annotated[
        float | None,
        About("Share of the requests that come in here, if not chosen by budget.", 0.1, least=0),
    ] = None

    def __post_init__(self) -> None:
        check_name("entries.name", self.name)
        where = f"entry {self.name!r}"
        if not 0 <= self.rate_rps < float("inf"):
            raise InputError(f"{where}, rate_rps", f"{self.rate_rps} is not a rate")
        if self.share is not None and not LEAST_SHARE <= self.share < 1:
            reason = f"{self.share:g} is not from {LEAST_SHARE:g} to below 1"
            raise InputError(f"{where}, share", reason)
        check_form(where, self)

    def to_workload(self) -> dict[str, Any]:
        """Plain form, as in `workload.yaml`."""
        names = {"budget_us": "budget_ms"}
        plain = self.to_dict() | {"budget_us": us_to_ms(self.budget_us)}
        return {names.get(key, key): v for key, v in plain.items() if key != "inputs"}

    @classmethod
    def read(cls, fields: Fields) -> Self:
        """Inverse of `to_dict` and of `to_workload`."""
        known: dict[str, Any] = {}
        if fields.has("budget_ms"):
            known["budget_us"] = ms_to_us(fields.number("budget_ms"))
        return cls(**read_form(cls, fields, **known))


def demand_name(model: str, entry: str | None = None) -> str:
    """The name that clients ask for: a model, or an entry of one that lists some (`net/tails`)."""
    return model if entry is None else f"{model}/{entry}"


def covering(budgets_us: Mapping[int, int], timeout_us: int) -> int:
    """Which of several entries at one cut takes a request.

    The largest budget that its time covers, else the least.

    Args:
        budgets_us: by number of the entry.
        timeout_us: of the request; 0: not stated.
    """
    covered = [number for number, budget_us in budgets_us.items() if budget_us <= timeout_us]
    if covered:
        return max(covered, key=budgets_us.__getitem__)
    return min(budgets_us, key=budgets_us.__getitem__)


class ShareTurns:
    """Turns of entries that share requests: each comes as often as its share says, evenly.

    Every request gives each entry that may take it its share as credit; the one with the most takes
    it (the first of several) and pays for all. No chance is in it: of n requests an entry takes its
    share of n, to the next whole ones.

    Args:
        shares: by number of the entry.
    """

    def __init__(self, shares: Mapping[int, float]) -> None:
        self._shares = {number: round(share * _WHOLE) for number, share in shares.items()}
        self._credit = dict.fromkeys(shares, 0)

    def choose(self, able: Collection[int]) -> int:
        """Number of the entry that takes the next request, one of those able to."""
        for number in able:
            self._credit[number] += self._shares[number]
        chosen = max(able, key=self._credit.__getitem__)
        self._credit[chosen] -= sum(self._shares[number] for number in able)
        return chosen


def shares_of(entries: Sequence[Entry]) -> dict[int, float]:
    """Shares by number of the entry; empty where requests are not shared."""
    return {n: entry.share for n, entry in enumerate(entries) if entry.share is not None}


def check_entries(model: str, entries: Sequence[Entry], blocks: int | None = None) -> None:
    """Check that a model of so many blocks can have these entries.

    Raises:
        InputError: a name is used twice, or an entry lies beyond the model's last block, where it
            is known; or some state shares of requests that are not all the requests of one block.
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
    _check_shares(f"model {model!r}, entries", entries)


def _check_shares(where: str, entries: Sequence[Entry]) -> None:
    shares = shares_of(entries)
    if not shares:
        return
    if len(shares) < len(entries) or len({entry.block for entry in entries}) > 1:
        raise InputError(where, "some state a share: then all do, and come in at one block")
    if abs(fsum(shares.values()) - 1) > _SHARES_OFF:
        listed = " + ".join(f"{share:g}" for share in shares.values())
        raise InputError(where, f"shares add up to 1, not {listed}")


class Lease(NamedTuple):
    """A client's announcement of what it will send, and the instant at which that ends.

    It says what a client wants, and reserves nothing.
    """

    client: str
    model: str
    block: int
    rate_rps: float
    budget_us: int
    until_us: int


def latest(leases: Iterable[Lease]) -> list[Lease]:
    """One lease of every client, the one announced last: two gateways may have one each."""
    return [*{lease.client: lease for lease in sorted(leases, key=_until)}.values()]


def _until(lease: Lease) -> int:
    return lease.until_us
