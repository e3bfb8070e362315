"""The pages of `docs/reference/figures`: one per area, and the index."""

from collections.abc import Mapping

from scripts.benchmarks.figures import QUIET_LOAD
from scripts.figures.claims import (
    Claim,
    Figures,
    Standing,
    missed,
    target_text,
    value_text,
)

AREAS: Mapping[str, tuple[str, str]] = {  # title, and what the page is about
    "planning": ("Planning", "How good plans are, and how long they take."),
    "scheduling": (
        "Scheduling",
        (
            "The highest load at which 99 % of requests are answered in time, simulated, and what a"
            " decision costs."
        ),
    ),
    "gateway": ("Gateway", "What the gateway adds to a request, and how many it takes."),
    "changes": ("Plan changes", "What clients notice when the plan changes under load."),
    "faults": ("Faults", "What clients notice when a process, a link or a host fails."),
    "overload": ("Overload", "What is served when more is offered than the GPUs can carry."),
    "models": ("Model files", "Models as exporters write them, from the file to its answers."),
    "applications": ("Applications", "DAGs of models that are served as one model."),
    "simulator": (
        "Simulator and reality",
        "Attainment measured behind a real Triton with emulated GPUs, beside the simulator's.",
    ),
    "symphony": (
        "Symphony",
        "Many models on one pool, batches that stay open (planner `subclusters`).",
    ),
    "gpulets": (
        "gpulets and MIG",
        "Unequal parts of GPUs that several models share (planner `gpulets`).",
    ),
    "piccolo": (
        "Piccolo",
        "Applications at least cost, the exact planner beside the heuristic `piccolo`.",
    ),
    "graft": ("Graft", "Clients that run the first blocks of a model themselves (entries)."),
}
HEAD = "| claim | value | target | met | command | run |\n| --- | --- | --- | --- | --- | --- |"
MADE = (
    "<!-- Rendered by `python -m scripts.figures.render`."
    " Change claims and runs, not this page. -->"
)
INTRODUCTION = f"""{MADE}

# Figures

Every figure that the documents state, from the runs that the repository keeps
(`scripts/figures/README.md`). All were taken on two cores of shared machines without a GPU (AMD
EPYC or Intel Xeon; each run names its own): **no figure on GPUs exists yet**. *Emulated* GPUs wait
as long as a profile says and answer with dummy outputs; *simulated* figures need no server at all.

* **value** is the median of the quiet runs, the worst of them, and their number n. *Quiet* means
  that the load average of the minute before was at most {QUIET_LOAD}.
* **†**: copied from the table of an earlier page, with the commit and date of its row. The run's
  file was not kept.
* **‡**: none of the runs was quiet; other work ran beside or just before some of them.
* **met**: whether the median and the worst keep the target. A target is the project's own, or the
  paper's.
* **command** runs from the repository root, after `.venv/bin/`. `DIR` is a folder with published
  tables, which are not part of this repository; the script's `--help` lists them.
"""


def page(area: str, figures: Figures, plots: Mapping[str, str]) -> str:
    """The page of an area; `plots` are file names with their alternative texts."""
    title, about = AREAS[area]
    standings = [figures.standing(claim) for claim in figures.areas()[area]]
    lines = [MADE, "", f"# {title}", "", about]
    if misses := len(missed(standings)):
        judged = sum(one.claim.target is not None for one in standings)
        lines[-1] += f" {misses} of {judged} claims with a target miss it."
    lines += ["[How to read this table](index.md).", ""]
    for name, text in plots.items():
        lines += [f"![{text}]({name})", ""]
    lines += [HEAD, *(row(one) for one in standings), ""]
    return "\n".join(lines)


def row(standing: Standing) -> str:
    """One row: six cells, each of at most 25 words."""
    claim = standing.claim
    value = value_text(standing) + (" †" if standing.transcribed else "")
    value += " ‡" if standing.busy else ""
    newest = standing.newest
    cells = (
        f'<a id="{claim.id}"></a>{claim.what}',
        value,
        target_text(claim) + (f"; {claim.reference}" if claim.reference else ""),
        f"**{standing.met}**" if standing.met not in ("yes", "–") else standing.met,
        f"`{command(claim)}`",
        f"`{newest.commit}` {newest.at[:10]}",
    )
    return f"| {' | '.join(cells)} |"


def command(claim: Claim) -> str:
    """The command line as one types it after `.venv/bin/`; scripts run by path need `python`."""
    first = claim.command.split()[0]
    by_itself = first in ("poolpipe", "scripts/test")
    return claim.command if by_itself else f"python {claim.command}"


def index(figures: Figures) -> str:
    """The index: how to read the pages, and every area with its misses."""
    lines = [
        INTRODUCTION,
        "| page | claims | with a target | missed |",
        "| --- | --- | --- | --- |",
    ]
    for area, claims in figures.areas().items():
        standings = [figures.standing(claim) for claim in claims]
        judged = sum(claim.target is not None for claim in claims)
        lines.append(
            f"| [{AREAS[area][0]}]({area}.md) | {len(claims)} | {judged} |"
            f" {len(missed(standings))} |"
        )
    lines += [
        "",
        "[The papers' experiments](papers.md) stand on a page of their own.",
        "",
        "## Targets that are missed",
        "",
        "| claim | value | target |",
        "| --- | --- | --- |",
    ]
    for area, claims in figures.areas().items():
        for one in missed([figures.standing(claim) for claim in claims]):
            link = f"[{AREAS[area][0]}: {one.claim.what}]({area}.md)"
            lines.append(f"| {link} | {value_text(one)} | {target_text(one.claim)} |")
    areas = "\n".join([*figures.areas(), "papers"])
    lines += ["", f"```{{toctree}}\n:hidden:\n\n{areas}\n```"]
    return "\n".join(lines) + "\n"
