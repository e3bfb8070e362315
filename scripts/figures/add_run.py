"""Keep what a benchmark wrote with `--out` as a run that claims can rest on.

    .venv/bin/python -m scripts.figures.add_run FILE [FILE]

Copies each file to `scripts/figures/runs`, named by benchmark and time. Folders and files of this
machine in the command become `DIR` and `FILE`.
"""

import argparse
import json
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from scripts.figures.claims import RUNS

_NOT_KEPT = ("--out", "--output", "--warehouse")
_FOLDERS = ("--data", "--traces")


def general(command: str) -> str:
    """A command line without the paths of this machine."""
    words, kept = iter(shlex.split(command)), list[str]()
    for word in words:
        option, equals, _ = word.partition("=")
        if option in _NOT_KEPT + _FOLDERS:
            if not equals:
                next(words, None)
            if option in _FOLDERS:
                kept += [f"{option}=DIR"] if equals else [option, "DIR"]
        else:
            kept.append("FILE" if word.startswith("/") and not word.endswith(".py") else word)
    return re.sub(r"\S*/(?=scripts/)", "", shlex.join(kept))


def add_run(path: Path, folder: Path = RUNS) -> Path:
    """Copy one run; the new file."""
    record = json.loads(path.read_text(encoding="utf-8"))
    record["machine"]["command"] = general(record["machine"]["command"])
    benchmark = re.sub(r"[^a-z0-9]+", "-", record["benchmark"].lower()).strip("-")
    stamp = re.sub(r"[^0-9]", "", record["at"][:19])
    target = folder / f"{benchmark}-{stamp}.json"
    target.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return target


def main(arguments: Sequence[str]) -> int:
    """Keep every file that is given."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE")
    for path in parser.parse_args(arguments).files:
        print(add_run(path))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
