"""GPUs and memory that models beside the plan hold, taken out of a `cluster.yaml`.

A repository states GPUs, and no memory: a GPU that an instance of such a model names is taken
whole, unless `--taken` says how much memory of it. Here: which, and the document without them. Not
here: reading configurations (`flows.preparation.triton_repository`).
"""

import copy
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flows.preparation.profiling.devices import list_devices
from flows.preparation.triton_repository.repository import BESIDE, Found
from triton_backend.contract.errors import InputError

NOTHING = "none"
_TAKEN = re.compile(r"(?P<gpus>\d+(,\d+)*)(:(?P<gib>\d+(\.\d+)?))?")
# Backends that go on CPUs where a configuration leaves the place to them.
_ON_CPU = {"python", "ensemble"}


@dataclass(frozen=True, slots=True)
class Taken:
    """GPUs that a model holds, by number, and how much memory of each; None: they are its own."""

    gpus: tuple[int, ...]
    gib: float | None = None


def parse_taken(given: Mapping[str, str]) -> dict[str, Taken]:
    """Values of `--taken NAME=GPUS[:GIB]`, by model.

    Raises:
        InputError: one is none.
    """
    found: dict[str, Taken] = {}
    for name, text in given.items():
        match = _TAKEN.fullmatch(text)
        if text == NOTHING:
            found[name] = Taken(())
        elif match is None or (match["gib"] is not None and not float(match["gib"]) > 0):
            reason = "is not GPUS, GPUS:GIB or none, such as 0 or 0,1:16"
            raise InputError(f"--taken {name}={text}", reason)
        else:
            gib = None if match["gib"] is None else float(match["gib"])
            found[name] = Taken(tuple(map(int, match["gpus"].split(","))), gib)
    return found


def check_stated(stated: Iterable[str], beside: Iterable[str]) -> None:
    """Check that models of `--taken` are among those that are left beside, or may be.

    Raises:
        InputError: one is not.
    """
    names = list(beside)
    for name in stated:
        if name not in names:
            known = ", ".join(names) or "none"
            raise InputError(f"--taken, model {name!r}", f"is not left beside the plan: {known}")


def check_gpus(
    stated: Mapping[str, Taken],
    document: Mapping[str, Any] | None,
    names: Mapping[int, frozenset[str]],
    where: str,
) -> None:
    """Check that GPUs of `--taken` are there to be taken.

    One of this machine that a `cluster.yaml` leaves out is there, and taken already.

    Args:
        stated: values of `--taken`, by model.
        document: of the `cluster.yaml`; None where it is made of this machine's GPUs.
        names: CUDA's names of this machine's GPUs by number.
        where: the file, or the machine, in complaints.

    Raises:
        InputError: one is not, with those there are.
    """
    known = {str(number) for number in names}
    here = sorted(known, key=int)
    if document is not None:
        here = [device for _, device in _gpus_here(document)]
        if any(document["nodes"][number].get("devices") for number, _ in _gpus_here(document)):
            known |= set(here)
        else:
            here = [str(number) for number in range(len(here))]
            known = set(here)
    for model, taken in stated.items():
        for gpu in taken.gpus:
            if str(gpu) not in known:
                reason = (
                    f"GPU {gpu} is not in {where}; GPUs of this host: {', '.join(here) or 'none'}"
                )
                raise InputError(f"--taken {model}={gpu}", reason)


def taken_beside(
    found: Sequence[Found], stated: Mapping[str, Taken]
) -> tuple[dict[int, float | None], tuple[str, ...]]:
    """GPUs and memory that the models beside the plan hold.

    Returns:
        GiB by number of the GPU, None where it is taken whole; and the names of models that may use
        any GPU.
    """
    beside = {each.name: each for each in found if each.kind == BESIDE}
    total: dict[int, float | None] = {}
    unknown: list[str] = []
    for name, each in beside.items():
        taken = stated.get(name) or _by_configuration(each)
        if taken is None:
            unknown.append(name)
            continue
        for gpu in taken.gpus:
            before = total.get(gpu, 0.0)
            total[gpu] = None if taken.gib is None or before is None else before + taken.gib
    return total, tuple(unknown)


