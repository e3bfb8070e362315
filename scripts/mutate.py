"""Small random changes to the product, one at a time: do the tests notice?

    .venv/bin/python -m scripts.mutate [--count 40] [--skip 0] [--seed 0] [--only triton_backend/scheduler] [--part]

Draws places in contract, scheduler and the parts of the planner that prove or check, makes each change in a
copy of the tree and runs the tests of that part there: first those of the file, then the fast ones. What no
test notices survives and is printed. Survivors that change nothing are explained in `MUTANTS.md`. A long draw can
be tried in pieces: `--skip 60 --count 40` goes on where `--count 60` ended. `--part` leaves out the simulator and
the gateway, which take most of the time and notice little more.

A change is a comparison (< for <=, == for !=), a sign (+ for -, * for //), an off-by-one (a constant, and a
`min` for a `max`), or a negated condition. Tests run with kernels as plain Python, but for those of the
simulator. Each mutant has a limit of processor time, so that a busy machine decides nothing.
"""

import argparse
import ast
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path

import numpy as np

from flows.clock import Stopwatch

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("flows", "triton_backend", "warehouse", "model_repo_templates", "scripts", "tests")
PARTS = (
    "triton_backend/contract",
    "triton_backend/scheduler",
    "flows/planning/verify.py",
    "flows/planning/placement.py",
    "flows/planning/pool/bound.py",
    "flows/planning/pool/divide.py",
    "flows/planning/pool/search.py",
    "flows/planning/pool/spare_gpus.py",
)
PLAIN, COMPILED = {"NUMBA_DISABLE_JIT": "1"}, {"NUMBA_DISABLE_JIT": "0"}
CORE = (
    (PLAIN, ("tests/triton_backend/contract", "tests/triton_backend/scheduler")),
    (COMPILED, ("tests/triton_backend/simulator", "tests/triton_backend/serving/gateway")),
)
PLANNER = ((COMPILED, ("tests/flows/planning", "tests/flows/cli/plan")),)
CPU_SECONDS = 200
NOTICED_TARGET = 0.9

COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
}
OPERATORS: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "//"),
    ast.FloorDiv: ("//", "*"),
}
NAMES = {"min": "max", "max": "min"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One change: characters [start, end) of a file become `text`."""

    path: Path
    start: int
    end: int
    text: str

    def apply(self, source: str) -> str:
        """The file with the change."""
        return source[: self.start] + self.text + source[self.end :]

    def describe(self, source: str) -> str:
        """`path:line: the line as it becomes`."""
        number = source.count("\n", 0, self.start)
        return f"{self.path}:{number + 1}: {self.apply(source).splitlines()[number].strip()}"


@dataclass(frozen=True, slots=True)
class _Source:
    """A file by the lines and columns of its syntax tree, which count bytes of UTF-8."""

    path: Path
    text: str

    def at(self, line: int | None, column: int | None) -> int:
        """The character at a place of the tree."""
        assert line is not None
        assert column is not None
        starts, lines = _lines(self.text)
        return starts[line - 1] + len(lines[line - 1].encode()[:column].decode())

    def between(self, left: ast.expr, right: ast.expr, change: tuple[str, str]) -> Iterator[Mutant]:
        """Another operator between two operands."""
        begin = self.at(left.end_lineno, left.end_col_offset)
        gap = self.text[begin : self.at(right.lineno, right.col_offset)]
        found = re.search(rf"(?<![<>=!*/]){re.escape(change[0])}(?![=*/])", gap)
        if found is not None:
            start, end = begin + found.start(), begin + found.end()
            yield Mutant(path=self.path, start=start, end=end, text=change[1])

    def whole(self, node: ast.expr, text: str) -> Iterator[Mutant]:
        """Something else in an expression's place."""
        start = self.at(node.lineno, node.col_offset)
        end = self.at(node.end_lineno, node.end_col_offset)
        yield Mutant(path=self.path, start=start, end=end, text=text)

    def changes_of(self, node: ast.AST) -> Iterator[Mutant]:
        """Every change of one node."""
        match node:
            case ast.Compare():
                sides = [node.left, *node.comparators]
                for k, operator in enumerate(node.ops):
                    if type(operator) in COMPARISONS:
                        change = COMPARISONS[type(operator)]
                        yield from self.between(sides[k], sides[k + 1], change)
            case ast.BinOp() if type(node.op) in OPERATORS:
                yield from self.between(node.left, node.right, OPERATORS[type(node.op)])
            case ast.Constant(value=int(number)) if not isinstance(number, bool):
                yield from self.whole(node, str(number + 1))
            case ast.Name(id=name) if name in NAMES:
                yield from self.whole(node, NAMES[name])
            case ast.If() | ast.While() | ast.IfExp():
                condition = ast.get_source_segment(self.text, node.test)
                yield from self.whole(node.test, f"not ({condition})")
            case _:
                pass


@cache
def _lines(text: str) -> tuple[list[int], list[str]]:
    """Where every line begins, and the lines."""
    lines = text.splitlines(keepends=True)
    return [0, *accumulate(map(len, lines))], lines


def mutants_of(path: Path, text: str) -> Iterator[Mutant]:
    """Every change of a file, in order of place; annotations, texts and decorators stay."""
    source = _Source(path, text)
    for node in _code(ast.parse(text)):
        yield from source.changes_of(node)


def _code(tree: ast.AST) -> Iterator[ast.AST]:
    """Nodes that run when the product does, in order of place."""
    for name, value in ast.iter_fields(tree):
        if name in {"annotation", "returns", "decorator_list"}:
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not _only_said(child):
                yield child
                yield from _code(child)


def _only_said(node: ast.AST) -> bool:
    """Imports, texts, and what is raised: its words are not worth a test each."""
    return isinstance(node, ast.Import | ast.ImportFrom | ast.JoinedStr | ast.Raise)


def files_of(parts: Sequence[str]) -> list[Path]:
    """The Python files of parts, relative to the root.

    Raises:
        FileNotFoundError: a part is not there.
    """
    found: list[Path] = []
    for part in parts:
        path = ROOT / part
        if not path.exists():
            raise FileNotFoundError(part)
        found += sorted(path.rglob("*.py")) if path.is_dir() else [path]
    return [path.relative_to(ROOT) for path in found]


def draw(parts: Sequence[str], count: int, seed: int, skip: int = 0) -> list[Mutant]:
    """Mutants drawn at random without repetition, all places alike; the first `skip` are left out."""
    every = [m for path in files_of(parts) for m in mutants_of(path, (ROOT / path).read_text())]
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(len(every))[skip : skip + count]
    return [every[number] for number in chosen]


def own_tests(path: Path) -> list[str]:
    """The test files that a module's name leads to."""
    folder = ROOT / "tests" / path.parent
    return [str(t.relative_to(ROOT)) for t in sorted(folder.glob(f"test_{path.stem}*.py"))]


def noticed(
    copy: Path, mutant: Mutant, suites: Sequence[tuple[dict[str, str], Sequence[str]]]
) -> bool:
    """Whether a test fails on the change."""
    source = (ROOT / mutant.path).read_text()
    file = copy / mutant.path
    file.write_text(mutant.apply(source))
    try:
        own = own_tests(mutant.path)
        first = [(suites[0][0], own)] if own else []
        return any(not passes(copy, *suite) for suite in (*first, *suites))
    finally:
        shutil.copy2(ROOT / mutant.path, file)


def passes(copy: Path, environment: dict[str, str], tests: Sequence[str]) -> bool:
    """Whether tests pass in a copy of the tree, within the limit of processor time."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-m",
        "not slow",
        "-p",
        "no:cacheprovider",
    ]
    done = subprocess.run(
        [*command, *tests],
        cwd=copy,
        env={**os.environ, **environment, "PYTHONPATH": str(copy)},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS)),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    return done.returncode == 0


def explained(line: str) -> bool:
    """Whether `MUTANTS.md` says why a survivor changes nothing; it names file and changed line."""
    path, _, text = line.split(":", 2)
    rows = (ROOT / "scripts" / "MUTANTS.md").read_text().splitlines()
    return any(f"`{path}`" in row and f"`{text.strip()}`" in row for row in rows)


def main() -> int:
    """Draw, try, print; 1 where fewer are noticed than should be, or the tests fail by themselves."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=40, help="changes to try")
    parser.add_argument("--skip", type=int, default=0, help="of the draw, tried before")
    parser.add_argument("--part", action="store_true", help="only the tests of the part itself")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--only", nargs="+", default=PARTS, metavar="PATH", help="files or folders")
    asked = parser.parse_args()
    mutants = draw(asked.only, asked.count, asked.seed, asked.skip)
    core = CORE[:1] if asked.part else CORE
    survivors: list[str] = []
    with tempfile.TemporaryDirectory(prefix="poolpipe-mutants-") as scratch:
        copy = Path(scratch)
        for name in COPIED:
            shutil.copytree(ROOT / name, copy / name)
        shutil.copy2(ROOT / "pyproject.toml", copy)
        for environment, tests in (*core, *PLANNER):
            if not passes(copy, environment, tests):
                print(f"{' '.join(tests)}: fail without any change", file=sys.stderr)
                return 1
        for mutant in mutants:
            watch = Stopwatch()
            line = mutant.describe((ROOT / mutant.path).read_text())
            suites = core if mutant.path.parts[0] == "triton_backend" else PLANNER
            lives = not noticed(copy, mutant, suites)
            if lives:
                survivors.append(line)
            verdict = "SURVIVED" if lives else "noticed"
            print(f"{verdict:<9}{watch.seconds():5.0f} s  {line}", flush=True)
    left = [line for line in survivors if not explained(line)]
    print(f"{len(mutants) - len(survivors)} of {len(mutants)} noticed, seed {asked.seed}")
    print(*(f"unexplained: {line}" for line in left), sep="\n")
    return int(len(mutants) - len(left) < NOTICED_TARGET * len(mutants))


if __name__ == "__main__":
    sys.exit(main())
