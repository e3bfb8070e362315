"""The note on how the newest profiles compare with a plan."""

from pathlib import Path

import pytest

from triton_backend.serve_folder.newest_profiles import NAME, read_ratios, write_ratios


def test_ratios_are_those_of_the_plan_that_they_were_noted_of(tmp_path: Path) -> None:
    assert read_ratios(tmp_path, "plan") == {}
    write_ratios(tmp_path, "plan", {"L4-0": 1.25, "P4-0": 1.0})
    assert read_ratios(tmp_path, "plan") == {"L4-0": 1.25, "P4-0": 1.0}
    assert read_ratios(tmp_path, "other") == {}
    write_ratios(tmp_path, "other", {})
    assert read_ratios(tmp_path, "plan") == read_ratios(tmp_path, "other") == {}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"plan_id": "plan"}',
        '{"plan_id": "plan", "ratios": 1}',
        '{"plan_id": "plan", "ratios": {"L4-0": []}}',
        '{"plan_id": "plan", "ratios": {"L4-0": NaN}}',
        '{"plan_id": "plan", "ratios": {"L4-0": 1e999}}',
        '{"plan_id": "plan", "ratios": {"L4-0": ' + "9" * 400 + "}}",
    ],
)
def test_a_file_that_cannot_be_read_says_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / NAME).write_text(text)
    assert read_ratios(tmp_path, "plan") == {}
