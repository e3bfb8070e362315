"""Claims and the runs that they rest on: reading, checking, and what a claim says of its runs.

`claims.yaml` lists the claims, `runs/*.json` holds what benchmarks wrote with `--out`. A run gives
a claim a value where a figure of the same benchmark has the claim's `figure` as its name, or, in a
transcribed run, the claim's `id`.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from triton_backend.contract.errors import InputError

HERE = Path(__file__).parent
CLAIMS, RUNS = HERE / "claims.yaml", HERE / "runs"
WORDS = 25  # at most in a cell
BETTER = ("higher", "lower")
SOURCES = ("paper", "ours")


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One claim: a number with a direction, perhaps a target, and the command that measures it.

    Attributes:
        id: its name.
        area: the page that it stands on.
        what: what is measured, at most `WORDS` words.
        better: `higher` or `lower`.
        target: the bound that it should keep, or None where it is only reported.
        source: whose the target is, `paper` or `ours`.
        command: what follows `.venv/bin/python` in the repository root; `poolpipe` and
            `scripts/test` stand by themselves.
        reference: what to compare it with.
        benchmark, figure: the names in a run's file.
        factor: from the figure's unit to the claim's.
        timed: whether the machine's load can change it; a simulated or counted figure is not.
        since: runs before this time count no more: what is measured, or what it is compared with,
            changed then; empty where all count.
    """

    id: str
    area: str
    what: str
    unit: str
    better: str
    target: float | None
    source: str
    command: str
    benchmark: str
    reference: str = ""
    figure: str = ""
    factor: float = 1.0
    timed: bool = True
    since: str = ""

    def keeps(self, value: float) -> bool:
        """True if a value keeps the target; without one every value does."""
        if self.target is None:
            return True
        return value >= self.target if self.better == "higher" else value <= self.target


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One file of `runs/`; `quiet` is None where the machine's load was not noted."""

    name: str
    benchmark: str
    at: str
    commit: str
    quiet: bool | None
    transcribed: bool
    command: str
    load: float | None
    figures: Mapping[str, float]
    details: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The values of a claim's runs: of the quiet ones, or of all if none is quiet.

    Attributes:
        values: of the runs that count.
        newest: the newest of these runs.
        transcribed: no run that counts was kept as a file when it ran.
        busy: none was quiet, and other work ran beside some of them.
    """

    claim: Claim
    values: tuple[float, ...]
    newest: Run
    transcribed: bool
    busy: bool

    @property
    def middle(self) -> float:
        """The median."""
        return median(self.values)

    @property
    def worst(self) -> float:
        """The worst."""
        return (min if self.claim.better == "higher" else max)(self.values)

    @property
    def met(self) -> str:
        """`yes`, `no`, `median yes, worst no`, or a dash without a target."""
        if self.claim.target is None:
            return "–"
        if self.claim.keeps(self.worst):
            return "yes"
        return "median yes, worst no" if self.claim.keeps(self.middle) else "no"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """All claims and all runs."""

    claims: tuple[Claim, ...]
    runs: tuple[Run, ...]
    _values: dict[tuple[str, str], list[tuple[Run, float]]] = field(
        default_factory=dict[tuple[str, str], list[tuple[Run, float]]]
    )

    def __post_init__(self) -> None:
        for run in self.runs:
            benchmark = "" if run.transcribed else run.benchmark
            for name, value in run.figures.items():
                self._values.setdefault((benchmark, name), []).append((run, value))

    def claim(self, name: str) -> Claim:
        """The claim of a name.

        Raises:
            InputError: there is none.
        """
        for claim in self.claims:
            if claim.id == name:
                return claim
        raise InputError(str(CLAIMS), f"no claim {name!r}")

    def of(self, claim: Claim) -> list[tuple[Run, float]]:
        """Every run that gives the claim a value and that counts, the oldest first."""
        found = self._values.get(("", claim.id), [])
        if claim.figure:
            kept = self._values.get((claim.benchmark, claim.figure), [])
            found = found + [(run, claim.factor * value) for run, value in kept]
        found = [one for one in found if one[0].at >= claim.since]
        return sorted(found, key=lambda one: (one[0].at, one[0].name))

    def standing(self, claim: Claim) -> Standing:
        """The values of its runs.

        Raises:
            InputError: no run gives it a value.
        """
        every = self.of(claim)
        if not every:
            raise InputError(claim.id, "no run gives it a value")
        quiet = [one for one in every if one[0].quiet]
        chosen = (quiet or every) if claim.timed else every
        runs = [run for run, _ in chosen]
        return Standing(
            claim=claim,
            values=tuple(value for _, value in chosen),
            newest=runs[-1],
            transcribed=all(run.transcribed for run in runs),
            busy=claim.timed and not quiet and any(run.quiet is False for run in runs),
        )

    def value(self, name: str) -> float:
        """The median of a claim, for a picture."""
        return self.standing(self.claim(name)).middle

    def areas(self) -> dict[str, list[Claim]]:
        """The claims of every area, in the order of the file."""
        areas: dict[str, list[Claim]] = {}
        for claim in self.claims:
            areas.setdefault(claim.area, []).append(claim)
        return areas


def read(claims: Path = CLAIMS, runs: Path = RUNS) -> Figures:
    """Read and check both.

    Raises:
        InputError: a claim or a run is not in the form above.
    """
    listed = yaml.safe_load(claims.read_text(encoding="utf-8"))
    read_claims = tuple(_claim(one, claims) for one in listed)
    if twice := _twice(claim.id for claim in read_claims):
        raise InputError(str(claims), f"two claims {twice!r}")
    return Figures(claims=read_claims, runs=tuple(_run(p) for p in sorted(runs.glob("*.json"))))


def _claim(one: Mapping[str, Any], path: Path) -> Claim:
    where = f"{path}: {one.get('id', 'a claim without id')}"
    try:
        claim = Claim(**one)
    except TypeError as error:
        raise InputError(where, str(error)) from error
    if claim.better not in BETTER or claim.source not in SOURCES:
        raise InputError(where, f"better is one of {BETTER}, source one of {SOURCES}")
    for text in (claim.what, claim.reference):
        if len(text.split()) > WORDS:
            raise InputError(where, f"more than {WORDS} words: {text}")
    return claim


def _run(path: Path) -> Run:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        machine = record["machine"]
        load = machine.get("load_average_before") or machine.get("load_average") or [None]
        return Run(
            name=path.stem,
            benchmark=record["benchmark"],
            at=record["at"],
            commit=record["commit"],
            quiet=record["quiet"],
            transcribed=record.get("transcribed", False),
            command=machine["command"],
            load=load[0],
            figures={f["name"]: f["value"] for f in record["figures"] if f["value"] is not None},
            details=record,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(str(path), f"is no run of a benchmark: {error!r}") from error


def _twice(names: Iterable[str]) -> str | None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def number(value: float, digits: int = 4) -> str:
    """A value as it is printed: so many significant digits, thousands with commas."""
    if value == round(value):
        return f"{value:,.0f}"
    before_point = len(f"{abs(value):.0f}") if abs(value) >= 1 else 0
    if before_point >= digits:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def value_text(standing: Standing) -> str:
    """Median, worst and number of runs, with the unit: `40 ms, worst 54 (n = 2)`.

    A value that the machine's load cannot change stands alone where every run gives the same.
    """
    unit = f" {standing.claim.unit}" if standing.claim.unit else ""
    text = number(standing.middle) + unit
    if standing.worst != standing.middle:
        text += f", worst {number(standing.worst)}"
    if not standing.claim.timed and len(set(standing.values)) == 1:
        return text
    return f"{text} (n = {len(standing.values)})"


def target_text(claim: Claim) -> str:
    """`≤ 5.2 s (paper)`, or a dash."""
    if claim.target is None:
        return "–"
    sign = "≥" if claim.better == "higher" else "≤"
    unit = f" {claim.unit}" if claim.unit else ""
    whose = " (paper)" if claim.source == "paper" else ""
    return f"{sign} {number(claim.target)}{unit}{whose}"


def missed(standings: Sequence[Standing]) -> list[Standing]:
    """Those whose median or worst misses the target."""
    return [one for one in standings if one.met not in ("yes", "–")]
