"""Pages drawn from a seed."""

import io

import numpy as np
from PIL import Image

from flows.quickstart.pages import LONGEST, MOST_LINES, SIZES, draw_page

PAGES = [draw_page(seed) for seed in range(12)]


def test_a_page_is_the_same_for_the_same_seed() -> None:
    assert draw_page(3) == PAGES[3] != PAGES[4]


def test_pages_have_the_stated_sizes_and_lines() -> None:
    for page in PAGES:
        with Image.open(io.BytesIO(page.picture)) as picture:
            assert picture.size in SIZES
        assert 5 <= len(page.lines) <= MOST_LINES
        assert max(map(len, page.lines)) <= LONGEST
    assert {len(page.lines) for page in PAGES} != {len(PAGES[0].lines)}


def test_lines_lie_within_the_page() -> None:
    for page in PAGES:
        with Image.open(io.BytesIO(page.picture)) as picture:
            grey = np.asarray(picture.convert("L"))
        edges = (grey[:, :10], grey[:, -10:], grey[:10], grey[-10:])
        assert min(edge.min() for edge in edges) > 200


def test_words_may_be_drawn_without_spaces() -> None:
    page = draw_page(5, spaces=False, most_lines=6)
    assert 5 <= len(page.lines) <= 6
    assert " " not in "".join(page.lines)
