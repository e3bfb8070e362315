"""Systems that Piccolo is compared with, as rules over the same machines (table III)."""

from collections.abc import Mapping
from dataclasses import replace

from flows.planning.applications.heuristics import Rules
from flows.planning.papers.piccolo.splitting import by_duration, even, saving

_PLAIN = Rules(rule="2d", reassign=0, dummies=False)
RULES: Mapping[str, Rules] = {
    "nexus-dag": replace(
        _PLAIN, spatial=False, hetero=False, most_configurations=2, quantum_us=10_000
    ),
    "scrooge": replace(_PLAIN, rule="dt", most_configurations=2, split=by_duration),
    "inferline": replace(_PLAIN, spatial=False, most_configurations=1, split=saving),
    "clipper": replace(_PLAIN, spatial=False, hetero=False, most_configurations=1, split=even),
}
