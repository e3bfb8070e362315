"""Parts of a GPU class packed into the fewest GPUs, whatever their sizes.

Exact where that is small. Sets: kinds of parts k (equal share and memory), cuts p of one GPU (how
many parts of each kind; only those to which no part can be added). Variables: n_p, GPUs cut so,
whole.

    minimise    sum_p n_p
    demand_k    sum_p count_kp n_p >= parts wanted of kind k

A cut fits where its shares are a GPU at most, it has `max_vgpus_per_gpu` parts at most, lies in one
of the class's `partitions` (where those are listed), and its memory fits the GPU's. GPUs of a cut
may stay partly empty. With more than `MOST_CUTS` cuts the parts are packed one by one, the largest
first; then the bound is what shares, numbers and memory demand at least.

Here: how many GPUs are cut how. Not here: which GPUs those are (`placement`).
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flows.planning.solver.program import ProgramBuilder
from flows.planning.solver.solve import PROOF_NODES, Limits, solve_integer
from flows.planning.watch import Watch
from triton_backend.contract.cluster import GpuClass
from triton_backend.contract.errors import InputError
from triton_backend.contract.shares import PER_PERCENT, WHOLE_GPU, share_text

MOST_CUTS = 5_000
ROUNDING = 1e-6

Cut = tuple[int, ...]  # parts of each kind on one GPU


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A vGPU to be packed: its share in 300ths, and the memory of its process."""

    share: int
    memory_gib: float = 0.0


def pack(
    gpu_class: GpuClass, parts: Sequence[Part], watch: Watch | None = None
) -> tuple[list[list[int]], int]:
    """Pack parts into the fewest GPUs; one by one once the clock says that the time is over.

    Returns:
        the parts (by number) that each GPU holds, largest first; GPUs that any packing needs.

    Raises:
        InputError: a part does not fit even a GPU of its own.
    """
    kinds = sorted(set(parts), key=lambda part: (-part.share, -part.memory_gib))
    for kind in kinds:
        if not fits_gpu(gpu_class, [kind]):
            reason = (
                f"a vGPU of {share_text(kind.share)} with {kind.memory_gib:.3f} GiB fits no GPU"
            )
            raise InputError(f"class {gpu_class.name}", reason)
    wanted = [sum(part == kind for part in parts) for kind in kinds]
    greedy = _one_by_one(gpu_class, kinds, wanted)
    least, watch = _least(gpu_class, kinds, wanted), watch or Watch()
    if len(greedy) > least:
        cuts = cuts_of(gpu_class, kinds, wanted, watch)
        if cuts is not None:
            greedy, least = _by_program(cuts, wanted, greedy, least, watch)
    left = {kind: [i for i, part in enumerate(parts) if part == kind] for kind in kinds}
    packed = [
        [
            left[kind].pop(0)
            for kind, count in zip(kinds, cut, strict=True)
            for _ in range(min(count, len(left[kind])))
        ]
        for cut in greedy
    ]
    return packed, least


def fits_gpu(gpu_class: GpuClass, parts: Sequence[Part]) -> bool:
    """True if one GPU can hold all of these."""
    if len(parts) > gpu_class.most_vgpus or sum(part.share for part in parts) > WHOLE_GPU:
        return False
    room_gib = gpu_class.usable_gib
    held_gib = sum(part.memory_gib for part in parts)
    if room_gib is not None and held_gib > room_gib * (1 + ROUNDING):
        return False
    if not gpu_class.partitions:
        return True
    shares = Counter(part.share for part in parts)
    cuts = ([percent * PER_PERCENT for percent in cut] for cut in gpu_class.partitions)
    return any(shares <= Counter(cut) for cut in cuts)


def _one_by_one(gpu_class: GpuClass, kinds: Sequence[Part], wanted: Sequence[int]) -> list[Cut]:
    """First fit, the largest parts first."""
    gpus: list[list[int]] = []
    for number, count in enumerate(wanted):
        at = 0
        for _ in range(count):
            while at < len(gpus):
                if fits_gpu(gpu_class, [kinds[k] for k in (*gpus[at], number)]):
                    break
                at += 1
            if at == len(gpus):
                gpus.append([])
            gpus[at].append(number)
    return [tuple(held.count(k) for k in range(len(kinds))) for held in gpus]


def _least(gpu_class: GpuClass, kinds: Sequence[Part], wanted: Sequence[int]) -> int:
    """GPUs that shares, the number of parts, and memory need.

    Parts of more than half a GPU alone.
    """
    pairs = list(zip(kinds, wanted, strict=True))
    bounds = [
        -(-sum(kind.share * count for kind, count in pairs) // WHOLE_GPU),
        -(-sum(wanted) // gpu_class.most_vgpus),
        sum(count for kind, count in pairs if 2 * kind.share > WHOLE_GPU),
    ]
    if gpu_class.usable_gib is not None:
        held = sum(kind.memory_gib * count for kind, count in pairs) / gpu_class.usable_gib
        bounds.append(int(np.ceil(held * (1 - ROUNDING) - ROUNDING)))
    return max(bounds)


def cuts_of(
    gpu_class: GpuClass, kinds: Sequence[Part], wanted: Sequence[int], watch: Watch
) -> list[Cut] | None:
    """Every cut to which no part can be added; None beyond a number of them, or the time limit."""
    found: list[Cut] = []
    counts = [0] * len(kinds)
    looked_at = 0

    def extend(first: int, held: tuple[Part, ...], fitting: Sequence[int]) -> bool:
        nonlocal looked_at
        looked_at += 1
        if looked_at > MOST_CUTS or watch.over():
            return False
        # a kind that did not fit beside fewer parts fits beside none of more
        more = [
            k for k in fitting if counts[k] < wanted[k] and fits_gpu(gpu_class, (*held, kinds[k]))
        ]
        if not more:
            found.append(tuple(counts))
        for k in more[bisect_left(more, first) :]:
            counts[k] += 1
            inside = extend(k, (*held, kinds[k]), more)
            counts[k] -= 1
            if not inside:
                return False
        return True

    return found if extend(0, (), range(len(kinds))) else None


def _by_program(
    cuts: Sequence[Cut], wanted: Sequence[int], known: list[Cut], least: int, watch: Watch
) -> tuple[list[Cut], int]:
    """The integer program over cuts: the better of its packing and the one known, and its bound."""
    counts = np.asarray(cuts, dtype=np.float64)
    builder = ProgramBuilder()
    gpus = builder.variables("gpus", len(cuts), upper=len(known), cost=-1.0, whole=True)
    demand = builder.rows("demand", len(wanted), upper=-np.asarray(wanted, dtype=np.float64))
    builder.entries(demand, gpus[:, None], -counts)
    limits = Limits(relative_gap=0.0, nodes=PROOF_NODES, seconds=watch.left_s())
    answer = solve_integer(builder.build(), limits)
    bound = int(np.ceil(-answer.bound - ROUNDING)) if np.isfinite(answer.bound) else 0
    least = min(max(least, bound), len(known))
    if answer.values is None:
        return known, least
    used = np.rint(answer.values).astype(int)
    if used.sum() >= len(known):
        return known, least
    return [cuts[k] for k in range(len(cuts)) for _ in range(used[k])], least
