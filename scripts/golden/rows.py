"""Golden rows: answers of planning to the golden problems.

Stored rows, and what moved when they are planned again.

    .venv/bin/python -m scripts.golden.rows                      # print what moved; 1 on a loss
    .venv/bin/python -m scripts.golden.rows --only gpulets,mig   # families, or problems by name
    .venv/bin/python -m scripts.golden.rows --store              # make them the golden rows

`golden_rows.json` beside this file holds a row per problem: the plan's value, its bound, the gap
between them, wall and CPU seconds, or the refusal, with the commit, machine and versions they were
taken on. A refusal is an answer: a problem that had a plan must have one again.

A row is lost where its new value is worse than the stored one by more than both gaps state, where
its gap is wider than the stored one (or than what was asked for), or where a plan does not verify.
A run is lost, too, where the geometric mean of the values falls, or CPU seconds rise by more than
`MOST_CPU` in the geometric mean or `MOST_CPU_OF_FAMILY` in one family. Wall and CPU seconds of a
busy machine are pessimistic: compare two commits by `--store FILE` of the one before, in the same
hour.
"""

import argparse
import contextlib
import json
import math
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

from flows.clock import Stopwatch, now_utc
from flows.planning.verify.numbers import verify_plan
from scripts.benchmarks.figures import machine, versions
from scripts.golden.problems import FAMILIES, Problem, chosen, named, problems
from triton_backend.contract.errors import InfeasibleError, InputError

