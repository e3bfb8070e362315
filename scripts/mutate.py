"""Small random changes to the product, one at a time: do the tests notice?

    .venv/bin/python -m scripts.mutate [--count 40] [--skip 0] [--seed 0]
        [--only triton_backend/scheduler] [--jobs 2]

Draws places in contract, scheduler and the parts of the planner that prove or check, and tries each
change against the fast tests of its part that run the changed statement, the quickest first, until
one fails: those of the file's own name, and where none of these fails all others. What no test
notices survives and is printed. Survivors that change nothing are explained in `MUTANTS.md`.

1. *Unchanged*: the test files run once, watched, a process each: which test runs which lines, in
   how much time. One that fails by itself ends the command.
2. *Changed*: a process for each change. It is forked from one that has numpy, numba and pytest
   already, and is given the changed text when it imports the module; no file is touched. What takes
   five times the usual processor time, and ten seconds more, counts as noticed (it looks for ever),
   so a busy machine decides nothing.

Both are kept below `--state` as they come, and a command that was interrupted goes on there. A
change that was noticed is tried again when its file changes; one that survived, when any test of
the part does. Leave the tree alone meanwhile.

A change is a comparison (< for <=, == for !=), a sign (+ for -, * for //), an off-by-one (a
constant, and a `min` for a `max`), or a negated condition. Kernels run as plain Python, where the
planner needs none compiled.
"""

import argparse
import ast
import hashlib
import importlib.abc
import importlib.util
import json
import multiprocessing
import os
import re
import resource
import signal
import sys
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from importlib.machinery import ModuleSpec, SourceFileLoader
from itertools import accumulate
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any

import coverage
import hypothesis
import numpy as np
import pytest
from numba.core import config

from flows.clock import Stopwatch

ROOT = Path(__file__).resolve().parents[1]
PARTS = (
    "triton_backend/contract",
    "triton_backend/scheduler",
    "flows/planning/verify",
    "flows/planning/placement.py",
    "flows/planning/pool/bound.py",
    "flows/planning/pool/divide.py",
    "flows/planning/pool/search.py",
    "flows/planning/pool/spare_gpus.py",
)
NOTICED_TARGET = 0.95
TIMES_USUAL, SECONDS_MORE = 5, 10
MEMORY_BYTES = 8 << 30
TIMED_OUT = "processor time"
NOT_LOADED = "import"
PRELOADED = [
    "coverage",
    "highspy",
    "hypothesis",
    "numba",
    "pytest",
    "scipy.optimize",
    "scipy.sparse",
]


@dataclass(frozen=True, slots=True)
class Part:
    """Tests that answer for a part of the product, and whether they run kernels as plain Python."""

    tests: tuple[str, ...]
    plain: bool

    def files(self) -> list[str]:
        """Its test files, relative to the root."""
        found = (path for pattern in self.tests for path in ROOT.glob(pattern))
        return sorted(str(path.relative_to(ROOT)) for path in found)


CORE = Part(
    (
        "tests/triton_backend/contract/**/test_*.py",
        "tests/triton_backend/scheduler/**/test_*.py",
    ),
    plain=True,
)
PLANNER = Part(
    ("tests/flows/planning/test_*.py", "tests/flows/planning/pool/test_*.py"), plain=False
)
VERIFY = Part(("tests/flows/planning/verify/test_*.py", *PLANNER.tests), plain=False)

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

    def part(self) -> Part:
        """Whose tests are to notice."""
        if self.path.parts[0] == "triton_backend":
            return CORE
        return VERIFY if "verify" in self.path.parts else PLANNER

    def key(self, source: str) -> str:
        """The change and the file that it changes, as one name."""
        return _digest([source, f"{self.path} {self.start} {self.end} {self.text}"])

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
        start, end = self.place(node)
        yield Mutant(path=self.path, start=start, end=end, text=text)

    def place(self, node: ast.expr) -> tuple[int, int]:
        """Where an expression begins and ends."""
        begin = self.at(node.lineno, node.col_offset)
        return begin, self.at(node.end_lineno, node.end_col_offset)

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
                begin, end = self.place(node.test)
                yield from self.whole(node.test, f"not ({self.text[begin:end]})")
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
    """Mutants drawn at random without repetition, all places alike.

    The first `skip` are left out.
    """
    every = [m for path in files_of(parts) for m in mutants_of(path, (ROOT / path).read_text())]
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(len(every))[skip : skip + count]
    return [every[number] for number in chosen]


def own_tests(path: Path) -> list[str]:
    """The test files that a module's name leads to."""
    folder = ROOT / "tests" / path.parent
    return [str(t.relative_to(ROOT)) for t in sorted(folder.glob(f"test_{path.stem}*.py"))]


