"""Heads of a split model.

Blocks [0, p) for every cut p, for clients that run them and send what crosses.

    <folder>/cuts.json           one object per cut: what is sent there, times of head and tail
    <folder>/0-3.onnx (.data)    blocks [0, 3); the last file is the whole model, for a client that
                                 sends nothing
"""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from flows.files import write_text
from flows.preparation.splitting.checking import check_split
from flows.preparation.splitting.extracting import extract_stages
from flows.preparation.splitting.loading import DATA_SUFFIX
from flows.preparation.splitting.model import SplitModel
from flows.workspace import Workspace
from triton_backend.contract.errors import InputError
from triton_backend.contract.profiles import ModelProfile
from triton_backend.contract.tensors import total_bytes_per_sample
from warehouse.profiles import find_model, read_profile

CUTS_NAME = "cuts.json"


def export_heads(split: SplitModel, folder: Path, tails_us: Sequence[int] | None = None) -> float:
    """Write the heads of every cut and `cuts.json`.

    Each is checked, with its tail, against the model.

    Args:
        split: the model.
        folder: made where it is not there.
        tails_us: least time of blocks [p, M) for every p < M; None: not known.

    Returns:
        the largest relative error of head and tail against the whole model.

    Raises:
        InputError: a head with its tail is not the model, or the folder cannot be written.
    """
    last = split.blocks
    # Cuts that prove nothing are there because they were asked for (`--allow-unproven`).
    errors = [
        check_split(split, [cut], allow_unproven=True).max_relative_error for cut in range(1, last)
    ]
    heads = extract_stages(split, [(0, cut) for cut in range(1, last + 1)])
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Beside the cuts of an earlier export, heads of half of this one would pass for a whole.
        (folder / CUTS_NAME).unlink(missing_ok=True)
        for head in heads:
            for file in (head.with_name(head.name + DATA_SUFFIX), head):
                if file.exists():
                    shutil.copyfile(file, folder / file.name)
    except OSError as error:
        raise InputError(str(folder), f"cannot be written: {error.strerror}") from error
    crossing = [*map(split.stage_inputs, range(last)), split.outputs]
    names = [None, *(head.name for head in heads)]
    cuts = [
        {
            "model": split.name,
            "block": cut,
            "split": split.key,
            "file": names[cut],
            "tensors": [spec.to_dict() for spec in crossing[cut]],
            "bytes_per_sample": total_bytes_per_sample(crossing[cut]) if cut < last else 0,
            "head_us": None if cut else 0,
            "tail_us": 0 if cut == last else tails_us and tails_us[cut],
        }
        for cut in range(last + 1)
    ]
    write_text(folder / CUTS_NAME, json.dumps(cuts, indent=1) + "\n")
    return max(errors, default=0.0)


def stored_tails_us(work: Workspace, name: str) -> list[int] | None:
    """`least_tails_us` of a model in the warehouse; None where it was not measured.

    Raises:
        InputError: no such model.
    """
    with work.open(read_only=True) as store:
        find_model(store, name)
        try:
            profile, _ = read_profile(store, name)
        except InputError:
            return None
    return least_tails_us(profile)


def least_tails_us(profile: ModelProfile) -> list[int]:
    """Least time of blocks [p, M) for one sample, for every p < M, over all measurements."""
    return [
        min(
            int(table.stage_latency_us((cut, profile.blocks))[0])
            for table in profile.tables.values()
        )
        for cut in range(profile.blocks)
    ]
