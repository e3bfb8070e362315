"""SVG elements as text: the few shapes the pictures need, with everything escaped.

Here: elements, colours and the estimate of text widths. Not here: what is drawn.
"""

from collections.abc import Mapping
from xml.sax.saxutils import escape, quoteattr

INK, SOFT, FAINT, LINE = "#1f2933", "#5f6b7a", "#9aa5b1", "#d5dbe3"
GOOD, BAD = "#2f8f5b", "#c0392b"
FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"
MODEL_COLOURS = (
    "#3b6fb6", "#d9822b", "#3f9b6c", "#b5495b", "#7d5ba6",
    "#8a6d3b", "#2a9fb0", "#c35f9f", "#6b7280", "#9a9a2e",
)  # fmt: skip
CLASS_COLOURS = (
    ("#e6eefb", "#6f94cf"), ("#fdf0df", "#dba25a"), ("#e4f4ea", "#6cb38a"),
    ("#f3e8f7", "#a985bd"), ("#f9e7e7", "#d08c8c"), ("#e4f3f5", "#6db0ba"),
)  # fmt: skip
CHARACTER_EM = 0.6  # mean width of a character of a sans-serif face


def model_colour(number: int) -> str:
    """Colour of a model, everywhere the same."""
    return MODEL_COLOURS[number % len(MODEL_COLOURS)]


def class_colours(number: int) -> tuple[str, str]:
    """Fill and border of a GPU class."""
    return CLASS_COLOURS[number % len(CLASS_COLOURS)]


def element(tag: str, content: str = "", **attributes: object) -> str:
    """One element; `_` in attribute names stands for `-`. Content is taken as it is."""
    return _element(tag, content, attributes)


def _element(tag: str, content: str, attributes: Mapping[str, object]) -> str:
    given = "".join(
        f" {name.replace('_', '-')}={quoteattr(_plain(value))}"
        for name, value in attributes.items()
        if value is not None
    )
    return f"<{tag}{given}>{content}</{tag}>" if content else f"<{tag}{given}/>"


def rect(x: float, y: float, width: float, height: float, **attributes: object) -> str:
    """A rectangle; `title` becomes its tooltip."""
    place: dict[str, object] = {"x": x, "y": y, "width": max(width, 0), "height": height}
    tip = title(str(attributes.pop("title"))) if "title" in attributes else ""
    return _element("rect", tip, place | attributes)


def text(x: float, y: float, content: str, *, size: float = 12, **attributes: object) -> str:
    """A line of text."""
    settings: dict[str, object] = {"x": x, "y": y, "font_size": size, "fill": INK}
    return _element("text", escape(content), settings | attributes)


def straight_line(x1: float, y1: float, x2: float, y2: float, **attributes: object) -> str:
    """A straight line."""
    settings: dict[str, object] = {"x1": x1, "y1": y1, "x2": x2, "y2": y2, "stroke": LINE}
    return _element("line", "", settings | attributes)


def title(content: str) -> str:
    """A tooltip."""
    return element("title", escape(content))


def drawing(width: float, height: float, parts: list[str], label: str) -> str:
    """A whole picture that scales with its place."""
    return element(
        "svg",
        "".join(parts),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {_plain(width)} {_plain(height)}",
        width="100%",
        font_family=FONT,
        role="img",
        aria_label=label,
    )


def text_width(content: str, size: float) -> float:
    """About how wide a text is."""
    return len(content) * size * CHARACTER_EM


def fits(width: float, size: float) -> int:
    """About how many characters fit into a width."""
    return max(1, int(width / (size * CHARACTER_EM)))


def _plain(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
