"""Numbers as people read them: three significant figures, a unit, no noise.

Here: the one place that turns quantities into text for pages, pictures and the terminal.
"""

import math
from collections.abc import Sequence

from triton_backend.contract.shares import WHOLE_GPU, share_text

NARROW = "\N{NO-BREAK SPACE}"


def number(value: float | None, digits: int = 3) -> str:
    """`value` with so many significant figures; whole parts are never cut."""
    if value is None or not math.isfinite(value):
        return "–"
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{min(decimals, digits)}f}"
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return text


def rate(value_rps: float | None) -> str:
    """Requests per second."""
    return f"{number(value_rps)}{NARROW}rps"


def promise(planned_rps: float) -> str:
    """The promise of a pipeline; overflow promises nothing."""
    return rate(planned_rps) if planned_rps else "overflow"


def milliseconds(value_ms: float | None) -> str:
    """A duration given in milliseconds; a dash where there is none."""
    return "–" if value_ms is None else f"{number(value_ms)}{NARROW}ms"


def seconds(value_s: float) -> str:
    """A duration given in seconds, as ms, s, min or h, whichever reads best."""
    minute, hour, soon = 60, 3600, 120
    if value_s < 1:
        return milliseconds(value_s * 1e3)
    if value_s < soon:
        return f"{number(value_s)}{NARROW}s"
    if value_s < hour:
        return f"{int(value_s // minute)}{NARROW}min {int(value_s % minute)}{NARROW}s"
    return f"{int(value_s // hour)}{NARROW}h {int(value_s % hour // minute)}{NARROW}min"


def size(value_bytes: float | None) -> str:
    """Bytes, in decimal units."""
    if value_bytes is None:
        return "–"
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if value_bytes >= factor:
            return f"{number(value_bytes / factor)}{NARROW}{unit}"
    return f"{number(value_bytes)}{NARROW}B"


def percent(fraction: float | None, decimals: int = 1) -> str:
    """A fraction as per cent, never rounded up to 100 nor down to 0."""
    if fraction is None or not math.isfinite(fraction):
        return "–"
    value, step = fraction * 100, 10**-decimals
    hundred = 100
    if value < hundred < value + step / 2:
        value = hundred - step
    if abs(value) < step * 1e-3:
        value = 0.0  # a remainder of rounding to whole microseconds is 0, not "-0.0"
    if 0 < value < step / 2:
        return f"<{NARROW}{step:.{decimals}f}{NARROW}%"
    return f"{value:.{decimals}f}{NARROW}%"


def vgpus(count: int, share: int, gpu_class: str) -> str:
    """A pool's vGPUs: "3 × 1/2 L4", "3 × 20 % L4", "25 × L4"; `share` in 300ths of a GPU."""
    part = "" if share == WHOLE_GPU else share_text(share).replace(" ", NARROW) + NARROW
    return f"{count}{NARROW}×{NARROW}{part}{gpu_class}"


def models_on(parts: Sequence[tuple[int, float]], names: Sequence[str]) -> str:
    """Models of a pool by number and part of its time: "a 75 %, b 25 %"; alone "a"."""
    if len(parts) == 1:
        return names[parts[0][0]]
    return ", ".join(f"{names[model]}{NARROW}{percent(part, 0)}" for model, part in parts)


def blocks(first: int, last: int) -> str:
    """Blocks [first, last) as "blocks 0–5" (last one included), "block 7"."""
    return f"block {first}" if last == first + 1 else f"blocks {first}–{last - 1}"


def shorten(text: str, width: int) -> str:
    """At most `width` characters, cut in the middle, where names of models differ least."""
    if len(text) <= width:
        return text
    head = (width - 1) * 2 // 3
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"
