"""Numbers as people read them."""

import pytest

from flows.reporting import words


def plain(text: str) -> str:
    return text.replace("\N{NO-BREAK SPACE}", " ")


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (1234.5, "1,234"), (12.345, "12.3"), (0.01234, "0.012"), (100, "100"),
     (1e-9, "0"), (None, "–"), (float("nan"), "–")],
)  # fmt: skip
def test_numbers_keep_three_figures(value: float | None, text: str) -> None:
    assert words.number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(1, "100.0 %"), (0.99999, "99.9 %"), (0.99, "99.0 %"), (0, "0.0 %"), (0.0001, "< 0.1 %"),
     (-1e-9, "0.0 %"), (-0.05, "-5.0 %"), (None, "–")],
)  # fmt: skip
def test_percentages_are_never_rounded_to_all_or_nothing(value: float | None, text: str) -> None:
    assert plain(words.percent(value)) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0123, "12.3 ms"),
        (1.5, "1.5 s"),
        (119, "119 s"),
        (150, "2 min 30 s"),
        (7_500, "2 h 5 min"),
    ],
)
def test_durations_take_the_unit_that_reads_best(value: float, text: str) -> None:
    assert plain(words.seconds(value)) == text


def test_sizes_pools_and_blocks() -> None:
    assert plain(words.size(1_250_000)) == "1.25 MB"
    assert plain(words.size(12)) == "12 B"
    assert plain(words.vgpus(3, 150, "L4")) == "3 × 1/2 L4"
    assert plain(words.vgpus(3, 60, "L4")) == "3 × 20 % L4"
    assert plain(words.vgpus(3, 300, "L4")) == "3 × L4"


def test_models_of_a_pool_are_named_with_their_part_where_they_share_it() -> None:
    assert words.models_on([(1, 1.0)], ["a", "b"]) == "b"
    assert plain(words.models_on([(0, 0.75), (1, 0.25)], ["a", "b"])) == "a 75 %, b 25 %"
    assert words.blocks(2, 3) == "block 2"
    assert words.blocks(0, 3) == "blocks 0–2"


def test_a_pipeline_without_a_promise_is_overflow() -> None:
    assert plain(words.promise(12.5)) == "12.5 rps"
    assert words.promise(0.0) == "overflow"


@pytest.mark.parametrize("width", [1, 2, 5, 30])
def test_shortened_texts_keep_to_the_width(width: int) -> None:
    short = words.shorten("a_rather_long_name_of_a_model", width)
    assert len(short) == min(width, 29)
