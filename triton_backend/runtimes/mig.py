"""MIG slices of this machine: which there are, and which of them stand for the slices of a plan.

A plan says how many slices of which kind a node has; the one that divides the cards (an
administrator, a MIG manager) decides which device each of them is. Slices of a kind are alike, and
so are the cards of a class: the first of the plan is the first that the driver lists, GPU after
GPU. In a container, those that it was given are listed.

Here: asking the driver, and the order. Not here: MPS inside a slice (`mps`), which vGPU lies in
which slice.
"""

import re
import subprocess
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from triton_backend.contract.errors import InputError

LIST = ("nvidia-smi", "-L")
ANSWER_LIMIT_S = 30.0
_GPU = re.compile(r"GPU\s+(\d+):.*\(UUID:\s*(GPU-[^)\s]+)\)")
_SLICE = re.compile(r"\s+MIG\s+(\S+)\s+Device\s+\d+:\s*\(UUID:\s*(MIG-[^)\s]+)\)")


class Slice(NamedTuple):
    """One MIG device: its profile (`3g.20gb`) and what CUDA calls it."""

    profile: str
    uuid: str


def list_slices(gpus: Sequence[str] | None = None) -> tuple[Slice, ...]:
    """MIG devices that this process sees, in the driver's order.

    Of these GPUs alone (uuids or numbers).

    Raises:
        InputError: the driver's program is not here, or fails.
    """
    try:
        done = subprocess.run(
            LIST, capture_output=True, text=True, timeout=ANSWER_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError("MIG slices", f"{' '.join(LIST)} cannot be run: {error}") from error
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        reason = f"{' '.join(LIST)} failed with {done.returncode}: {said[0] if said else '-'}"
        raise InputError("MIG slices", reason)
    return parse_slices(done.stdout, gpus)


def parse_slices(text: str, gpus: Sequence[str] | None = None) -> tuple[Slice, ...]:
    """The MIG devices in the output of `nvidia-smi -L`."""
    found: list[Slice] = []
    wanted = True
    for line in text.splitlines():
        gpu, part = _GPU.match(line), _SLICE.match(line)
        if gpu is not None:
            wanted = gpus is None or gpu[1] in gpus or gpu[2] in gpus
        elif part is not None and wanted:
            found.append(Slice(part[1], part[2]))
    return tuple(found)


def assign_slices(
    where: str, wanted: Mapping[int, Sequence[str]], there: Sequence[Slice]
) -> dict[int, tuple[str, ...]]:
    """CUDA's names of the slices wanted of each GPU (by profile, in order).

    Raises:
        InputError: there are not enough of a profile; says how to make them.
    """
    left = list(there)
    found: dict[int, tuple[str, ...]] = {}
    for gpu, profiles in sorted(wanted.items()):
        taken: list[str] = []
        for profile in profiles:
            device = next((s for s in left if s.profile == profile), None)
            if device is None:
                cards = "; ".join(divide(number, cut) for number, cut in sorted(wanted.items()))
                have = sum(s.profile == profile for s in there)
                need = sum(list(cut).count(profile) for cut in wanted.values())
                reason = f"the plan needs {need} of {profile}, {have} are there; divide by: {cards}"
                raise InputError(where, reason)
            left.remove(device)
            taken.append(device.uuid)
        found[gpu] = tuple(taken)
    return found


def divide(gpu: int, slices: Sequence[str]) -> str:
    """The command that divides a card, the largest slices first, so that all find a place."""
    cut = sorted(slices, key=lambda name: (-int(name.partition("g")[0]), name))
    return f"nvidia-smi mig -i {gpu} -cgi {','.join(cut)} -C"
