"""Render the generated pages of `docs/reference/` and the Grafana dashboard, or check them."""

import argparse
import sys
from pathlib import Path

from scripts.reference.command_line import command_pages
from scripts.reference.dashboard import dashboard
from scripts.reference.forms import form_pages
from scripts.reference.registries import registry_pages
from scripts.reference.warehouse_tables import warehouse_page

FOLDER = Path(__file__).parents[2] / "docs" / "reference"
DASHBOARD = "../../flows/reporting/grafana/poolpipe.json"


def pages() -> dict[str, str]:
    """Text of every generated file by its path below `docs/reference/`."""
    pages = command_pages() | form_pages() | registry_pages() | warehouse_page()
    return pages | {DASHBOARD: dashboard()}


def outdated(folder: Path, wanted: dict[str, str]) -> list[str]:
    """Files of a folder that differ from what they should be."""
    return [
        name
        for name, text in wanted.items()
        if not (folder / name).is_file() or (folder / name).read_text() != text
    ]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if any differs")
    check = parser.parse_args().check
    wanted = pages()
    found = outdated(FOLDER, wanted)
    if check and found:
        sys.exit(f"not up to date (run `python -m scripts.reference.render`): {', '.join(found)}")
    for name in found:
        (FOLDER / name).parent.mkdir(parents=True, exist_ok=True)
        (FOLDER / name).write_text(wanted[name])


if __name__ == "__main__":
    main()
