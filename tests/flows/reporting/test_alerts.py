"""The alert rules: valid PromQL over published metrics, each with a page that says what to do."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from tests.flows.reporting.test_grafana import PUBLISHED, RECORDED, RULES
from tests.repository.files import ROOT
from triton_backend.serving.server.metrics import METRICS

ALERTS = {rule["alert"]: rule for rule in RULES if "alert" in rule}
TRIED = Path(__file__).with_name("alerts.promtool.yaml")
SELECTOR = re.compile(r"\bpoolpipe[:_][\w:]+")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.get("alert") or rule["record"])
def test_a_rule_is_promql_over_metrics_that_exist(rule: dict[str, Any]) -> None:
    promql_parser.parse(rule["expr"])
    names = set(SELECTOR.findall(rule["expr"]))
    assert names or rule["expr"].startswith("vector(")
    assert names <= PUBLISHED | RECORDED


def test_labels_that_rules_sum_by_are_labels_of_the_metric() -> None:
    for rule in RULES:
        for labels, metric in re.findall(
            r"(?:sum|max) by \(([\w, ]+)\) \((?:rate\()?(poolpipe_\w+)", rule["expr"]
        ):
            known = METRICS[metric].labels
            assert {label.strip() for label in labels.split(",")} <= set(known), metric


@pytest.mark.parametrize("name", ALERTS)
def test_every_alert_has_its_page(name: str) -> None:
    rule = ALERTS[name]
    assert rule["labels"]["severity"] in {"page", "ticket"}
    page, anchor = rule["annotations"]["runbook_url"].split("#")
    assert anchor == name.lower()
    text = (ROOT / page).read_text()
    section = text.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    assert len(section.split()) > 20
    assert [part in section for part in ("**Means:**", "**Look at:**", "**Do:**")] == [True] * 3
    assert f"[{name}](#{anchor})" in text


def test_windows_of_a_budget_alert_are_recorded_a_long_and_a_short_one() -> None:
    for name, windows in (
        ("PoolPipeBudgetBurnsFast", ("1h", "5m")),
        ("PoolPipeBudgetBurnsSlowly", ("6h", "30m")),
    ):
        used = re.findall(r"poolpipe:burn:ratio_rate(\w+)", ALERTS[name]["expr"])
        assert tuple(used) == windows


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.get("alert") or rule["record"])
def test_a_counter_that_begins_with_its_first_drop_counts_as_zero_until_then(
    rule: dict[str, Any],
) -> None:
    """In PromQL a sum has no value where one of its parts has none."""
    for told, window in re.findall(r"dropped_total(\S*)\[(\w+)\]", rule["expr"]):
        assert told == '{reason!="quota"}'  # the client's own doing
        dropped = f"sum by (model) (rate(poolpipe_requests_dropped_total{told}[{window}]))"
        served = f"sum by (model) (rate(poolpipe_requests_served_total[{window}]))"
        assert f"({dropped} or {served} * 0)" in " ".join(rule["expr"].split())


def test_every_alert_is_tried_where_it_is_raised_and_where_it_is_not() -> None:
    tried = [
        (one["alertname"], bool(one["exp_alerts"]))
        for test in yaml.safe_load(TRIED.read_text())["tests"]
        for one in test["alert_rule_test"]
    ]
    assert set(tried) == {(name, raised) for name in ALERTS for raised in (True, False)}


@pytest.mark.slow
def test_alerts_are_raised_by_what_they_are_for() -> None:
    if (promtool := shutil.which("promtool")) is None:
        pytest.skip("promtool (Debian: prometheus) is not installed")
    done = subprocess.run(
        [promtool, "test", "rules", str(TRIED)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
