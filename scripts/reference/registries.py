"""Pages of what registers itself in the code: planners, policies, metrics, reasons of refusals."""

import inspect
import re
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from flows.planning import registry
from scripts.reference.markdown import page, table
from triton_backend.contract.decisions import DropReason
from triton_backend.scheduler.policies.registry import (
    EARLY_POLICIES,
    POLICIES,
    SIMULATOR_ONLY,
)
from triton_backend.serving.front.requests.refusals import dropped, full, over_quota
from triton_backend.serving.server.metrics import METRICS

PLANNERS = {
    "auto": "Every planner below that fits, with its own margin and others; the plan that serves "
    "most in the simulator counts.",
    "pool": "Pipelines of stages on pools of vGPUs; applications; entries. The default.",
    "subclusters": "Whole models share the GPUs of sub-clusters; batches stay open until one "
    "is free.",
    "gpulets": "Whole models take turns on unequal parts of GPUs.",
    "gpulets-open": "Like gpulets, and stages of pipelines may have parts of their own.",
    "piccolo": "Piccolo's heuristic for applications.",
    "graft": "Graft's merging, grouping and re-alignment of entries.",
    "no-partitioning": "Whole models on whole GPUs; the source of default batch-building rates.",
    "dart-r": "Replicated pairs of one GPU of each of two classes (DART).",
    "gpulets-greedy": "The greedy rule of the gpulets paper.",
    "sbp": "Squishy bin packing on whole GPUs.",
    "best-fit": "The smallest part that carries the rate, one model each (GSLICE).",
    "ideal-static": "gpulets-greedy on every fixed cut of every GPU; the best result counts.",
    "gslice": "Every entry by itself.",
    "gslice-plus": "Uniform entries together, otherwise like gslice.",
    "static": "Like gslice, for entries at a client's mean bandwidth.",
    "static-plus": "Like gslice-plus, for entries at a client's mean bandwidth.",
    "graft-optimal": "Every grouping of up to 12 entries.",
    "nexus-dag": "Latency split of Nexus for applications.",
    "scrooge": "Latency split of Scrooge for applications.",
    "inferline": "Latency split of InferLine for applications.",
    "clipper": "Latency split of Clipper for applications.",
    "nexus": "Squishy bin packing in duty cycles (Nexus).",
}
POLICY_TEXTS = {
    "reservation": "Reserves a whole path when a batch is formed (PPipe, Algorithm 1).",
    "reservation-ahead": "Like reservation; sheds a backlog under overload, and at low load sends "
    "a batch once its path is free. The default.",
    "throughput-cost": "The cheapest pipeline that fills takes the head of the queue (Piccolo).",
    "clockwork": "The queue whose largest batch must start soonest (Clockwork).",
    "deferred": "A batch is sent when no further request could join it in time (Symphony).",
    "eager": "A batch is sent as soon as its path is free.",
    "latest": "A batch is sent at its last moment.",
    "timeout": "A batch may be sent at once where its pools carry the measured rate so, else a "
    "quarter of the SLO after its first request.",
    "turns": "The least recently served model goes first, with its planned batch (gpulets).",
    "turns-window": "Like turns; drops heads that make batches small; a model alone may send "
    "larger batches.",
    "reactive": "Adaptive batching per pool without reservations (PPipe's ablation).",
    "nexus": "Duty cycles with a queue per GPU (Nexus).",
    "round-robin": "Every vGPU gathers full batches of what is dealt to it (Piccolo's `2d`).",
    "shepherd": "The largest batch first, with preemption (Shepherd).",
    "triton": "The dynamic batcher of Triton.",
}
COMPARED = ("clockwork", "eager", "latest")
"""Policies that can be served and that no planner of ours states."""
HTTP = {"UNAVAILABLE": 503, "CANCELLED": 400, "INVALID_ARG": 400, "INTERNAL": 500}
GRPC = {"INVALID_ARG": "INVALID_ARGUMENT"}


def registry_pages() -> dict[str, str]:
    """Text of every page by its path below `docs/reference/`."""
    return {
        "planners.md": _planners(),
        "policies.md": _policies(),
        "metrics.md": _metrics(),
        "refusals.md": _refusals(),
    }


def _planners() -> str:
    found = registry.planners()
    products = registry.product_planners()
    head = ("planner", "what it plans", "objectives", "plans for", "margin")

    def rows(names: Sequence[str]) -> list[tuple[str, ...]]:
        return [
            (
                f"`{name}`",
                PLANNERS[name],
                ", ".join(found[name].objectives),
                ", ".join(found[name].demands),
                f"{found[name].slo_margin:g}",
            )
            for name in names
        ]

    sections = [
        "### "
        + ", ".join(f"`{name}`" for name in names)
        + "\n\n"
        + "\n".join(_option(option) for option in options)
        for names, options in _by_options(found)
    ]
    return page(
        "Planners",
        "`poolpipe plan --planner NAME`. The margin is the share of every SLO that is kept free for"
        " waiting (`--slo-margin`).",
        table(head, rows([name for name in PLANNERS if name in products])),
        "## Comparison planners, from papers",
        "Rules of published systems, to compare plans with.",
        table(head, rows([name for name in PLANNERS if name not in products])),
        "## Options of planners",
        "Given to `plan` beside its own options.",
        *sections,
    )


