"""Requests per minute of every model, from the access log of a server or of a proxy before it.

Three forms are distinguished line by line: nginx and Apache (`[25/Nov/2026:08:00:01 +0000]`), Envoy
(`[2026-11-25T08:00:01.123Z]`), and Triton's own log with `--log-verbose=1`
(`I1125 08:00:01.123456 ...`, without a year). A request of a model is one whose path is
`/v2/models/<name>[/versions/<number>]/infer`; every other line is counted and left out. gRPC's path
names no model. Lines are read one by one, so memory grows with minutes, not with lines.
"""

import gzip
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import MAXYEAR, UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, cast
from urllib.parse import unquote

import numpy as np

from flows.operations.replanning.rates import RateHistory
from triton_backend.contract.errors import InputError

if TYPE_CHECKING:
    from io import BufferedReader

MINUTE_S = 60
MOST_MINUTES = 400 * 24 * 60  # a year and a month; a wrong date must not take the memory
MOST_MODELS = 1_000
MOST_RATES = 100_000_000  # of a minute and a model: 800 MB
MOST_BYTES = 64 * 1024  # of a line; servers refuse longer heads of requests
_GZIP = b"\x1f\x8b"
_UTF16 = b"\xff\xfe", b"\xfe\xff"  # as PowerShell begins a file that it redirects to
_INFER = re.compile(r"/v2/models/([^/\s\"?]+)(?:/versions/[^/\s\"?]+)?/infer(?:[\s\"?]|$)")
_GRPC = "/inference.GRPCInferenceService/"
_NGINX = re.compile(r"\[(\d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d):\d\d ([+-]\d{4})\]")
_ENVOY = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d):\d\d(?:\.\d+)?(Z|[+-]\d\d:?\d\d)")
_TRITON = re.compile(r"^[IWE](\d\d)(\d\d) (\d\d:\d\d):\d\d\.\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessLog:
    """A log as counts.

    Attributes:
        path: the file.
        history: models by name; minutes without a request have rate 0.
        start: the first minute.
        requests: by model.
        others: lines that are no request of a model, or have no time.
        undated: those of them that are a request without a time that can be read, or of one that is
            more than a day ahead.
    """

    path: Path
    history: RateHistory
    start: datetime
    requests: Mapping[str, int]
    others: int = 0
    undated: int = 0

    @property
    def hours(self) -> float:
        """Length of the log."""
        return len(self.history.rps) * MINUTE_S / 3600


def read_access_log(path: Path, *, now: datetime) -> AccessLog:
    """Read a log, gzipped or not, in any order of lines.

    Args:
        path: the file.
        now: gives the year of Triton's own lines, the latest one not in the future; later requests
            have a wrong date.

    Raises:
        InputError: the file cannot be read, is UTF-16, has no request of a model with a time, or
            spans too long.
    """
    minute_of = _Minutes(now)
    counts: Counter[tuple[int, str]] = Counter()
    names: set[str] = set()
    others = undated = grpc = 0
    try:
        for line in _lines(path):
            asked = _INFER.search(line)
            minute = None if asked is None else minute_of(line)
            if asked is None or minute is None:
                others += 1
                undated += asked is not None
                grpc += _GRPC in line
                continue
            name = unquote(asked[1])
            names.add(name)
            if len(names) > MOST_MODELS:
                raise InputError(str(path), f"names more than {MOST_MODELS} models")
            counts[minute, name] += 1
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(
            str(path), f"cannot be read: {getattr(error, 'strerror', None) or error}"
        ) from error
    if not counts and undated:
        reason = (
            f"has no time that can be read in any of {undated} requests of models, or one ahead"
        )
        raise InputError(str(path), f"{reason}: [25/Nov/2026:08:00:01 +0000] is one")
    if not counts:
        reason = f"has no request of a model (/v2/models/NAME/infer) in {others} lines"
        named = f"; {grpc} are of gRPC, which a log shows without the model" if grpc else ""
        raise InputError(str(path), reason + named)
    return replace(_log(path, counts), others=others, undated=undated)


def _log(path: Path, counts: Counter[tuple[int, str]]) -> AccessLog:
    minutes = [minute for minute, _ in counts]
    first, last = min(minutes), max(minutes)
    names = sorted({name for _, name in counts})
    if last - first >= MOST_MINUTES:
        days = (last - first) // (24 * 60)
        ends = " to ".join(f"{_instant(minute):%Y-%m-%d}" for minute in (first, last))
        raise InputError(str(path), f"spans {days} days, from {ends}: is one of the dates wrong?")
    if (last - first + 1) * len(names) > MOST_RATES:
        days = (last - first) // (24 * 60)
        reason = f"names {len(names)} models in {days} days: more than {MOST_RATES:,} rates"
        raise InputError(str(path), reason)
    table = np.zeros((last - first + 1, len(names)))
    column = {name: number for number, name in enumerate(names)}
    for (minute, name), count in counts.items():
        table[minute - first, column[name]] = count
    return AccessLog(
        path=path,
        history=RateHistory(names=tuple(names), interval_s=MINUTE_S, rps=table / MINUTE_S),
        start=_instant(first),
        requests={name: int(table[:, number].sum()) for name, number in column.items()},
    )


def _instant(minute: int) -> datetime:
    return datetime.fromtimestamp(minute * MINUTE_S, UTC)


def _lines(path: Path) -> Iterator[str]:
    """Beginnings of lines; the rest of a line that is too long is passed over."""
    with path.open("rb") as raw:
        packed = path.suffix == ".gz" or raw.peek(2)[:2] == _GZIP
        file = cast("BufferedReader", gzip.GzipFile(fileobj=raw)) if packed else raw
        if file.peek(2)[:2] in _UTF16:
            raise InputError(str(path), "is UTF-16 text: give it as UTF-8")
        begins = True
        while part := file.readline(MOST_BYTES):
            if begins:
                yield part.decode(errors="replace")
            begins = part.endswith(b"\n")


class _Minutes:
    """Minutes since 1970 of lines; texts of one minute are read once."""

    def __init__(self, now: datetime) -> None:
        self._latest = now + timedelta(days=1)  # clocks and zones differ
        self._known: dict[str, int | None] = {}

    def __call__(self, line: str) -> int | None:
        """The minute of a line; None without a time."""
        found = _NGINX.search(line) or _ENVOY.search(line) or _TRITON.search(line)
        if found is None:
            return None
        text = found.group()
        key = "|".join(found.groups())
        if key not in self._known:
            if len(self._known) > MOST_MINUTES:
                self._known.clear()
            self._known[key] = self._read(text, found)
        return self._known[key]

    def _read(self, text: str, found: re.Match[str]) -> int | None:
        parts = found.groups()
        try:
            if text.startswith("["):
                at = datetime.strptime(" ".join(parts), "%d/%b/%Y:%H:%M %z")
            elif "T" in parts[0]:
                at = datetime.fromisoformat("".join(parts))
            else:
                at = self._of_triton(*parts)
        except ValueError:
            return None
        if not 1 < at.year < MAXYEAR:  # in UTC it may be of a year that has no date
            return None
        return int(at.timestamp()) // MINUTE_S if at <= self._latest else None

    def _of_triton(self, month: str, day: str, clock: str) -> datetime:
        """Triton's lines have no year and are in UTC: of this year, or else of the last.

        Raises:
            ValueError: neither has had such a day.
        """
        for year in (self._latest.year, self._latest.year - 1):
            with suppress(ValueError):  # 29 February is not in every year
                at = datetime.fromisoformat(f"{year}-{month}-{day}T{clock}+00:00")
                if at <= self._latest:
                    return at
        raise ValueError(f"{month}-{day}")
