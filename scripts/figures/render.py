"""Render the figure pages and their plots from claims and runs.

    .venv/bin/python -m scripts.figures.render [--check] [--out FOLDER]

`--check` writes nothing and names the pages and plots that differ from what is kept; exit code 1
then. A plot that another release of matplotlib drew is not compared. Plots are alike if all but the
names of their parts and the last digits of coordinates is equal: both depend on how a processor
rounds.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from scripts.figures import papers
from scripts.figures.claims import Figures, read
from scripts.figures.pages import AREAS, MADE, index, page
from scripts.figures.panels import panels_of, picture
from scripts.figures.plots import PLOTS, draw
from triton_backend.contract.errors import InputError

_DRAWN_BY = re.compile(r"Matplotlib v[0-9.]+")
_PART = re.compile(r"\b[mp][0-9a-f]{10}\b")  # a hash, of coordinates too
_NUMBER = re.compile(r"-?\d+\.\d+")
_POINTS = 0.01  # by which coordinates of the same plot differ at most
OUT = Path(__file__).parents[2] / "docs" / "reference" / "figures"


def rendered(figures: Figures) -> dict[str, str]:
    """Name and content of every file of the folder.

    Raises:
        InputError: a claim has no value, or an area no title.
    """
    if unknown := set(figures.areas()) - set(AREAS):
        raise InputError("claims.yaml", f"no area {min(unknown)!r}")
    files = {"index.md": index(figures)}
    for name, plot in PLOTS.items():
        files[f"{name}.svg"] = draw(plot, figures)
    for area in figures.areas():
        shown = {f"{name}.svg": plot.text for name, plot in PLOTS.items() if plot.area == area}
        files[f"{area}.md"] = page(area, figures, shown)
    return files | _of_papers(figures)


def _of_papers(figures: Figures) -> dict[str, str]:
    """The page of the papers' experiments and its pictures."""
    experiments = papers.read_experiments()
    plots = {
        one.id: picture(one.title, panels_of(figures, one.id))
        for one in experiments
        if one.options is not None
    }
    shown = {name: plot.text for name, plot in plots.items()}
    files = {f"{name}.svg": draw(plot, figures) for name, plot in plots.items()}
    return files | {"papers.md": papers.page(MADE, experiments, figures, shown)}


def main(arguments: Sequence[str]) -> int:
    """Write or compare; 1 where something differs, 2 on wrong input."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing, name what differs")
    parser.add_argument("--out", type=Path, default=OUT, metavar="FOLDER")
    asked = parser.parse_args(arguments)
    try:
        files = rendered(read())
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    kept = {path.name for path in asked.out.glob("*")} if asked.out.is_dir() else set[str]()
    differ = sorted(
        name for name in kept | files.keys() if not alike(_text(asked.out / name), files.get(name))
    )
    if asked.check:
        differ = [name for name in differ if _drawn_alike(asked.out / name, files.get(name))]
    if asked.check:
        for name in differ:
            print(f"{asked.out / name}: differs from claims and runs; render again")
        return int(bool(differ))
    asked.out.mkdir(parents=True, exist_ok=True)
    for name in differ:
        if name in files:
            (asked.out / name).write_text(files[name], encoding="utf-8")
        else:
            (asked.out / name).unlink()
    print(f"{len(differ)} of {len(files)} files changed in {asked.out}")
    return 0


def alike(old: str | None, new: str | None) -> bool:
    """True if two texts of a page or a plot say the same; none is the text of no file."""
    if old == new:
        return True
    if old is None or new is None or not (old.startswith("<?xml") and new.startswith("<?xml")):
        return False
    (form, numbers), (new_form, new_numbers) = _form(old), _form(new)
    pairs = zip(numbers, new_numbers, strict=False)
    return form == new_form and all(abs(one - other) < _POINTS for one, other in pairs)


def _form(plot: str) -> tuple[str, list[float]]:
    """A plot with its parts named in order and its fractions left out, and these."""
    names = {name: f"part{n}" for n, name in enumerate(dict.fromkeys(_PART.findall(plot)))}
    named = _PART.sub(lambda found: names[found[0]], plot)
    return _NUMBER.sub("#", named), [float(number) for number in _NUMBER.findall(named)]


def _drawn_alike(path: Path, new: str | None) -> bool:
    """True if one release of matplotlib drew both, or none did."""
    drawn = [_DRAWN_BY.findall(text or "") for text in (_text(path), new)]
    return drawn[0] == drawn[1] or not all(drawn)


def _text(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