def _by_options(found: Any) -> list[tuple[list[str], Any]]:
    """Planners that have the same options, together, the product's first."""
    groups: list[tuple[list[str], Any]] = []
    for name in PLANNERS:
        options = found[name].options
        if not options:
            continue
        for names, known in groups:
            if known == options:
                names.append(name)
                break
        else:
            groups.append(([name], options))
    return groups


def _option(option: registry.Option) -> str:
    spelled = f"--{option.name.replace('_', '-')}"
    if option.kind is bool:
        value = ""
        default = "on" if option.default else "off"
    else:
        value = " " + (
            "|".join(map(str, option.choices)) or {int: "N", float: "X"}.get(option.kind, "TEXT")
        )
        default = "empty" if option.default == "" else f"`{option.default}`"
    return f"* `{spelled}{value}` (default {default}): {option.help}"


def _policies() -> str:
    def rows(names: Sequence[str]) -> list[tuple[str, str]]:
        return [(f"`{name}`", POLICY_TEXTS[name]) for name in names]

    head = ("policy", "what it does")
    late = [name for name in POLICIES if name not in (*EARLY_POLICIES, *COMPARED)]
    return page(
        "Dispatch policies",
        "A plan names the policy of every model; `poolpipe simulate --policy NAME` tries another.",
        "## Early binding",
        "A batch has its whole path reserved when it is dispatched.",
        table(head, rows(EARLY_POLICIES)),
        "## Late binding",
        "A batch stays open until a vGPU is free for it.",
        table(head, rows(late)),
        "## For comparison",
        "Late binding by other rules. No planner states these policies; a plan that names one can "
        "be served.",
        table(head, rows(COMPARED)),
        "Policies of other systems, in the simulator only:",
        table(head, rows(SIMULATOR_ONLY)),
    )


def _metrics() -> str:
    rows = [
        (f"`{name}`", family.kind, ", ".join(f"`{label}`" for label in family.labels), family.about)
        for name, family in sorted(METRICS.items())
    ]
    return page(
        "Metrics",
        "Prometheus format, port 8002 by default, published once a second. If the standby has taken"
        " over, the scheduler's metrics carry the label `scheduler` too. Gauges of the one that "
        "does not"
        " dispatch are 0 or absent.",
        table(("metric", "kind", "labels", "meaning"), rows),
    )


def reason_texts() -> dict[DropReason, str]:
    """The comment beside every reason in the enumeration.

    Raises:
        ValueError: a reason has none.
    """
    source = inspect.getsource(DropReason)
    found = dict(re.findall(r"^    ([A-Z_]+) = \d+  # (.+)$", source, re.MULTILINE))
    missing = [reason.name for reason in DropReason if reason.name not in found]
    if missing:
        raise ValueError(f"no comment beside {', '.join(missing)}")
    return {reason: found[reason.name] for reason in DropReason}


def status_of(reason: DropReason) -> str | None:
    """Triton's status code of the answer; None where the client gets no answer by this reason."""
    if reason is DropReason.BEGUN_ANEW:
        return None
    if reason is DropReason.FAILED:
        return "INTERNAL"
    if reason is DropReason.QUEUE_FULL:
        return full("m", 1).status
    if reason is DropReason.QUOTA:
        return over_quota("m", "c").status
    request: Any = SimpleNamespace(arrival_us=0, deadline_us=1000, samples=1)
    body: Any = SimpleNamespace(reason=reason, best_finish_us=0, queue_position=0)
    return dropped("m", request, body).status


def _refusals() -> str:
    rows: list[tuple[str, ...]] = []
    for reason, about in reason_texts().items():
        status = status_of(reason)
        rows.append(
            (
                f"`{reason.text}`",
                "none" if status is None else str(HTTP[status]),
                "none" if status is None else f"`{GRPC.get(status, status)}`",
                about[0].upper() + about[1:] + ".",
            )
        )
    return page(
        "Refusals and status codes",
        "The reason stands in the metric `poolpipe_requests_dropped_total`, in request logs, event"
        " files and the warehouse. The answer's text has the numbers: deadline, best "
        "possible finish,"
        " queue position.",
        table(("reason", "HTTP", "gRPC", "meaning"), rows),
    )
