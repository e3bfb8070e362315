"""The metrics of a running system: fetched, and read into plain values.

Prometheus' text format, of which only our own metrics are kept: without `poolpipe_` and the
`_total` of counters, every time in seconds. Not here: what follows from the values.
"""

import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from http.client import HTTPException
from typing import TextIO, cast

from prometheus_client.parser import text_fd_to_metric_families

from triton_backend.contract.errors import PoolPipeError

Labels = tuple[tuple[str, str], ...]
Metrics = Mapping[str, Mapping[Labels, float]]

PREFIX = "poolpipe_"
_TOTAL = "_total"
_SHOWN = 80  # characters of a line that is no metric
# Units that a name may end with (before `_bucket`, `_sum`, `_count`), in seconds.
_UNITS = {"_ms": 1e-3, "_us": 1e-6}
_PARTS = ("_bucket", "_sum", "_count")


class MetricsError(PoolPipeError):
    """The metrics of a running system cannot be had now."""


def read_metrics(url: str, timeout_s: float) -> dict[str, dict[Labels, float]]:
    """The content of a metrics endpoint.

    Raises:
        MetricsError: it does not answer, not to the end, or not with metrics.
    """
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as answer:  # noqa: S310 - an address of our own state file
            text = answer.read().decode()
    # An answer that is cut short or is none of HTTP's is no OSError.
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or error  # without urllib's wrapping
        raise MetricsError(f"no metrics from {url}: {reason}") from error
    return parse_metrics(text, url)


def read_all_metrics(urls: Sequence[str], timeout_s: float) -> dict[str, dict[Labels, float]]:
    """The metrics of a system's gateways; counters are added.

    One that is gone counts nothing.

    Raises:
        MetricsError: none of them answers.
    """
    found: list[dict[str, dict[Labels, float]]] = []
    for url in urls:
        try:
            found.append(read_metrics(url, timeout_s))
        except MetricsError:
            if url == urls[-1] and not found:
                raise
    whole = found[0]
    for other in found[1:]:
        for name, series in other.items():
            mine = whole.setdefault(name, {})
            for labels, value in series.items():
                mine[labels] = mine.get(labels, 0.0) + value
    return whole


def parse_metrics(text: str, where: str = "metrics") -> dict[str, dict[Labels, float]]:
    """Values by metric name and sorted labels; lines of other metrics are passed over.

    Raises:
        MetricsError: a line of ours is none of Prometheus' text format.
    """
    line, number = "", 0

    def own() -> Iterator[str]:
        nonlocal line, number
        for number, line in enumerate(text.split("\n"), 1):  # noqa: B007 - a complaint names it
            if line.startswith(PREFIX):
                yield line

    metrics: dict[str, dict[Labels, float]] = {}
    try:
        for family in text_fd_to_metric_families(cast("TextIO", own())):
            for sample in family.samples:
                _add(metrics, sample.name, sample.labels, float(sample.value))
    except (ValueError, IndexError) as error:
        raise MetricsError(f"{where}, line {number}: not a metric: {line[:_SHOWN]!r}") from error
    return metrics


def _add(
    metrics: dict[str, dict[Labels, float]], full_name: str, labels: dict[str, str], value: float
) -> None:
    name, factor = _in_seconds(full_name.removeprefix(PREFIX))
    if "le" in labels:
        labels = labels | {"le": repr(float(labels["le"]) * factor)}
    if not name.endswith(("_bucket", "_count")):
        value *= factor
    metrics.setdefault(name, {})[tuple(sorted(labels.items()))] = value


def by_label(series: Mapping[Labels, float], *names: str) -> dict[tuple[str, ...], float]:
    """Values by the labels named, summed over the others; series without them are left out."""
    sums: dict[tuple[str, ...], float] = {}
    for labels, value in series.items():
        known = dict(labels)
        if all(name in known for name in names):
            key = tuple(known[name] for name in names)
            sums[key] = sums.get(key, 0.0) + value
    return sums


def _in_seconds(name: str) -> tuple[str, float]:
    """A name without `_total` and with its unit, if it is one of time, in seconds; the factor."""
    name = name.removesuffix(_TOTAL)
    part = next((part for part in _PARTS if name.endswith(part)), "")
    stem = name.removesuffix(part)
    for unit, factor in _UNITS.items():
        if stem.endswith(unit):
            return f"{stem.removesuffix(unit)}_seconds{part}", factor
    return name, 1.0
