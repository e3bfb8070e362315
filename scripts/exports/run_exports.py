"""Exported models from their files to answers: split, checked, planned, answered as ONNX Runtime.

Each file of a folder, or of an archive that `export_torchvision.py` wrote, is split and checked,
planned for whole and shared GPUs of two kinds by the blocks' estimated times, the plan verified,
and the plan's stages and the blocks one by one are run on samples drawn from a seed, which they
must answer as ONNX Runtime answers them with the file. The archive's models are given weights.

    .venv/bin/python scripts/exports/run_exports.py FOLDER [--least 22] [--out FILE]
"""

import argparse
import dataclasses
import sys
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx

from flows.planning import PlanOptions, make_plan
from flows.planning.verify.numbers import verify_plan
from flows.preparation.splitting import SplitModel, extract_stages, split_model
from flows.preparation.splitting.running import open_session, relative_error, run_session
from scripts.benchmarks.figures import Figure, add_destinations, conclude
from scripts.exports.weightless import with_weights
from tests.flows.planning.small import cluster, workload
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.contract.profiles import ModelProfile, loaded
from triton_backend.contract.tensors import total_bytes_per_sample
from triton_backend.contract.workload import ModelDemand

MAX_ERROR = 1e-4
BLOCKS, MAX_BATCH, SAMPLES = 4, 2, 2
NAME = "m"

StageRanges = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One file's way; fields after `refused` are empty where it was refused.

    Attributes:
        file: its name.
        refused: the line it was refused with, or violations of its plan; empty where it passed.
        cuts: layer positions of the blocks; `legal_cuts` is how many there were to choose from.
        largest_share: of the model's estimated time, in its longest block.
        unproven: boundaries' tensors that two samples do not change.
        check: errors that the split was checked with.
        answers_vary: the model's answers depend on its inputs.
        stages: blocks of each stage, for every pipeline of the plan.
        error: largest relative difference of an answer.
    """

    file: str
    refused: str = ""
    cuts: tuple[int, ...] = ()
    legal_cuts: int = 0
    largest_share: float = 1.0
    unproven: tuple[str, ...] = ()
    check: Mapping[str, float] = dataclasses.field(default_factory=dict[str, float])
    answers_vary: bool = False
    stages: tuple[StageRanges, ...] = ()
    error: float = float("inf")

    @property
    def passed(self) -> bool:
        """Split into at least two blocks, planned, and answered alike."""
        return not self.refused and bool(self.cuts[1:-1]) and self.error <= MAX_ERROR

    def text(self) -> str:
        """The row in words."""
        if self.refused:
            return f"{self.file}: {self.refused}"
        stages = "; ".join(" ".join(f"{a}-{b}" for a, b in ranges) for ranges in self.stages)
        cuts = " ".join(map(str, self.cuts))
        vary = "" if self.answers_vary else ", answers do not vary"
        of = f"of {self.legal_cuts} legal, largest block {self.largest_share:.0%}"
        unproven = f", {len(self.unproven)} tensors unproven" if self.unproven else ""
        error = f"error {self.error:.1e}"
        return f"{self.file}: cuts {cuts} ({of}), stages {stages}, {error}{vary}{unproven}"


def files_of(exports: Path, folder: Path) -> Iterator[Path]:
    """Model files of a folder; those of an archive are written into `folder` one by one.

    Raises:
        InputError: there are none.
    """
    if exports.is_dir():
        found = sorted(exports.glob("*.onnx"))
        if not found:
            raise InputError(str(exports), "no .onnx file in this folder")
        yield from found
        return
    if not zipfile.is_zipfile(exports):
        raise InputError(str(exports), "neither a folder nor an archive of exports")
    with zipfile.ZipFile(exports) as archive:
        for name in archive.namelist():
            path = folder / Path(name).name
            onnx.save(with_weights(onnx.ModelProto.FromString(archive.read(name))), path)
            yield path
            path.unlink()


def planned(split: SplitModel) -> tuple[Plan, list[str]]:
    """A plan of one or two stages by the blocks' estimated times, and what verifying it found."""
    fast = np.outer(split.block_times_us, np.array([1.0, 1.5]))
    profile = ModelProfile(
        name=split.name,
        tables=loaded({("fast", 1): fast, ("fast", 2): 1.8 * fast, ("slow", 1): 2.0 * fast}),
        boundary_bytes=tuple(map(total_bytes_per_sample, split.boundaries)),
        inputs=split.inputs,
        outputs=split.outputs,
        boundaries=split.boundaries,
    )
    slo_us = round(4 * sum(split.block_times_us))
    asked = workload(ModelDemand(name=split.name, slo_us=slo_us, batch_building_rate_rps=1e9))
    plan = make_plan({split.name: profile}, cluster(), asked, PlanOptions(max_partitions=2))
    return plan, [str(found) for found in verify_plan(plan, {split.name: profile})]


