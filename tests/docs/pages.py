"""The pages of the documentation: their files and the commands in them."""

import re
from pathlib import Path

from tests.repository.files import ROOT

DOCS = ROOT / "docs"
EXAMPLES = DOCS / "examples"
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def console_lines(page: str) -> list[str]:
    """Commands of a page's `console` blocks, in order, without their prompts."""
    text = (DOCS / page).read_text().replace("\\\n", " ")
    blocks = BLOCK.findall(text)
    lines = [line for block in blocks for line in block.splitlines()]
    return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]


def pages() -> list[Path]:
    """Every page, generated ones too."""
    return sorted(path for path in DOCS.rglob("*.md") if "changes" not in path.parts)
