"""The OCR example's text beside the package's own, on pages drawn from a seed.

Models and steps run in this process, without a server. Counted are pages whose text is the same,
spaces included, pages whose boxes are the same, and characters that are wrong, as the least number
of insertions, deletions and replacements. `--kept` names a file in which the counts of
each page are kept as they come, so that a run that was ended goes on where it was.

    .venv/bin/python scripts/benchmarks/applications/ocr_text.py [--pages 50] [--without-spaces]
"""

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from flows.quickstart.ocr import ReaderHere, Reading, lines_of_package, write_models
from flows.quickstart.pages import DrawnPage, draw_page
from scripts.benchmarks.figures import Figure, add_destinations, conclude

ALIKE = 0.96  # of pages
APART = 0.01  # of characters


def distance(one: str, other: str) -> int:
    """Least number of insertions, deletions and replacements of characters (Levenshtein)."""
    row = list(range(len(other) + 1))
    for at, left in enumerate(one, 1):
        before, row[0] = row[0], at
        for place, right in enumerate(other, 1):
            kept = before + (left != right)
            before = row[place]
            row[place] = min(before + 1, row[place - 1] + 1, kept)
    return row[-1]


def counts(page: DrawnPage, read: Reading) -> Counter[str]:
    """One page, compared."""
    theirs = lines_of_package(page.picture)
    said = [number for number, text in enumerate(read.texts) if text]
    boxes = np.array([box for box, _ in theirs], np.float32).reshape(-1, 4, 2)
    found = Counter(boxes=int(np.array_equal(boxes, read.boxes[said])))
    drawn, own = "\n".join(page.lines), "\n".join(text for _, text in theirs)
    found["alike"] = int(read.text == own)
    found["drawn"] = len(drawn)
    found["apart"] = distance(read.text, own)
    found["wrong here"] = distance(read.text, drawn)
    found["wrong by the package"] = distance(own, drawn)
    return found


def counted(asked: argparse.Namespace) -> Counter[str]:
    """All pages, compared."""
    kept: dict[str, dict[str, int]] = {}
    if asked.kept is not None and asked.kept.exists():
        kept = json.loads(asked.kept.read_text())
    total: Counter[str] = Counter()
    with TemporaryDirectory() as folder:
        here = ReaderHere(write_models(Path(folder)))
        for seed in range(asked.first, asked.first + asked.pages):
            if str(seed) not in kept:
                page = draw_page(seed, spaces=not asked.without_spaces)
                kept[str(seed)] = dict(counts(page, here.read(page.picture)))
                print(seed, kept[str(seed)], file=sys.stderr, flush=True)
                if asked.kept is not None:
                    asked.kept.write_text(json.dumps(kept))
            total.update(kept[str(seed)])
    return total


def main() -> int:
    """Read the pages, show and store the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pages", type=int, default=50)
    parser.add_argument("--first", type=int, default=0, help="seed of the first page")
    parser.add_argument("--without-spaces", action="store_true", help="between drawn words")
    parser.add_argument("--kept", type=Path, help="counts of pages; those in it are not read again")
    add_destinations(parser)
    asked = parser.parse_args()
    total, pages = counted(asked), asked.pages
    figures = [
        Figure(name="pages with the package's text", value=total["alike"], least=ALIKE * pages),
        Figure(name="pages with the package's boxes", value=total["boxes"], least=pages),
        Figure(
            name="characters unlike the package's",
            value=total["apart"] / total["drawn"],
            most=APART,
        ),
        Figure(
            name="characters wrong",
            value=total["wrong here"] / total["drawn"],
            most=total["wrong by the package"] / total["drawn"],
        ),
    ]
    return conclude(asked, "ocr-sized", figures, dict(total))


if __name__ == "__main__":
    sys.exit(main())
