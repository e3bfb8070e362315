"""Pages of the command line, from the commands as Typer knows them: a page per group."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import typer

from flows.cli.main import app
from scripts.reference.markdown import page, table

FOLDER = "command-line"
HELP = "--help"


def command_pages() -> dict[str, str]:
    """Text of every page by its path below `docs/reference/`."""
    groups: dict[str, list[tuple[str, Any]]] = {}
    for words, found, heading in commands():
        groups.setdefault(heading, []).append((words, found))
    pages = {
        f"{FOLDER}/{_slug(heading)}.md": page(heading, *(_command(*each) for each in members))
        for heading, members in groups.items()
    }
    links = [
        (f"[`poolpipe {words}`]({_slug(heading)}.md#{_anchor(words)})", _first_line(found.help))
        for heading, members in groups.items()
        for words, found in members
    ]
    toc = "\n".join(_slug(heading) for heading in groups)
    pages[f"{FOLDER}/index.md"] = page(
        "Command line",
        "Every command has `--help`. Exit codes: 0 success, 1 failure, 2 wrong usage or bad input,"
        " 130 and 143 interrupted. Errors are one line on stderr.",
        table(("command", "what it does"), links),
        f"```{{toctree}}\n:hidden:\n\n{toc}\n```",
    )
    return pages


def commands() -> Iterator[tuple[str, Any, str]]:
    """Words, command and heading of every command, in the order of `poolpipe --help`."""
    root: Any = typer.main.get_command(app)
    for name, found in sorted(root.commands.items(), key=lambda item: _order(root, item[1])):
        inner: Mapping[str, Any] | None = getattr(found, "commands", None)
        if inner is None:
            yield name, found, found.rich_help_panel
            continue
        for word, command in inner.items():
            yield f"{name} {word}", command, found.rich_help_panel


def _order(root: Any, found: Any) -> int:
    headings = list(dict.fromkeys(c.rich_help_panel for c in root.commands.values()))
    return headings.index(found.rich_help_panel)


def _command(words: str, found: Any) -> str:
    context = found.context_class(found, info_name=words)
    usage = found.get_usage(context).replace("Usage: ", "").replace("\n", " ")
    usage = " ".join(usage.split())
    items = [item for p in found.params if (item := _parameter(p, context)) is not None]
    example = (found.epilog or "").replace("\b", "").partition("Example:")[2]
    lines = [line.strip() for line in example.splitlines() if line.strip()]
    shown = "```console\n" + "\n".join(f"$ {line}" for line in lines) + "\n```" if lines else ""
    parts = (
        f"({_anchor(words)})=\n## `poolpipe {words}`",
        _paragraphs(found.help),
        f"```text\npoolpipe {usage}\n```",
        "\n".join(items),
        shown,
    )
    return "\n\n".join(part for part in parts if part)


def _parameter(parameter: Any, context: Any) -> str | None:
    record = parameter.get_help_record(context)
    if record is None or HELP in record[0]:
        return None
    spelled, about = record
    text, _, extra = about.partition("  [") if "  [" in about else (about, "", "")
    if about.startswith("["):
        text, extra = "", about[1:]
    details = _details(extra.removesuffix("]"))
    return f"* `{spelled}`{details}" + (f": {_escaped(text)}" if text else "")


def _details(extra: str) -> str:
    kept = [part for part in extra.split("; ") if part]
    return f" ({'; '.join(_code(part) for part in kept)})" if kept else ""


def _code(part: str) -> str:
    if ranged := re.fullmatch(r"(?:(.+)<=?)?x(?:<=?(.+)|>=?(.+))", part):
        low, high, least = ranged.groups()
        return f"at least {least}" if least else f"{low} to {high}" if low else f"at most {high}"
    key, colon, value = part.partition(": ")
    if colon:
        return f"{key} `{value}`" if value else f"{key} empty"
    return part if part == "required" else f"`{part}`"


def _escaped(text: str) -> str:
    """Text of a help page as Markdown: nothing in it is markup but code."""
    pieces = re.split(r"(`[^`]*`)", text)
    return "".join(
        piece if piece.startswith("`") else re.sub(r"([*_<>\[\]{}$|])", r"\\\1", piece)
        for piece in pieces
    )


def _paragraphs(text: str | None) -> str:
    paragraphs = (text or "").strip().split("\n\n")
    return "\n\n".join(_escaped(" ".join(each.split())) for each in paragraphs)


def _first_line(text: str | None) -> str:
    return _escaped(" ".join((text or "").strip().split("\n\n")[0].split()))


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _anchor(words: str) -> str:
    return "poolpipe-" + _slug(words)
