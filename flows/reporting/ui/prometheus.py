"""Prometheus' text format read into plain values.

Here: the format alone. Not here: fetching it, what the names mean (`live`).
"""

import re
from collections.abc import Iterable, Mapping

Labels = tuple[tuple[str, str], ...]
Metrics = Mapping[str, Mapping[Labels, float]]

_LINE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*$")
_LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"')
_ESCAPES = {"\\n": "\n", '\\"': '"', "\\\\": "\\"}


def parse_metrics(text: str, prefix: str = "") -> dict[str, dict[Labels, float]]:
    """Values by metric name and sorted labels; lines that are none of ours are passed over."""
    metrics: dict[str, dict[Labels, float]] = {}
    for name, labels, value in _values(text.splitlines(), prefix):
        metrics.setdefault(name, {})[labels] = value
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


def _values(lines: Iterable[str], prefix: str) -> Iterable[tuple[str, Labels, float]]:
    for line in lines:
        found = _LINE.match(line) if line.startswith(prefix) else None
        if found is None:
            continue
        name, labels, value = found.groups()
        try:
            number = float(value)
        except ValueError:
            continue
        pairs = ((key, _plain(text)) for key, text in _LABEL.findall(labels or ""))
        yield name, tuple(sorted(pairs)), number


def _plain(text: str) -> str:
    return re.sub(r'\\[n"\\]', lambda found: _ESCAPES[found[0]], text)
