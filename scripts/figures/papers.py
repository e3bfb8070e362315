"""The page of the papers' experiments: `papers.yaml` with the values of claims and the pictures.

| field | meaning |
| --- | --- |
| `id` | `paper-figure`; of an experiment with curves the name of its command |
| `figure` | as the paper numbers it |
| `shows` | what the paper's figure shows |
| `here` | which system wins here, and why; `{claim}` becomes the median of that claim |
| `holds` | whether the paper's statement holds with our tables: `yes`, `partly`, `no`, `not run` |
| `options` | of the command after `--data DIR`; absent where the picture is elsewhere |
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from scripts.figures.claims import WORDS, Figures, number
from triton_backend.contract.errors import InputError

PAPERS = Path(__file__).parent / "papers.yaml"
HOLDS = ("yes", "partly", "no", "not run")
_CLAIM = re.compile(r"\{([^}]+)\}")
TITLE = "The papers' experiments"
_ABOUT = """Experiments of the papers that decide something, repeated with tables that are public.
Each with a picture is one command of at most five minutes: the sentence above the picture says what
the paper's figure shows, the curves are ours. The profiles of gpulets, Piccolo and Graft were never
published: stand-ins take their place ([gpulets](gpulets.md), [Piccolo](piccolo.md),
[Graft](graft.md)). *Holds* says whether the paper's statement holds with these tables. All is
planned or simulated, unless it says *served*."""
NAMES = {
    "ppipe": "PPipe",
    "symphony": "Symphony",
    "gpulets": "gpulets",
    "piccolo": "Piccolo",
    "graft": "Graft",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """One figure of a paper."""

    id: str
    figure: str
    shows: str
    here: str
    holds: str
    options: str | None = None

    @property
    def paper(self) -> str:
        """The paper's name."""
        return NAMES[self.id.split("-")[0]]

    @property
    def title(self) -> str:
        """Of its section."""
        return f"{self.paper} {self.figure}"

    @property
    def anchor(self) -> str:
        """Of its section, as MyST makes it of the title."""
        return re.sub(r"[^\w -]", "", self.title.lower()).replace(" ", "-")

    @property
    def command(self) -> str | None:
        """The command of its picture, as one types it after `.venv/bin/`."""
        if self.options is None:
            return None
        return f"python -m scripts.paper.curves.run {self.id} --data DIR {self.options}".rstrip()


def read_experiments(path: Path = PAPERS) -> tuple[Experiment, ...]:
    """All of them, in the order of the page.

    Raises:
        InputError: one is not in the form above.
    """
    found: list[Experiment] = []
    for one in yaml.safe_load(path.read_text(encoding="utf-8")):
        where = f"{path}: {one.get('id', 'an experiment without id')}"
        try:
            experiment = Experiment(**one)
        except TypeError as error:
            raise InputError(where, str(error)) from error
        if experiment.holds not in HOLDS:
            raise InputError(where, f"holds is one of {', '.join(HOLDS)}")
        if one["id"].split("-")[0] not in NAMES:
            raise InputError(where, f"begins with none of {', '.join(NAMES)}")
        if len(experiment.figure.split()) > WORDS:
            raise InputError(where, f"more than {WORDS} words: {experiment.figure}")
        found.append(experiment)
    return tuple(found)


def stated(text: str, figures: Figures) -> str:
    """A text with the medians of the claims that it names.

    Raises:
        InputError: there is no such claim.
    """

    def value(found: re.Match[str]) -> str:
        standing = figures.standing(figures.claim(found[1]))
        unit = standing.claim.unit
        return f"{number(standing.middle)} {unit}".strip()

    return _CLAIM.sub(value, text)


def page(
    made: str, experiments: Sequence[Experiment], figures: Figures, plots: Mapping[str, str]
) -> str:
    """The page; `plots` are alternative texts by experiment."""
    lines = [
        made,
        "",
        f"# {TITLE}",
        "",
        _ABOUT,
        "",
        "| figure | holds | shown |",
        "| --- | --- | --- |",
    ]
    for one in experiments:
        if one.command is not None:
            shown = f"[picture](#{one.anchor})"
        else:
            shown = "–" if one.holds == "not run" else "elsewhere"
        lines.append(f"| {one.title} | {one.holds} | {shown} |")
    paper = ""
    for one in experiments:
        if one.paper != paper:
            paper = one.paper
            lines += ["", f"## {paper}"]
        lines += ["", f"### {one.title}", "", f"**The paper**: {one.shows}", ""]
        if one.id in plots:
            lines += [f"![{plots[one.id]}]({one.id}.svg)", ""]
        lines.append(f"**Here** ({one.holds}): {stated(one.here, figures)}")
        if one.command is not None:
            lines += ["", f"`{one.command}`"]
    return "\n".join(lines) + "\n"
