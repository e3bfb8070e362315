"""The Grafana dashboard: rows of panels over the published metrics, as the JSON that it imports.

A panel without a description of its own has those of its metrics. Not here: alerts, which are rules
of Prometheus.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from triton_backend.serving.server.metrics import METRICS

COLUMNS = 24
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_NAME = re.compile(r"poolpipe_\w+")
_PART = re.compile(r"_(bucket|sum|count)$")
# Range of a rate, and the models chosen.
_R, _M = "[$__rate_interval]", '{model=~"$model"}'
_STAGE = "model, pipeline, gpu_class, stage, pool"
_STAGE_NAME = "{{model}} pipeline {{pipeline}} stage {{stage}} on {{gpu_class}}"
_FROM_RULES = "Recorded by the alert rules"


class Panel(NamedTuple):
    """One panel.

    Attributes:
        width: in columns.
        queries: PromQL by the legend of its series.
        unit: as Grafana names it.
        more: fields beside those that every panel has, by their path (`/` between names).
    """

    width: int
    title: str
    queries: Mapping[str, str]
    unit: str = "short"
    kind: str = "timeseries"
    about: str = ""
    more: Mapping[str, Any] = {}


def _rate(metric: str, by: str = "model") -> str:
    of = f"{metric}{_M}" if "model" in METRICS[metric].labels else metric
    return f"sum by ({by}) (rate({of}{_R}))" if by else f"sum (rate({of}{_R}))"


def _mean(sums: str, counts: str, by: str = "model") -> str:
    return f"{_rate(sums, by)} / {_rate(counts, by)}"


def _largest(gauge: str) -> str:
    return f"max by (model) ({gauge}{_M})"


def _quantile(share: float, histogram: str, by: str) -> str:
    of = f"{histogram}_bucket" + (_M if "model" in METRICS[histogram].labels else "")
    return f"histogram_quantile({share:g}, sum by ({by}, le) (rate({of}{_R})))"


def _attainment(by: str) -> str:
    served, late, failed, dropped = (
        _rate(f"poolpipe_requests_{outcome}_total", by)
        for outcome in ("served", "late", "failed", "dropped")
    )
    return f"{served} / ({served} + {late} + {failed} + ({dropped} or {served} * 0))"


def _green_from(value: float) -> dict[str, Any]:
    steps = [{"color": "red", "value": None}, {"color": "green", "value": value}]
    return {"mode": "absolute", "steps": steps}


# Rows from the top: height and panels.
ROWS: Sequence[tuple[int, Sequence[Panel]]] = (
    (
        5,
        (
            Panel(
                4,
                "Attainment",
                {"": _attainment("")},
                unit="percentunit",
                kind="stat",
                about="Answered in time, of the requests that ended",
                more={
                    "fieldConfig/defaults/max": 1,
                    "fieldConfig/defaults/decimals": 2,
                    "fieldConfig/defaults/thresholds": _green_from(0.99),
                },
            ),
            Panel(
                5,
                "Error budget left, 30 days",
                {"{{model}}": "poolpipe:budget_left:ratio30d" + _M},
                unit="percentunit",
                kind="stat",
                about=_FROM_RULES,
                more={
                    "fieldConfig/defaults/min": None,
                    "fieldConfig/defaults/thresholds": _green_from(0),
                },
            ),
            Panel(
                4, "Offered", {"": _rate("poolpipe_requests_offered_total", "")}, "reqps", "stat"
            ),
            Panel(3, "Workers ready", {"": "max(poolpipe_workers_up)"}, kind="stat"),
            Panel(3, "Batches in flight", {"": "max(poolpipe_in_flight_batches)"}, kind="stat"),
            Panel(
                5,
                "Plan served",
                {"": "poolpipe_plan == 1"},
                kind="table",
                about="Plan and generation",
                more={
                    "transformations": [
                        {"id": "labelsToFields", "options": {"mode": "columns"}},
                        {
                            "id": "organize",
                            "options": {
                                "excludeByName": dict.fromkeys(
                                    ("Time", "Value", "__name__", "instance", "job"), True
                                )
                            },
                        },
                    ]
                },
            ),
        ),
    ),
    (
        8,
        (
            Panel(
                8,
                "Attainment per model",
                {"{{model}}": _attainment("model")},
                unit="percentunit",
                about="The goal is 99 %",
                more={
                    "fieldConfig/defaults/max": 1,
                    "fieldConfig/defaults/thresholds": _green_from(0.99),
                    "fieldConfig/defaults/custom": {"thresholdsStyle": {"mode": "line"}},
                },
            ),
            Panel(
                8,
                "Burn rate of the error budget",
                {
                    "{{model}}, 5 min": "poolpipe:burn:ratio_rate5m" + _M,
                    "{{model}}, 1 h": "poolpipe:burn:ratio_rate1h" + _M,
                    "{{model}}, 6 h": "poolpipe:burn:ratio_rate6h" + _M,
                },
                about=f"{_FROM_RULES}; 1 uses up a period's budget in that period",
            ),
            Panel(
                8,
                "Rates per model",
                {
                    "{{model}} offered": _rate("poolpipe_requests_offered_total"),
                    "{{model}} served": _rate("poolpipe_requests_served_total"),
                    "{{model}} planned": _largest("poolpipe_planned_requests_per_second"),
                },
                unit="reqps",
            ),
        ),
    ),
    (
        8,
        (
            Panel(
                8,
                "Latency",
                {
                    "{{model}} p50": _quantile(0.5, "poolpipe_latency_seconds", "model"),
                    "{{model}} p99": _quantile(0.99, "poolpipe_latency_seconds", "model"),
                },
                unit="s",
            ),
            Panel(
                8,
                "Wait before the dispatch",
                {
                    "{{model}} p50": _quantile(0.5, "poolpipe_queue_wait_seconds", "model"),
                    "{{model}} p99": _quantile(0.99, "poolpipe_queue_wait_seconds", "model"),
                },
                unit="s",
            ),
            Panel(
                8,
                "Waiting requests",
                {"{{model}}": _largest("poolpipe_queue_requests")},
            ),
        ),
    ),
    (
        8,
        (
            Panel(
                12,
                "Missed requests by reason",
                {
                    "{{model}} dropped: {{reason}}": _rate(
                        "poolpipe_requests_dropped_total", "model, reason"
                    ),
                    "{{model}} late": _rate("poolpipe_requests_late_total"),
                    "{{model}} failed": _rate("poolpipe_requests_failed_total"),
                },
                unit="reqps",
            ),
            Panel(
                12,
                "Utilisation of pools",
                {
                    _STAGE_NAME: _rate("poolpipe_stage_busy_seconds_total", _STAGE)
                    + " / on (pool) group_left sum by (pool) (poolpipe_pool_vgpus)"
                },
                unit="percentunit",
                about="Busy time over the time of all vGPUs of a pool",
                more={"fieldConfig/defaults/max": 1},
            ),
        ),
    ),
    (
        8,
        (
            Panel(
                8,
                "Run time of a stage",
                {
                    f"{_STAGE_NAME} p50": _quantile(0.5, "poolpipe_stage_seconds", _STAGE),
                    f"{_STAGE_NAME} p99": _quantile(0.99, "poolpipe_stage_seconds", _STAGE),
                },
                unit="s",
            ),
            Panel(
                8,
                "Run time over the profile's",
                {
                    "{{pool}}": _mean(
                        "poolpipe_stage_busy_seconds_total",
                        "poolpipe_stage_planned_seconds_total",
                        "pool",
                    ),
                    "{{pool}} by the newest profile": "max by (pool) (poolpipe_pool_profile_ratio)",
                },
                about="1 is as profiled; an alert is raised from 1.2 on",
            ),
            Panel(
                8,
                "Use of links",
                {
                    "{{node}} {{direction}}": _rate(
                        "poolpipe_link_busy_seconds_total", "node, direction"
                    )
                },
                unit="percentunit",
                more={"fieldConfig/defaults/max": 1},
            ),
        ),
    ),
    (
        7,
        (
            Panel(
                8,
                "Batch size",
                {
                    "{{model}}": _mean("poolpipe_batch_samples_total", "poolpipe_batches_total"),
                    "{{model}}, shared batches": _mean(
                        "poolpipe_shared_batch_samples_total", "poolpipe_shared_batches_total"
                    ),
                    "{{model}}, entries in a shared batch": _mean(
                        "poolpipe_shared_batch_entries_total", "poolpipe_shared_batches_total"
                    ),
                },
            ),
            Panel(
                8,
                "Modules of applications",
                {
                    "{{application}} {{module}} p50": _quantile(
                        0.5, "poolpipe_module_seconds", "application, module"
                    ),
                    "{{application}} {{module}} p99": _quantile(
                        0.99, "poolpipe_module_seconds", "application, module"
                    ),
                },
                unit="s",
            ),
            Panel(
                8,
                "Decision time",
                {"mean": _mean("poolpipe_decision_seconds_total", "poolpipe_decisions_total", "")},
                unit="s",
            ),
        ),
    ),
    (
        7,
        (
            Panel(
                12,
                "Worker restarts and losses",
                {
                    "{{node}} restarts": "sum by (node) "
                    f"(increase(poolpipe_worker_restarts_total{_R}))",
                    "lost": f"sum(increase(poolpipe_workers_lost_total{_R}))",
                },
            ),
            Panel(
                12,
                "Rollout state",
                {"{{state}}": "poolpipe_rollout_state"},
                kind="state-timeline",
                more={"options/showValue": "never"},
            ),
        ),
    ),
)


def _described(panel: Panel) -> str:
    """Its own words, or those of its metrics."""
    if panel.about:
        return panel.about
    named = _NAME.findall(" ".join(panel.queries.values()))
    families = dict.fromkeys(name if name in METRICS else _PART.sub("", name) for name in named)
    return "\n\n".join(METRICS[name].about for name in families)


def _panels() -> Iterator[dict[str, Any]]:
    y = number = 0
    for height, row in ROWS:
        x = 0
        for panel in row:
            number += 1
            made: dict[str, Any] = {
                "id": number,
                "type": panel.kind,
                "title": panel.title,
                "description": _described(panel),
                "datasource": SOURCE,
                "gridPos": {"x": x, "y": y, "w": panel.width, "h": height},
                "targets": [
                    {
                        "refId": chr(ord("A") + place),
                        "expr": expression,
                        "legendFormat": legend,
                        "datasource": SOURCE,
                    }
                    for place, (legend, expression) in enumerate(panel.queries.items())
                ],
                "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
                "options": {},
            }
            for path, value in panel.more.items():
                *parents, name = path.split("/")
                place = made
                for parent in parents:
                    place = place[parent]
                if value is None:
                    place.pop(name)
                else:
                    place[name] = value
            x += panel.width
            yield made
        y += height


def dashboard() -> str:
    """The file to import: choose the data source there."""
    variables = [
        {
            "name": "datasource",
            "label": "Data source",
            "type": "datasource",
            "query": "prometheus",
            "current": {},
        },
        {
            "name": "model",
            "label": "Model",
            "type": "query",
            "datasource": SOURCE,
            "query": {
                "query": "label_values(poolpipe_requests_offered_total, model)",
                "refId": "models",
            },
            "refresh": 2,
            "includeAll": True,
            "multi": True,
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
        },
    ]
    changes = {
        "name": "Plan changes",
        "datasource": SOURCE,
        "enable": True,
        "iconColor": "purple",
        "expr": "changes(poolpipe_plan[1m]) > 0 and poolpipe_plan == 1",
        "titleFormat": "plan {{plan_id}}",
        "step": "30s",
    }
    made = {
        "uid": "poolpipe",
        "title": "PoolPipe",
        "tags": ["poolpipe"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": variables},
        "annotations": {"list": [changes]},
        "panels": list(_panels()),
    }
    return json.dumps(made, indent=2) + "\n"
