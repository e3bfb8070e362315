"""Shares of a GPU: whole 300ths, so that 1/v (v up to 4) and whole percents are both exact.

    share   1/1   1/2   1/3   1/4    20 %   1 %
    300ths  300   150   100    75     60      3

Files say `vgpu_divisor: 3` or `vgpu_percent: 20`; inside, a share is an int.

MIG divides a card into slices of 1, 2, 3, 4 or 7 sevenths of its cores, each with memory and cache
of its own, so that slices do not disturb each other. By MPS, up to four processes may run in a
slice, each a vGPU. Sevenths are not whole 300ths, and two thirds of `2g` are not measured where one
third of `4g` is: so the number of such a share stands for what was measured, a slice and how many
processes share it. It is the largest number not above the true part that is no share of another
kind and not taken by a smaller slice; sums of a legal cut stay within a GPU.

    processes    1     2     3     4
    1g          41    20    14    10        files: `vgpu_mig: 1g`, `1g/2` (one of two processes)
    2g          85    40    28    19
    3g         128    64    38    32
    4g         170    83    56    37
    7g         299   149    98    74

Here: sizes, their spelling, MIG's tables of what fits a card. Not here: which sizes a class has
(`cluster`).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations_with_replacement
from typing import Any, NamedTuple

from triton_backend.contract.errors import InputError
from triton_backend.contract.fields import Fields

WHOLE_GPU = 300
PER_PERCENT = WHOLE_GPU // 100
MAX_DIVISOR = 4
MAX_PERCENT = 100
LOADED = "loaded"  # a latency measured while equal copies kept the other parts of the GPU busy
SOLO = "solo"  # a latency measured while the rest of the GPU was idle
BASES = (LOADED, SOLO)

MIG_COMPUTE = (1, 2, 3, 4, 7)  # sevenths of a card that slices have
SEVENTHS = 7
EIGHTHS = 8  # of a card's memory, which slices begin at
MOST_PROCESSES = 4  # of one slice

Part = tuple[int, str]
"""The place of a measurement: share in 300ths, and basis."""


def share_of_divisor(divisor: int) -> int:
    """1/v of a GPU.

    Raises:
        InputError: v is not from 1 to 4.
    """
    if not 1 <= divisor <= MAX_DIVISOR:
        raise InputError("vgpu_divisor", f"{divisor} is not from 1 to {MAX_DIVISOR}")
    return WHOLE_GPU // divisor


def share_of_percent(percent: int) -> int:
    """Whole percents of a GPU.

    Raises:
        InputError: not from 1 to 100.
    """
    if not 1 <= percent <= MAX_PERCENT:
        raise InputError("vgpu_percent", f"{percent} is not from 1 to {MAX_PERCENT}")
    return percent * PER_PERCENT


def divisor_of(share: int) -> int | None:
    """v where a share is 1/v for v from 1 to 4, else None."""
    divisor, rest = divmod(WHOLE_GPU, share)
    return divisor if rest == 0 and divisor <= MAX_DIVISOR else None


def percent_of(share: int) -> float:
    """Percents of a GPU."""
    return share / PER_PERCENT


def share_text(share: int) -> str:
    """For people: `1/3`, `20 %`, `1/1` (a whole GPU), `3g` (a MIG slice), `3g/2` (half of one)."""
    cell = mig_cell(share)
    if cell is not None:
        return str(cell)
    divisor = divisor_of(share)
    return f"{percent_of(share):g} %" if divisor is None else f"1/{divisor}"


def check_share(where: str, share: int) -> None:
    """Check that a share can be written in a file.

    Raises:
        InputError: it is neither 1/v nor whole percents nor a part of a MIG slice.
    """
    whole_percents = 1 <= share <= WHOLE_GPU and share % PER_PERCENT == 0
    named = share >= 1 and (divisor_of(share) is not None or mig_cell(share) is not None)
    if not whole_percents and not named:
        raise InputError(where, f"a share of {share}/{WHOLE_GPU} is neither 1/v nor whole percents")


def read_share(fields: Fields) -> int:
    """`vgpu_divisor`, `vgpu_percent` or `vgpu_mig` of a file's object; one of them.

    Raises:
        InputError: several, none, or out of range.
    """
    divisor, percent = fields.has("vgpu_divisor"), fields.has("vgpu_percent")
    if divisor and percent:
        raise fields.wrong("vgpu_percent", "stands beside vgpu_divisor; one of the two is allowed")
    if fields.has("vgpu_mig"):
        if divisor or percent:
            raise fields.wrong("vgpu_mig", "stands beside another size; one is allowed")
        return share_of_mig(fields.text("vgpu_mig"))
    if percent:
        return fields.integer("vgpu_percent", least=1, most=MAX_PERCENT) * PER_PERCENT
    return WHOLE_GPU // fields.integer("vgpu_divisor", least=1, most=MAX_DIVISOR)


def share_to_dict(share: int) -> dict[str, Any]:
    """Inverse of `read_share`: 1/v where it is that, a part of a MIG slice, else percents."""
    if mig_cell(share) is not None:
        return {"vgpu_mig": share_text(share)}
    divisor = divisor_of(share)
    if divisor is not None:
        return {"vgpu_divisor": divisor}
    return {"vgpu_percent": share // PER_PERCENT}


# MIG


class MigCell(NamedTuple):
    """One of `processes` equal processes in a slice of `compute` sevenths."""

    compute: int
    processes: int

    def __str__(self) -> str:
        """As files spell it: `3g`, `3g/2`."""
        return f"{self.compute}g" + (f"/{self.processes}" if self.processes > 1 else "")


@cache
def _mig_shares() -> Mapping[MigCell, int]:
    """The share of every cell; see the head of this file."""
    found: dict[MigCell, int] = {}
    for compute in MIG_COMPUTE:
        for processes in range(1, MOST_PROCESSES + 1):
            share = WHOLE_GPU * compute // SEVENTHS // processes
            while share % PER_PERCENT == 0 or divisor_of(share) or share in found.values():
                share -= 1
            found[MigCell(compute, processes)] = share
    return found


@cache
def _mig_cells() -> Mapping[int, MigCell]:
    return {share: cell for cell, share in _mig_shares().items()}


def mig_share(cell: MigCell) -> int:
    """The share that stands for a part of a slice."""
    return _mig_shares()[cell]


def mig_cell(share: int) -> MigCell | None:
    """The part of a MIG slice that a share stands for, if any."""
    return _mig_cells().get(share)


def runs_beside(share: int) -> bool:
    """True if vGPUs of a share run beside others by MPS: parts of a GPU, or of one MIG slice."""
    cell = mig_cell(share)
    return share < WHOLE_GPU if cell is None else cell.processes > 1


def share_of_mig(text: str) -> int:
    """The share of `3g` or `3g/2`.

    Raises:
        InputError: there is no such part.
    """
    for cell, share in _mig_shares().items():
        if str(cell) == text:
            return share
    sizes = ", ".join(f"{compute}g" for compute in MIG_COMPUTE)
    reason = f"{text!r} is none of {sizes}, or one of these with /2 to /{MOST_PROCESSES}"
    raise InputError("vgpu_mig", reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class MigProfile:
    """A kind of slice of a card.

    Attributes:
        compute: sevenths of the cores.
        eighths: of the memory.
        memory_gib: usable.
        starts: eighths of the memory at which such a slice may begin.
    """

    name: str
    compute: int
    eighths: int
    memory_gib: float
    starts: tuple[int, ...]


def _profiles(*rows: tuple[str, int, float, tuple[int, ...]]) -> Mapping[str, MigProfile]:
    return {
        name: MigProfile(
            name=name, compute=int(name[0]), eighths=eighths, memory_gib=gib, starts=starts
        )
        for name, eighths, gib, starts in rows
    }


_ANYWHERE, _EVEN, _PAIRS, _HALVES = (0, 1, 2, 3, 4, 5, 6), (0, 2, 4, 6), (0, 2, 4), (0, 4)

# As `nvidia-smi mig -lgip` and `-lgipp` list them (NVIDIA's MIG user guide, "Supported MIG
# profiles"); where drivers differ in the memory that they leave, the least. No listing of `3g.71gb`
# and `4g.71gb` was at hand: they count as two of `2g.35gb`, which is less than they have.
MIG_CARDS: Mapping[str, Mapping[str, MigProfile]] = {
    "A100-40GB": _profiles(
        ("1g.5gb", 1, 4.75, _ANYWHERE),
        ("1g.10gb", 2, 9.75, _EVEN),
        ("2g.10gb", 2, 9.75, _PAIRS),
        ("3g.20gb", 4, 19.62, _HALVES),
        ("4g.20gb", 4, 19.62, (0,)),
        ("7g.40gb", 8, 39.38, (0,)),
    ),
    "A100-80GB": _profiles(
        ("1g.10gb", 1, 9.5, _ANYWHERE),
        ("1g.20gb", 2, 19.5, _EVEN),
        ("2g.20gb", 2, 19.5, _PAIRS),
        ("3g.40gb", 4, 39.25, _HALVES),
        ("4g.40gb", 4, 39.25, (0,)),
        ("7g.80gb", 8, 79.0, (0,)),
    ),
    "H100-80GB": _profiles(
        ("1g.10gb", 1, 9.75, _ANYWHERE),
        ("1g.20gb", 2, 19.62, _EVEN),
        ("2g.20gb", 2, 19.62, _PAIRS),
        ("3g.40gb", 4, 39.5, _HALVES),
        ("4g.40gb", 4, 39.5, (0,)),
        ("7g.80gb", 8, 79.25, (0,)),
    ),
    "H200-141GB": _profiles(
        ("1g.18gb", 1, 16.0, _ANYWHERE),
        ("1g.35gb", 2, 32.5, _EVEN),
        ("2g.35gb", 2, 32.5, _PAIRS),
        ("3g.71gb", 4, 65.0, _HALVES),
        ("4g.71gb", 4, 65.0, (0,)),
        ("7g.141gb", 8, 140.0, (0,)),
    ),
    "B200-180GB": _profiles(
        ("1g.23gb", 1, 20.5, _ANYWHERE),
        ("1g.45gb", 2, 44.25, _EVEN),
        ("2g.45gb", 2, 44.25, _PAIRS),
        ("3g.90gb", 4, 89.0, _HALVES),
        ("4g.90gb", 4, 89.0, (0,)),
        ("7g.180gb", 8, 178.5, (0,)),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mig:
    """How cards of a class may be divided.

    Attributes:
        card: a key of `MIG_CARDS`.
        profiles: kinds of slices to use, at most one of each compute; none given: all, with the
            least memory of their compute.
        processes: most processes in one slice, by MPS.
        geometries: the only divisions of a card that are allowed; none given: all that fit.
    """

    card: str
    profiles: tuple[str, ...] = ()
    processes: int = 1
    geometries: tuple[tuple[str, ...], ...] = ()

    def check(self, where: str) -> None:
        """Check that card, profiles and geometries exist and fit.

        Raises:
            InputError: one does not.
        """
        known = MIG_CARDS.get(self.card)
        if known is None:
            raise InputError(
                f"{where}.mig.card", f"{self.card!r} is none of {', '.join(MIG_CARDS)}"
            )
        if not 1 <= self.processes <= MOST_PROCESSES:
            reason = f"{self.processes} is not from 1 to {MOST_PROCESSES}"
            raise InputError(f"{where}.mig.processes", reason)
        for name in (*self.profiles, *(name for cut in self.geometries for name in cut)):
            if name not in known:
                reason = f"{name!r} is none of {', '.join(known)}, which a {self.card} has"
                raise InputError(f"{where}.mig.profiles", reason)
        compute = [known[name].compute for name in self.profiles]
        if len(set(compute)) < len(compute):
            reason = f"{list(self.profiles)}: one profile of each compute size is allowed"
            raise InputError(f"{where}.mig.profiles", reason)
        for number, cut in enumerate(self.geometries):
            at = f"{where}.partitions[{number}]"
            unlisted = set(cut) - {profile.name for profile in self.kinds}
            if unlisted:
                raise InputError(at, f"{min(unlisted)} is not among the profiles of the class")
            if not cut or not fits_card(self.card, cut):
                raise InputError(at, f"{list(cut)} do not fit a {self.card} together")

    @property
    def kinds(self) -> tuple[MigProfile, ...]:
        """Kinds of slices in use."""
        known = MIG_CARDS[self.card]
        if self.profiles:
            return tuple(known[name] for name in self.profiles)
        least: dict[int, MigProfile] = {}
        for profile in known.values():
            least.setdefault(profile.compute, profile)
        return tuple(least.values())

    @property
    def shares(self) -> tuple[int, ...]:
        """Of every part of a slice that a vGPU may be."""
        return tuple(
            mig_share(MigCell(profile.compute, processes))
            for profile in self.kinds
            for processes in range(1, self.processes + 1)
        )

    def profile_of(self, share: int) -> MigProfile:
        """The slice that a vGPU of a share of this class lies in.

        Raises:
            InputError: there is none.
        """
        cell = mig_cell(share)
        for profile in self.kinds:
            if cell is not None and profile.compute == cell.compute:
                return profile
        raise InputError("vGPU share", f"{share_text(share)} is no part of a slice of {self.card}")

    def room_gib(self, share: int) -> float:
        """Memory of one vGPU: an equal part of its slice's."""
        cell = mig_cell(share)
        assert cell is not None
        return self.profile_of(share).memory_gib / cell.processes

    def slices_of(self, shares: Iterable[int]) -> tuple[str, ...]:
        """Names of the slices that vGPUs of these shares on one card lie in, share after share.

        Those of one share fill slices in their order: the first slice of `3g/2` has the first two.
        """
        found: list[str] = []
        for share, count in sorted(Counter(shares).items()):
            cell = mig_cell(share)
            slices = -(-count // (cell.processes if cell else 1))
            found += [self.profile_of(share).name] * slices
        return tuple(found)

    def lies(self, vgpus: Sequence[tuple[int, int, int]]) -> tuple[int, ...]:
        """The slice of its card's `slices_of` that holds each vGPU, by card, slot and share."""
        of_card: dict[int, list[tuple[int, int, int]]] = {}
        for number, (gpu, slot, share) in enumerate(vgpus):
            of_card.setdefault(gpu, []).append((share, slot, number))
        found = [0] * len(vgpus)
        for own in of_card.values():
            first = 0
            for share in sorted({share for share, _, _ in own}):
                cell = mig_cell(share)
                processes = cell.processes if cell else 1
                alike = sorted(item for item in own if item[0] == share)
                for at, (_, _, number) in enumerate(alike):
                    found[number] = first + at // processes
                first += -(-len(alike) // processes)
        return tuple(found)

    def refuses(self, shares: Iterable[int]) -> str | None:
        """Why one card cannot have vGPUs of these shares; None where it can."""
        slices = self.slices_of(shares)
        if self.geometries:
            if any(not Counter(slices) - Counter(cut) for cut in self.geometries):
                return None
            listed = [list(cut) for cut in self.geometries]
            return f"cut into {sorted(slices)}, its class allows {listed}"
        if fits_card(self.card, slices):
            return None
        return f"cut into {sorted(slices)}, which do not fit a {self.card} together"

    @property
    def cuts(self) -> tuple[tuple[int, ...], ...]:
        """Compute sizes of the slices of every allowed division to which none can be added."""
        compute = {profile.name: profile.compute for profile in self.kinds}
        every = self.geometries or tuple(_all_cuts(self.card, tuple(compute)))
        largest = [
            cut
            for cut in every
            if not any(Counter(cut) < Counter(other) for other in every if other is not cut)
        ]
        return tuple(sorted({tuple(sorted(compute[name] for name in cut)) for cut in largest}))


def _all_cuts(card: str, names: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for count in range(1, SEVENTHS + 1):
        for cut in combinations_with_replacement(names, count):
            if fits_card(card, cut):
                yield cut


def fits_card(card: str, slices: Sequence[str]) -> bool:
    """True if a card can have these slices at once, wherever they begin."""
    profiles = MIG_CARDS[card]
    return _placed(tuple(sorted((profiles[n].eighths, profiles[n].starts) for n in slices)), 0)


@cache
def _placed(slices: tuple[tuple[int, tuple[int, ...]], ...], taken: int) -> bool:
    """True if the slices still to place fit beside the eighths that are taken, a bit each."""
    if not slices:
        return True
    eighths, starts = slices[-1]
    spans = (((1 << eighths) - 1) << start for start in starts)
    return any(not span & taken and _placed(slices[:-1], taken | span) for span in spans)
