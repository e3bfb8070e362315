"""The metrics of a running system: fetched, and read into plain values.

Prometheus' text format, of which only our own metrics are kept: without `poolpipe_` and the `_total`
of counters, every time in seconds. Not here: what follows from the values.
"""

import re
import urllib.request
from collections.abc import Mapping, Sequence
from http.client import HTTPException

from triton_backend.contract.errors import PoolPipeError

Labels = tuple[tuple[str, str], ...]
Metrics = Mapping[str, Mapping[Labels, float]]

PREFIX = "poolpipe_"
_TOTAL = "_total"
_LINE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*$")
_LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"')
_ESCAPES = {"\\n": "\n", '\\"': '"', "\\\\": "\\"}
# Units that a name may end with (before `_bucket`, `_sum`, `_count`), in seconds.
_UNITS = {"_ms": 1e-3, "_us": 1e-6}
_PARTS = ("_bucket", "_sum", "_count")


class MetricsError(PoolPipeError):
    """The metrics of a running system cannot be had now."""


def read_metrics(url: str, timeout_s: float) -> dict[str, dict[Labels, float]]:
    """What a metrics endpoint says.

    Raises:
        MetricsError: it does not answer, or not to the end.
    """
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as answer:  # noqa: S310 - an address of our own state file
            text = answer.read().decode()
    # An answer that is cut short or is none of HTTP's is no OSError.
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or error  # without urllib's wrapping
        raise MetricsError(f"no metrics from {url}: {reason}") from error
    return parse_metrics(text)


def read_all_metrics(urls: Sequence[str], timeout_s: float) -> dict[str, dict[Labels, float]]:
    """What the gateways of a system say together: what each counts is added; one that is gone counts nothing.

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


def parse_metrics(text: str) -> dict[str, dict[Labels, float]]:
    """Values by metric name and sorted labels; lines that are none of ours are passed over."""
    metrics: dict[str, dict[Labels, float]] = {}
    for line in text.splitlines():
        found = _LINE.match(line) if line.startswith(PREFIX) else None
        if found is None:
            continue
        try:
            value = float(found[3])
        except ValueError:
            continue
        pairs = {key: _plain(label) for key, label in _LABEL.findall(found[2] or "")}
        name, factor = _in_seconds(found[1].removeprefix(PREFIX))
        if "le" in pairs:
            pairs["le"] = repr(float(pairs["le"]) * factor)
        if not name.endswith(("_bucket", "_count")):
            value *= factor
        metrics.setdefault(name, {})[tuple(sorted(pairs.items()))] = value
    return metrics


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


def _plain(text: str) -> str:
    return re.sub(r'\\[n"\\]', lambda found: _ESCAPES[found[0]], text)
