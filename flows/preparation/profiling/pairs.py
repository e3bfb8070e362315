"""Whole models measured two by two, each on a part of one device.

How much slower beside the other than alone. Every side is measured alone and beside the other in
turn, so that a machine that changes its speed does not pass for a neighbour. What is kept is that
ratio times the profile's latency alone (the sum of its blocks), because that is what a fit divides
by; without a profile of the very cell, the latency as measured.

Here: which pairs, and measuring them. Not here: the fit (`preparation.interference`).
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations_with_replacement, groupby, product
from pathlib import Path
from typing import NamedTuple

from flows.clock import now_utc
from flows.device_class import DeviceClass
from flows.preparation.building.onnxruntime import build_stages
from flows.preparation.building.tensorrt.engines import EngineOptions, engine_step, stage_name
from flows.preparation.profiling.copies import Copies
from flows.preparation.profiling.gpu import ProfiledGpu
from flows.preparation.profiling.measure import MeasureLimits
from flows.preparation.profiling.statistics import summarise
from flows.preparation.splitting.model import SplitModel
from flows.workspace import Workspace
from triton_backend.contract.cluster import GpuClass
from triton_backend.contract.errors import InputError
from triton_backend.contract.profiles import ModelProfile, Pair
from triton_backend.contract.shares import PER_PERCENT, SOLO, WHOLE_GPU
from warehouse.profiles import add_pairs, read_pairs, read_profiles

Progress = Callable[[int, int, "PairKey"], None]
"""Called before each pair with pairs done, pairs in all, and the pair that comes."""


class Side(NamedTuple):
    """A whole model in batches of one size on a part of a device, in 300ths."""

    model: str
    batch: int
    share: int


class PairKey(NamedTuple):
    """Two sides of one device."""

    gpu_class: str
    one: Side
    other: Side


def cuts_in_two(gpu_class: GpuClass) -> list[tuple[int, int]]:
    """Shares of two parts of one GPU, neither of which can grow, the smaller one first."""
    listed = [
        (one * PER_PERCENT, other * PER_PERCENT)
        for cut in gpu_class.partitions
        for one, other in combinations_with_replacement(sorted(cut), 2)
        if one != other or cut.count(one) > 1
    ]
    if gpu_class.partitions:
        return sorted(set(listed))
    shares = sorted(gpu_class.shares)
    fits = [pair for pair in combinations_with_replacement(shares, 2) if sum(pair) <= WHOLE_GPU]
    return [
        (a, b) for a, b in fits if not any(a <= x and b <= y and (a, b) != (x, y) for x, y in fits)
    ]


def pairs_of(
    gpu_class: GpuClass, models: Sequence[str], batches: Mapping[str, Iterable[int]]
) -> list[PairKey]:
    """Every two models (one beside itself, too), in every cut in two and in the batches of each.

    Raises:
        InputError: GPUs of the class are not cut into percents, or hold one vGPU only.
    """
    where = f"class {gpu_class.name!r}"
    if not gpu_class.vgpu_percents:
        raise InputError(where, "has no vgpu_percents; pairs are measured on unequal parts")
    cuts = cuts_in_two(gpu_class) if gpu_class.most_vgpus > 1 else []
    if not cuts:
        raise InputError(where, "a GPU of it holds one vGPU only, there are no pairs")
    found: dict[PairKey, None] = {}
    for one, other in combinations_with_replacement(models, 2):
        for (small, large), b1, b2 in product(cuts, batches[one], batches[other]):
            for first, second in ((small, large), (large, small)):
                sides = sorted((Side(one, b1, first), Side(other, b2, second)))
                found[PairKey(gpu_class.name, *sides)] = None
    return sorted(found, key=lambda key: (key.one[::2], key.other[::2], key))


@dataclass(frozen=True, slots=True, kw_only=True)
class PairDevice:
    """The runner of whole models on two parts of one device.

    Attributes:
        whole: the artifact's folder of a whole model.
        environment: of a process, by its share (300ths) of the device.
    """

    whole: Callable[[SplitModel], Path]
    environment: Callable[[int], Mapping[str, str]]


def on_cores(work: Workspace, device: DeviceClass) -> PairDevice:
    """A class of cores, which its runtime divides by itself.

    Raises:
        InputError: onnxruntime runs the class on a GPU, which it cannot divide.
    """
    if device.on_gpu:
        reason = "pairs on a GPU are measured with --runtime tensorrt"
        raise InputError(f"class {device.name!r}", reason)

    def whole(split: SplitModel) -> Path:
        built = build_stages(work, split, [(0, split.blocks)], device)
        return built[0, split.blocks].folder

    return PairDevice(whole=whole, environment=lambda _: {})


def on_gpu(work: Workspace, gpu_class: str, gpu: ProfiledGpu, options: EngineOptions) -> PairDevice:
    """A GPU that is divided by CUDA MPS, whose daemon runs already."""

    def whole(split: SplitModel) -> Path:
        report = engine_step(work, split, [gpu_class], options)
        wanted = stage_name(split, (0, split.blocks))
        for found in report.results:
            if found.request.stage == wanted:
                return found.folder
        reasons = (str(one) for one in report.failures if one.request.stage == wanted)
        raise InputError(f"class {gpu_class!r}", next(reasons, f"no engine of {wanted}"))

    return PairDevice(
        whole=whole, environment=lambda share: gpu.daemon.environment(gpu.name, share)
    )


def measure_pairs(
    work: Workspace,
    splits: Sequence[SplitModel],
    gpu_class: GpuClass,
    device: PairDevice,
    *,
    batches: Sequence[int] | None = None,
    limits: MeasureLimits | None = None,
    progress: Progress | None = None,
) -> int:
    """Measure every pair that the warehouse has not; each is stored at once. Returns how many.

    Args:
        work: where artifacts and the warehouse are.
        splits: the models.
        gpu_class: how a device may be cut.
        device: what runs the class here.
        batches: sizes to measure; None: one sample and the split's most.
        limits: when a side is measured well enough.
        progress: called for every pair.

    Raises:
        InputError: the class has no pairs, a model cannot be run here, or a batch is beyond a
            split's.
    """
    sizes = {split.name: sorted(set(batches or (1, split.max_batch))) for split in splits}
    for split in splits:
        if sizes[split.name][-1] > split.max_batch:
            reason = f"{sizes[split.name][-1]} exceeds the {split.max_batch} of {split.name!r}"
            raise InputError("batches", reason)
    keys = pairs_of(gpu_class, [split.name for split in splits], sizes)
    with work.open() as warehouse:
        known = _known(read_pairs(warehouse), gpu_class.name)
        profiles, _ = read_profiles(warehouse, [split.name for split in splits])
    folders = {split.name: device.whole(split) for split in splits}
    missing = [key for key in keys if key not in known]
    asked = asdict(limits or MeasureLimits())
    done = len(keys) - len(missing)
    with Copies(device.environment) as copies:
        for _, group in groupby(missing, key=lambda key: (key.one[::2], key.other[::2])):
            for number, key in enumerate(group):
                if progress is not None:
                    progress(done, len(keys), key)
                if number == 0:
                    copies.load_each((folders[s.model], s.share) for s in (key.one, key.other))
                ratios = tuple(_slowdowns(copies, key, asked))
                latencies = [
                    ratio * (_alone(profiles, key.gpu_class, side) or alone_us)
                    for side, (ratio, alone_us) in zip((key.one, key.other), ratios, strict=True)
                ]
                with work.open() as warehouse:
                    add_pairs(warehouse, [_pair(key, latencies)], now_utc())
                done += 1
    return len(missing)


def _slowdowns(
    copies: Copies, key: PairKey, limits: Mapping[str, float]
) -> Iterator[tuple[float, float]]:
    """Of each side: latency beside the other over latency alone, and alone (µs)."""
    for number, (own, other) in enumerate(((key.one, key.other), (key.other, key.one))):
        alone = summarise(copies.measure(own.batch, limits, number, {}))
        beside = summarise(copies.measure(own.batch, limits, number, {1 - number: other.batch}))
        yield beside.mean_us / alone.mean_us, alone.mean_us


def _alone(profiles: Mapping[str, ModelProfile], gpu_class: str, side: Side) -> float | None:
    profile = profiles.get(side.model)
    table = None if profile is None else profile.table(gpu_class, side.share, SOLO)
    if table is None or side.batch not in table.batches:
        return None
    return float(table.latency_us[:, side.batch - 1].sum())


def _known(pairs: Iterable[Pair], gpu_class: str) -> Collection[PairKey]:
    return {
        PairKey(gpu_class, *sorted((Side(*pair[1:4]), Side(*pair[4:7]))))
        for pair in pairs
        if pair.gpu_class == gpu_class and None not in pair[7:]
    }


def _pair(key: PairKey, latencies: Sequence[float]) -> Pair:
    return Pair(key.gpu_class, *key.one, *key.other, *latencies)