def _by_configuration(found: Found) -> Taken | None:
    """As its instance groups say; None where they leave GPUs to the backend."""
    message = found.message
    if message.HasField("ensemble_scheduling") or not found.readable:
        return Taken(())
    on_cpu = (message.backend or message.platform) in _ON_CPU
    gpus: list[int] = []
    for group in message.instance_group:
        kind = type(group)
        if group.kind == kind.KIND_CPU or (group.kind == kind.KIND_AUTO and on_cpu):
            continue
        if not group.gpus:
            return None
        gpus += group.gpus
    if not message.instance_group and not on_cpu:
        return None
    return Taken(tuple(sorted(set(gpus))))


def devices_by_number() -> dict[int, frozenset[str]]:
    """CUDA's names of this machine's GPUs, or of their slices, by number; none without GPUs."""
    try:
        devices = list_devices()
    except InputError:
        return {}
    return {
        each.index: frozenset([each.uuid, *(part.uuid for part in each.slices)]) for each in devices
    }


def without_taken(
    document: Mapping[str, Any],
    taken: Mapping[int, float | None],
    names: Mapping[int, frozenset[str]],
    where: str,
) -> dict[str, Any]:
    """A `cluster.yaml` without what is taken on the gateway's host.

    Args:
        document: of the file.
        taken: from `taken_beside`.
        names: CUDA's names of GPUs by number, as `devices` of a node lists them. Where no node of
            this host lists any, GPUs are counted through its nodes, in order.
        where: the file, in complaints.

    Raises:
        InputError: a GPU is not among those counted, a class states no memory of which some could
            be taken, or nothing is left.
    """
    after: dict[str, Any] = copy.deepcopy(dict(document))
    whole: list[tuple[int, str]] = []  # group, device
    memory: dict[str, float] = {}
    for gpu, gib in taken.items():
        found = _places(after, gpu, names.get(gpu, frozenset[str]()), where)
        if gib is None:
            whole += found
            continue
        for number, _ in found:
            name = after["nodes"][number]["gpu_class"]
            memory[name] = max(memory.get(name, 0.0), gib)
    for name, gib in memory.items():
        _take_memory(after, name, gib, where)
    _take_whole(after, whole, where)
    return after


def _gpus_here(document: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
    """Node group and CUDA's name of every GPU of this host."""
    for number, group in enumerate(document["nodes"]):
        if group.get("host") or group["count"] != 1:
            continue
        for device in group.get("devices") or map(str, range(group["gpus"])):
            yield number, device


def _places(
    document: Mapping[str, Any], gpu: int, names: frozenset[str], where: str
) -> list[tuple[int, str]]:
    """Node group and CUDA's name of a GPU, or of each of its slices; none where it is left out."""
    here = list(_gpus_here(document))
    if any(document["nodes"][number].get("devices") for number, _ in here):
        return [place for place in here if place[1] in names or place[1] == str(gpu)]
    if gpu >= len(here):
        reason = (
            f"a model beside the plan holds GPU {gpu}, nodes of this host have {len(here)} GPUs"
        )
        raise InputError(f"{where}, nodes", reason)
    return [here[gpu]]


def _take_memory(document: dict[str, Any], name: str, gib: float, where: str) -> None:
    gpu_class = document["gpu_classes"][name] or {}
    if gpu_class.get("memory_gib") is None:
        reason = f"is missing: {gib:g} GiB of a GPU are taken by models beside the plan"
        raise InputError(f"{where}, gpu_classes.{name}.memory_gib", reason)
    before = gpu_class.get("taken_gib") or 0.0
    document["gpu_classes"][name] = gpu_class | {"taken_gib": before + gib}


def _take_whole(document: dict[str, Any], whole: Sequence[tuple[int, str]], where: str) -> None:
    groups = list(enumerate(document["nodes"]))
    for number, group in groups:
        gone = {device for at, device in whole if at == number}
        if not gone:
            continue
        before = group.get("devices") or list(map(str, range(group["gpus"])))
        left = [device for device in before if device not in gone]
        group |= {"gpus": len(left), "devices": left}
    document["nodes"] = [group for _, group in groups if group["gpus"]]
    if not document["nodes"]:
        raise InputError(f"{where}, nodes", "models beside the plan hold every GPU")


def in_words(taken: Mapping[int, float | None]) -> str:
    """GPUs that are taken, in words: `GPU 0, 16 GiB of GPU 1`."""
    return ", ".join(
        f"GPU {gpu}" if gib is None else f"{_gib(gib)} GiB of GPU {gpu}"
        for gpu, gib in sorted(taken.items())
    )


def _gib(gib: float) -> str:
    return f"{math.ceil(gib * 100) / 100:g}"
