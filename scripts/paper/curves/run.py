"""One experiment of a paper: one command, its figures beside what the paper's figure shows.

    .venv/bin/python -m scripts.paper.curves.run symphony-6b --data DIR [--seeds 3] [--seconds 3]
        [--draws 10] [--out FILE] [--warehouse FILE]

`--data` is the folder of the published tables (`symphony/`, `piccolo/`, `graft/`, `gpulets/`,
`ppipe/`). `docs/reference/figures/papers.md` lists all experiments with what came out of them; the
run's file holds its curves, too, which that page draws.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from scripts.benchmarks.figures import add_destinations, exit_code, show, store
from scripts.paper.curves import gpulets, graft, piccolo, ppipe, symphony
from scripts.paper.curves.panels import Asked, Found
from triton_backend.contract.errors import InputError

FIGURES: Mapping[str, Callable[[Asked], Found]] = {
    **ppipe.FIGURES,
    **symphony.FIGURES,
    **gpulets.FIGURES,
    **piccolo.FIGURES,
    **graft.FIGURES,
}

PROFILES = {"piccolo": "ppipe"}  # folder of a paper's profiles where it is not its own


def main(arguments: Sequence[str]) -> int:
    """Run one experiment; 1 where a target was missed, 2 on wrong input."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("figure", choices=FIGURES, metavar="FIGURE", help=", ".join(FIGURES))
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--seeds", type=int, default=3, help="of arrivals")
    parser.add_argument("--seconds", type=float, default=3.0, help="simulated, per point")
    parser.add_argument("--draws", type=int, default=10, help="workloads or fleets drawn")
    add_destinations(parser)
    asked = parser.parse_args(arguments)
    how = Asked(data=asked.data, seeds=asked.seeds, seconds=asked.seconds, draws=asked.draws)
    if min(how.seeds, how.draws) < 1 or not how.seconds > 0:
        parser.error("--seeds, --draws and --seconds must be positive")
    paper: str = asked.figure.split("-")[0]
    folder = how.data / PROFILES.get(paper, paper)
    if not folder.is_dir():
        parser.error(f"{folder}: no such folder; --data is the folder of published tables")
    try:
        found = FIGURES[asked.figure](how)
        show(found.figures)
        panels = {asked.figure: [panel.to_dict() for panel in found.panels]}
        store(asked, "papers", found.figures, panels)
    except InputError as error:
        parser.error(str(error))
    except FileNotFoundError as error:
        parser.error(f"{error.filename}: no such file; --data is the folder of published tables")
    return exit_code(found.figures)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