def statement_lines(text: str, position: int) -> set[int] | None:
    """The lines of the statement that a character belongs to, of a compound one its head.

    None outside of functions.
    """
    number = text.count("\n", 0, position) + 1
    found, inside = set[int](), False
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.stmt) or not node.lineno <= number <= (node.end_lineno or 0):
            continue
        if isinstance(node, ast.FunctionDef):
            inside |= number >= node.body[0].lineno
        body = getattr(node, "body", None)
        if not body:  # ends the walk down: it holds no other statement
            found = set(range(node.lineno, (node.end_lineno or 0) + 1))
        elif number < body[0].lineno:
            found = set(range(node.lineno, body[0].lineno))
    return found if inside else None


def _digest(texts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


@cache
def _product() -> str:
    """All that tests run or share."""
    folders = [ROOT / name for name in ("triton_backend", "flows", "tests")]
    files = sorted(path for folder in folders for path in folder.rglob("*.py"))
    return _digest(path.read_text() for path in files if not path.name.startswith("test_"))


# Stored results


@dataclass(frozen=True, slots=True)
class Seen:
    """A test of the unchanged tree: its processor time, and the lines that it runs of each file."""

    seconds: float
    lines: Mapping[str, Sequence[int]]


class State:
    """Results so far: two files of one JSON object a line; the last of a key counts."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._tests, self._tried = folder / "tests.jsonl", folder / "tried.jsonl"
        self._test_files = {line["key"]: line["tests"] for line in _lines_of(self._tests)}
        self._results = {line["key"]: line for line in _lines_of(self._tried)}

    def tests_of(self, file: str) -> dict[str, Seen] | None:
        """The tests of a file as it is; None where it has not run yet."""
        found = self._test_files.get(self._file_key(file))
        return None if found is None else {name: Seen(*seen) for name, seen in found.items()}

    def keep_tests(
        self, file: str, tests: Mapping[str, tuple[float, Mapping[str, list[int]]]]
    ) -> None:
        """Keep what running a file of tests showed."""
        key = self._file_key(file)
        self._test_files[key] = tests
        _append(self._tests, {"key": key, "file": file, "tests": tests})

    def noticed_by(self, mutant: Mutant, source: str) -> str | None:
        """The test that noticed a change; "" for none, None if it is to be tried."""
        found = self._results.get(mutant.key(source))
        if found is None or (not found["by"] and found["tests"] != self._tests_key(mutant)):
            return None
        return found["by"]

    def keep_result(self, mutant: Mutant, source: str, by: str) -> None:
        """Keep the tests that noticed a change."""
        line = {"key": mutant.key(source), "tests": self._tests_key(mutant), "by": by}
        self._results[line["key"]] = line
        _append(self._tried, {**line, "change": mutant.describe(source)})

    def _file_key(self, file: str) -> str:
        return _digest([_product(), file, (ROOT / file).read_text()])

    def _tests_key(self, mutant: Mutant) -> str:
        return _digest(map(self._file_key, mutant.part().files()))


def _lines_of(file: Path) -> list[dict[str, Any]]:
    """The whole lines of a file; one that was being written when its command ended is none."""
    found: list[dict[str, Any]] = []
    for line in file.read_text().splitlines() if file.exists() else []:
        with suppress(json.JSONDecodeError):
            found.append(json.loads(line))
    return found


def _append(file: Path, line: dict[str, Any]) -> None:
    with file.open("a") as kept:
        kept.write(f"\n{json.dumps(line)}\n")


# Tests in a process of their own


class _Changed(importlib.abc.MetaPathFinder):
    """Gives one module another text.

    Raises:
        ImportError: the module has been imported, so every change of it would survive.
    """

    def __init__(self, file: Path, text: str) -> None:
        self._file, self._text = file, text
        self._name = ".".join(file.relative_to(ROOT).with_suffix("").parts)
        if self._name in sys.modules:
            raise ImportError(f"{self._name} was imported before")

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if fullname != self._name:
            return None
        loader = _ChangedLoader(fullname, str(self._file))
        loader.text = self._text
        return importlib.util.spec_from_file_location(fullname, self._file, loader=loader)


class _ChangedLoader(SourceFileLoader):
    text = ""

    def get_data(self, path: str) -> bytes:
        del path
        return self.text.encode()

    def path_stats(self, path: str) -> Mapping[str, Any]:
        raise OSError(path)  # so nothing compiled is read or kept


class _Chosen:
    """Runs chosen tests, in their order, each within its processor time; notes failures."""

    def __init__(self, limits: Mapping[str, float]) -> None:
        self._limits = {name: (n, seconds) for n, (name, seconds) in enumerate(limits.items())}
        self.failed = ""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if item.nodeid in self._limits]
        items.sort(key=lambda item: self._limits[item.nodeid][0])

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        limit = time.process_time() + self._limits[item.nodeid][1] + 1
        resource.setrlimit(resource.RLIMIT_CPU, (round(limit), resource.RLIM_INFINITY))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed = report.nodeid

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failed = NOT_LOADED


class _Watched:
    """Notes the processor time of every test, and which lines it runs."""

    def __init__(self, watcher: coverage.Coverage) -> None:
        self._watcher = watcher
        self.seconds: dict[str, float] = {}
        self.failed: list[str] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._watcher.switch_context(item.nodeid)
        began = time.process_time()
        result = yield
        self.seconds[item.nodeid] = round(time.process_time() - began, 3)
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)


def _pytest(arguments: Sequence[str], *, plain: bool, plugin: object) -> None:
    """Run fast tests in this process, repeatably and in silence."""
    with Path(os.devnull).open("w") as nothing:
        os.dup2(nothing.fileno(), sys.stdout.fileno())
        os.dup2(nothing.fileno(), sys.stderr.fileno())
    os.chdir(ROOT)
    os.environ["NUMBA_DISABLE_JIT"] = str(int(plain))
    config.__dict__["DISABLE_JIT"] = int(plain)  # numba read it when it was imported
    phases = (
        hypothesis.Phase.explicit,
        hypothesis.Phase.generate,
    )  # a failing example need not be short
    hypothesis.settings.register_profile(
        "mutants", database=None, deadline=None, derandomize=True, phases=phases
    )
    hypothesis.settings.load_profile("mutants")
    options = ["-x", "-q", "-m", "not slow", "-p", "no:cacheprovider", "--timeout=0"]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # plugins are imported already
    done = pytest.main([*options, *arguments], plugins=[plugin])
    if done == pytest.ExitCode.USAGE_ERROR:
        raise ValueError(arguments)


def _try(
    changed: tuple[Path, str], limits: Mapping[str, float], part: Part, answer: Connection
) -> None:
    """Answer with the first test that notices; in a process of its own."""
    sys.meta_path.insert(0, _Changed(*changed))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    chosen = _Chosen(limits)
    files = dict.fromkeys(name.partition("::")[0] for name in limits)
    _pytest(list(files), plain=part.plain, plugin=chosen)
    answer.send(chosen.failed)


def _watch(file: str, part: Part, answer: Connection) -> None:
    """Answer with the tests of a file, as `State` keeps them, and with those that fail.

    In a process of its own.
    """
    watcher = coverage.Coverage(
        data_file=None, config_file=False, include=[str(ROOT / f) for f in files_of(PARTS)]
    )
    watched = _Watched(watcher)
    watcher.start()
    _pytest([file], plain=part.plain, plugin=watched)
    watcher.stop()
    data = watcher.get_data()
    lines: dict[str, dict[str, list[int]]] = {name: {} for name in watched.seconds}
    for path in data.measured_files():
        short = str(Path(path).relative_to(ROOT))
        for line, names in data.contexts_by_lineno(path).items():
            for name in filter(None, names):
                lines[name].setdefault(short, []).append(line)
    answer.send(({t: (s, lines[t]) for t, s in watched.seconds.items()}, watched.failed))


class Processes:
    """Runs functions in processes that are forked from one that has imported what they need."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(PRELOADED)

    def answer_of(self, function: Any, *arguments: object) -> Any:
        """The frames that a function sends to its last argument, a connection.

        None where its process ends before.
        """
        ours, theirs = self._context.Pipe(duplex=False)
        process = self._context.Process(target=function, args=(*arguments, theirs), daemon=True)
        with ours:
            with theirs:
                process.start()
            try:
                return ours.recv()
            except EOFError:
                process.join()
                if process.exitcode in (1, -signal.SIGTERM, -signal.SIGINT):  # no test's doing
                    raise RuntimeError(
                        f"{function.__name__} ended by itself: {arguments[0]}"
                    ) from None
                return None
            finally:
                process.join()


# The command


def unchanged(state: State, files: Sequence[str], part: Part, pool: ThreadPoolExecutor) -> bool:
    """Run the test files of a part that are not known yet; whether all pass."""
    processes = Processes()

    def run(file: str) -> bool:
        watch = Stopwatch()
        answer = processes.answer_of(_watch, file, part)
        tests, failed = answer or ({}, [file])
        if failed:
            print(f"{' '.join(failed)}: fails without any change", file=sys.stderr)
            return False
        state.keep_tests(file, tests)
        print(f"unchanged{watch.seconds():5.0f} s  {file}, {len(tests)} tests", flush=True)
        return True

    return all(list(pool.map(run, [file for file in files if state.tests_of(file) is None])))


def chosen_tests(state: State, mutant: Mutant, source: str, *, own: bool) -> dict[str, float]:
    """The tests that run what is changed, the quick before the slow, and for how long (s) each may.

    Those of the module's own name, or all others.
    """
    lines, path = statement_lines(source, mutant.start), str(mutant.path)
    found: list[tuple[float, str]] = []
    its = own_tests(mutant.path)
    for file in its if own else sorted({*mutant.part().files()}.difference(its)):
        for name, seen in (state.tests_of(file) or {}).items():
            ran = seen.lines.get(path, ())
            if ran if lines is None else lines.intersection(ran):
                found.append((seen.seconds, name))
    return {name: TIMES_USUAL * s + SECONDS_MORE for s, name in sorted(found)}


def noticed(state: State, processes: Processes, mutant: Mutant, *, own: bool) -> str:
    """The test that fails on the change, its own ones or of all others, "" for none.

    What was found before is not tried again.
    """
    source = (ROOT / mutant.path).read_text()
    by = state.noticed_by(mutant, source)
    if by is None:
        tests, by = chosen_tests(state, mutant, source, own=own), ""
        if tests:
            changed = ROOT / mutant.path, mutant.apply(source)
            by = processes.answer_of(_try, changed, tests, mutant.part())
            by = TIMED_OUT if by is None else by
        if by or not own:
            state.keep_result(mutant, source, by)
    return by


def survivors_of(
    state: State, part: Part, mutants: Sequence[Mutant], pool: ThreadPoolExecutor
) -> list[str] | None:
    """The changes that no test of their part notices; None if a test fails by itself."""
    processes = Processes()
    own = {file for mutant in mutants for file in own_tests(mutant.path)}
    for files in (sorted(own), part.files()):
        is_own = files != part.files()
        if mutants and not unchanged(state, files, part, pool):
            return None
        found = pool.map(partial(noticed, state, processes, own=is_own), mutants)
        alive: list[Mutant] = []
        for mutant, by in zip(mutants, found, strict=True):
            line = mutant.describe((ROOT / mutant.path).read_text())
            if by:
                print(f"noticed  {line}  {by}", flush=True)
            else:
                alive.append(mutant)
                print(f"{'alive' if is_own else 'SURVIVED':<9}{line}", flush=True)
        mutants = alive
    return [mutant.describe((ROOT / mutant.path).read_text()) for mutant in mutants]


def explained(line: str) -> bool:
    """True if `MUTANTS.md` says why a survivor changes nothing; it names file and changed line."""
    path, _, text = line.split(":", 2)
    rows = (ROOT / "scripts" / "MUTANTS.md").read_text().splitlines()
    return any(f"`{path}`" in row and f"`{text.strip()}`" in row for row in rows)


@contextmanager
def _pool(jobs: int) -> Generator[ThreadPoolExecutor]:
    """Threads that wait for processes; an interruption begins no further ones."""
    pool = ThreadPoolExecutor(jobs)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def main() -> int:
    """Draw, try, print.

    1 where fewer are noticed than should be, or the tests fail by themselves.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=40, help="changes to try")
    parser.add_argument("--skip", type=int, default=0, help="of the draw, tried before")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--only", nargs="+", default=PARTS, metavar="PATH", help="files or folders")
    parser.add_argument("--jobs", type=int, default=2, help="processes at once")
    parser.add_argument("--state", type=Path, default=ROOT / ".mutants", help="where it goes on")
    asked = parser.parse_args()
    mutants = draw(asked.only, asked.count, asked.seed, asked.skip)
    state = State(asked.state)
    alive: list[str] = []
    with _pool(asked.jobs) as pool:
        for part in (CORE, VERIFY, PLANNER):
            its = [mutant for mutant in mutants if mutant.part() is part]
            survivors = survivors_of(state, part, its, pool)
            if survivors is None:
                return 1
            alive += survivors
    left = [line for line in alive if not explained(line)]
    noticed_now, telling = len(mutants) - len(alive), len(mutants) - len(alive) + len(left)
    print(f"{noticed_now} of {telling} that change something noticed, seed {asked.seed}")
    print(f"{len(mutants) - telling} are explained")
    print(*(f"unexplained: {line}" for line in left), sep="\n")
    return int(noticed_now < NOTICED_TARGET * telling)


if __name__ == "__main__":
    sys.exit(main())
