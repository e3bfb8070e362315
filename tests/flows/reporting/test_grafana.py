"""The Grafana dashboard asks for published metrics, and its panels do not overlap."""

import itertools
import json
import re
from pathlib import Path
from typing import Any

import yaml

import flows.reporting
from triton_backend.serving.server.metrics import METRICS

PARTS = ("_bucket", "_sum", "_count")
PUBLISHED = {name for name, (kind, *_) in METRICS.items() if kind != "histogram"} | {
    name + part for name, (kind, *_) in METRICS.items() if kind == "histogram" for part in PARTS
}
FOLDER = Path(flows.reporting.__file__).parent
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((FOLDER / "alerts" / "poolpipe.rules.yaml").read_text())["groups"]
    for rule in group["rules"]
]
RECORDED = {rule["record"] for rule in RULES if "record" in rule}
PATH = FOLDER / "grafana" / "poolpipe.json"


def dashboard() -> dict[str, Any]:
    return json.loads(PATH.read_text())


def test_every_expression_names_metrics_that_are_published_or_recorded() -> None:
    targets = [t["expr"] for panel in dashboard()["panels"] for t in panel["targets"]]
    expressions = [*targets, *(a["expr"] for a in dashboard()["annotations"]["list"])]
    variables = [one["query"] for one in dashboard()["templating"]["list"]]
    expressions += [query["query"] for query in variables if query != "prometheus"]
    for expression in expressions:
        names = re.findall(r"\bpoolpipe[:_][\w:]+", expression)
        assert names
        assert set(names) <= PUBLISHED | RECORDED
        assert expression.count("(") == expression.count(")")


def test_panels_have_their_own_ids_and_places() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for one, other in itertools.combinations([panel["gridPos"] for panel in panels], 2):
        apart = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        apart |= one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert apart
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)
    assert all(panel["description"] for panel in panels)
