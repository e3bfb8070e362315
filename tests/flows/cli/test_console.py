"""Tables and lines as they are printed: all of it, also words that look like Rich's markup."""

import pytest

from flows.cli.console import show, table

SHAPE = "open sizes in x [n, w]; give [/x] a size"


def test_brackets_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    show(SHAPE)
    show(table(("model", "reason"), [("net", SHAPE)], texts=2))
    assert capsys.readouterr().out.splitlines() == [
        SHAPE,
        f"model  reason{' ' * (len(SHAPE) - len('reason'))}",
        f"net    {SHAPE}",
    ]


def test_texts_wrap_and_numbers_do_not(capsys: pytest.CaptureFixture[str]) -> None:
    show(table(("name", "reason", "count"), [("net", "why " * 100, 1_234)], texts=2))
    first, *rows = capsys.readouterr().out.splitlines()
    assert first.endswith("count")
    assert rows[0].endswith("1234")
    assert len(rows) > 1