def largest_error(path: Path, split: SplitModel, ways: tuple[StageRanges, ...]) -> float:
    """Largest relative difference of the stages' answers from those of the file."""
    feed = split.model_inputs().draw(SAMPLES, np.random.default_rng(1))
    session = open_session(path, "the file")
    singles = ({name: array[i : i + 1] for name, array in feed.items()} for i in range(SAMPLES))
    expected = [run_session(session, single) for single in singles]
    worst = 0.0
    for ranges in ways:
        known = dict(feed)
        for stage in extract_stages(split, list(ranges)):
            known |= run_session(open_session(stage, "stage"), known)
        for i, answers in enumerate(expected):
            for output, array in answers.items():
                worst = max(worst, relative_error(known[output][i : i + 1], array))
    return worst


def run_file(path: Path, out: Path) -> Row:
    """One file from split to answers, or the line that refuses it."""
    try:
        split = split_model(path, name=NAME, out=out, blocks=BLOCKS, max_batch=MAX_BATCH)
        plan, violations = planned(split)
    except InputError as refused:
        return Row(file=path.name, refused=str(refused))
    if violations:
        return Row(file=path.name, refused="; ".join(violations))
    pipelines = [pipeline for model in plan.models for pipeline in model.pipelines]
    ranges = {tuple(stage.blocks for stage in pipeline.stages) for pipeline in pipelines}
    if not ranges:
        return Row(file=path.name, refused="the plan serves nothing")
    by_block = tuple(pairwise(range(split.blocks + 1)))
    stages = tuple(sorted(ranges))
    return Row(
        file=path.name,
        cuts=tuple(split.cuts),
        legal_cuts=split.legal_cuts,
        largest_share=max(split.block_times_us) / sum(split.block_times_us),
        unproven=tuple(split.unproven),
        check=split.check,
        answers_vary=split.answers_vary,
        stages=stages,
        error=largest_error(path, split, (*stages, by_block)),
    )


def main() -> int:
    """Show a line for each file; exit code 1 where fewer than `--least` pass."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("exports", type=Path, metavar="FOLDER", help="or an archive")
    parser.add_argument("--least", type=int, default=22, help="files that must pass")
    add_destinations(parser)
    asked = parser.parse_args()
    rows: list[Row] = []
    try:
        with TemporaryDirectory() as folder:
            for path in files_of(asked.exports, Path(folder)):
                rows.append(run_file(path, Path(folder) / "models"))
                print(rows[-1].text(), flush=True)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    passed = sum(row.passed for row in rows)
    note = f"of {len(rows)}; not: {', '.join(row.file for row in rows if not row.passed) or 'none'}"
    figure = Figure(
        name="exports split, planned and answered as by ONNX Runtime",
        value=passed,
        least=asked.least,
        note=note,
    )
    details = {"rows": [dataclasses.asdict(row) for row in rows], "onnx": onnx.__version__}
    return conclude(asked, "exports", [figure], details)


if __name__ == "__main__":
    sys.exit(main())