STORED = Path(__file__).with_name("golden_rows.json")
MOST_CPU, MOST_CPU_OF_FAMILY = 1.15, 1.5
LOADING_S = 2.0
LEAST_SECONDS = 0.05
"""CPU seconds below this count as this: the rest is start-up."""

ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The answer to one problem.

    Attributes:
        value: of the objective; None where there is no plan.
        bound: proven, above the value where the objective is maximised, else below it.
        gap: between them, a fraction of the value.
        seconds, cpu_seconds: from profiles in memory to the plan, placed and written.
        refused: why there is no plan.
        differences: what `verify` found; none in a good row.
        commit: at which the row was taken, if not at that of its file.
    """

    name: str
    family: str
    value: float | None = None
    bound: float | None = None
    gap: float | None = None
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    refused: str = ""
    differences: tuple[str, ...] = ()
    commit: str = ""

    @property
    def maximised(self) -> bool:
        """True if more is better."""
        return FAMILIES[self.family].objective == "throughput"


def measure(name: str) -> Row:
    """Plan one problem, after an unmeasured plan of its family has loaded the kernels."""
    problem = named(name)
    _load_kernels(problem.family)
    made = problem.make()
    watch, cpu = Stopwatch(), time.process_time()
    try:
        plan = made.plan()
    except InfeasibleError as error:
        return Row(
            name=name,
            family=problem.family,
            seconds=round(watch.seconds(), 3),
            cpu_seconds=round(time.process_time() - cpu, 3),
            refused=str(error),
        )
    seconds, spent = watch.seconds(), time.process_time() - cpu
    return Row(
        name=name,
        family=problem.family,
        value=plan.objective.value,
        bound=plan.objective.upper_bound,
        gap=plan.objective.gap,
        seconds=round(seconds, 3),
        cpu_seconds=round(spent, 3),
        differences=tuple(map(str, verify_plan(plan, made.profiles)[:3])),
    )


@cache
def _load_kernels(family: str) -> None:
    made = next(p for p in problems() if p.family == family).make()
    options = replace(made.options, time_limit_s=LOADING_S)
    with contextlib.suppress(InfeasibleError):
        replace(made, options=options).plan()


def measure_all(asked: Sequence[Problem], processes: int) -> list[Row]:
    """Plan all, families in order."""
    with ProcessPoolExecutor(processes) as pool:
        rows: list[Row] = []
        for row in pool.map(measure, [problem.name for problem in asked]):
            print(_line(row), file=sys.stderr, flush=True)
            rows.append(row)
    return rows


def losses(stored: Mapping[str, Row], rows: Sequence[Row]) -> list[str]:
    """Everything that got worse, a line each; none where the rows hold."""
    found = [loss for row in rows if row.name in stored for loss in _losses(stored[row.name], row)]
    pairs = [(stored[row.name], row) for row in rows if row.name in stored]
    ratios = [_better(old, new) for old, new in pairs if old.value and new.value]
    if ratios and (mean := _geometric(ratios)) < 1 - 1e-6:
        found.append(f"values: {mean:.6f} of the stored ones in the geometric mean")
    by_family: dict[str, list[float]] = {}
    for old, new in pairs:
        ratio = max(new.cpu_seconds, LEAST_SECONDS) / max(old.cpu_seconds, LEAST_SECONDS)
        by_family.setdefault(new.family, []).append(ratio)
    every = [ratio for ratios_of in by_family.values() for ratio in ratios_of]
    if every and (mean := _geometric(every)) > MOST_CPU:
        found.append(f"CPU seconds: {mean:.2f} times the stored ones in the geometric mean")
    for family, ratios_of in by_family.items():
        if (mean := _geometric(ratios_of)) > MOST_CPU_OF_FAMILY:
            found.append(f"CPU seconds of {family}: {mean:.2f} times the stored ones")
    return found


def _losses(old: Row, new: Row) -> list[str]:
    found = [f"{new.name}: does not verify: {text}" for text in new.differences]
    if old.value is None or new.value is None:
        if old.value is not None:
            found.append(f"{new.name}: {old.value:.6g} before, now refused: {new.refused}")
        return found
    allowed = (old.gap or 0.0) + (new.gap or 0.0) + ROUNDING
    if _better(old, new) < 1 - allowed:
        found.append(f"{new.name}: value {old.value:.6g} before, {new.value:.6g} now")
    asked = FAMILIES[new.family].gap
    if (new.gap or 0.0) > max(asked, old.gap or 0.0) + 1e-6:
        found.append(f"{new.name}: gap {old.gap:.4%} before, {new.gap:.4%} now")
    return found


def _better(old: Row, new: Row) -> float:
    """New value over old, above 1 where it is better."""
    assert old.value is not None
    assert new.value is not None
    return new.value / old.value if new.maximised else old.value / new.value


def _geometric(values: Sequence[float]) -> float:
    return math.exp(fmean(map(math.log, values)))


def _line(row: Row) -> str:
    if row.value is None:
        return f"{row.name:<28} refused in {row.cpu_seconds:.2f} s: {row.refused[:90]}"
    return (
        f"{row.name:<28} {row.value:>14.6g} gap {row.gap:.4%}"
        f" {row.cpu_seconds:7.2f} CPU s {row.seconds:7.2f} s {' '.join(row.differences)}"
    )


def read(path: Path) -> dict[str, Row]:
    """Stored rows by name."""
    stored = json.loads(path.read_text(encoding="utf-8"))
    rows: list[dict[str, Any]] = stored["rows"]
    for given in rows:
        given["differences"] = tuple(given.get("differences", ()))
    return {given["name"]: Row(**given) for given in rows}


def write(path: Path, rows: Sequence[Row]) -> None:
    """Store rows with commit, machine and versions, a row a line."""
    head: dict[str, Any] = {
        "at": now_utc().isoformat(timespec="seconds"),
        "commit": _commit(),
        "machine": machine(),
        "versions": versions(),
    }
    lines = ",\n".join(
        json.dumps({k: v for k, v in asdict(row).items() if v not in (None, "", ())})
        for row in rows
    )
    text = json.dumps(head, indent=1).removesuffix("\n}")
    path.write_text(f'{text},\n "rows": [\n{lines}\n ]\n}}\n', encoding="utf-8")


def kept_beside(path: Path, rows: Sequence[Row]) -> list[Row]:
    """Stored rows in their order with the new ones in place of theirs; those keep their commit."""
    if not path.is_file():
        return list(rows)
    taken = json.loads(path.read_text(encoding="utf-8"))["commit"]
    new = {row.name: row for row in rows}
    stored = read(path)
    kept = [new.get(n) or replace(row, commit=row.commit or taken) for n, row in stored.items()]
    return kept + [row for row in rows if row.name not in stored]


def _commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],  # noqa: S607 - of the checkout this file is in
        cwd=STORED.parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout.strip()


def main() -> int:
    """Plan, compare or store; 1 where a row is lost."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    add = parser.add_argument
    add("--only", default="", help="families or problems, with commas")
    add("--processes", type=int, default=2, help="plans made at once")
    add(
        "--store",
        nargs="?",
        type=Path,
        const=STORED,
        metavar="FILE",
        help="write the rows here; others of the file stay",
    )
    add("--against", type=Path, default=STORED, metavar="FILE", help="compare with these rows")
    asked = parser.parse_args()
    try:
        wanted = chosen(asked.only)
    except InputError as error:
        parser.error(str(error))
    rows = measure_all(wanted, asked.processes)
    if asked.store is not None:
        write(asked.store, kept_beside(asked.store, rows) if asked.only else rows)
        print(f"{len(rows)} rows stored in {asked.store}")
        return 0
    lost = losses(read(asked.against), rows)
    for text in lost:
        print(text)
    print(f"{len(rows)} problems planned, {len(lost)} losses")
    return int(bool(lost))


if __name__ == "__main__":
    sys.exit(main())
