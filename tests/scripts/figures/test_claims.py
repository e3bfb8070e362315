"""Claims and runs are checked when read, and quiet runs count."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.figures.claims import Claim, Figures, Standing, number, read, value_text
from triton_backend.contract.errors import InputError

CLAIM: dict[str, Any] = {
    "id": "gap",
    "area": "changes",
    "what": "longest time without a dispatch",
    "unit": "ms",
    "better": "lower",
    "target": 50,
    "source": "ours",
    "command": "scripts/benchmarks/rollout.py",
    "benchmark": "rollout",
    "figure": "seconds",
    "factor": 1000,
}


def figures_of(folder: Path, *runs: tuple[float, bool | None], **changed: Any) -> Figures:
    """One claim, and a run for each value in seconds."""
    claims, kept = folder / "claims.yaml", folder / "runs"
    kept.mkdir(exist_ok=True)
    claims.write_text(yaml.safe_dump([CLAIM | changed]))
    for k, (value, quiet) in enumerate(runs):
        record = {
            "benchmark": "rollout",
            "at": f"2026-01-0{k + 1}T00:00:00+00:00",
            "commit": f"c{k}",
            "quiet": quiet,
            "machine": {"command": "python scripts/benchmarks/rollout.py"},
            "figures": [{"name": "seconds", "value": value, "unit": "s"}],
        }
        (kept / f"{k}.json").write_text(json.dumps(record))
    return read(claims, kept)


def standing_of(figures: Figures) -> Standing:
    return figures.standing(figures.claim("gap"))


def test_only_quiet_runs_count_where_there_are_any(tmp_path: Path) -> None:
    found = standing_of(
        figures_of(tmp_path, (0.04, True), (0.07, True), (0.03, True), (0.9, False))
    )
    assert found.values == (40, 70, 30)
    assert value_text(found) == "40 ms, worst 70 (n = 3)"
    assert (found.met, found.busy, found.newest.commit) == ("median yes, worst no", False, "c2")


def test_without_a_quiet_run_all_count_and_the_page_says_so(tmp_path: Path) -> None:
    found = standing_of(figures_of(tmp_path, (0.06, False), (0.08, None)))
    assert (found.values, found.met, found.busy) == ((60, 80), "no", True)


def test_a_figure_that_load_cannot_change_counts_from_every_run(tmp_path: Path) -> None:
    figures = figures_of(tmp_path, (0.04, True), (0.03, False), timed=False, better="higher")
    found = standing_of(figures)
    assert (found.worst, found.busy, found.met) == (30, False, "no")


def test_runs_before_the_measured_rule_changed_count_no_more(tmp_path: Path) -> None:
    found = figures_of(tmp_path, (0.9, True), (0.04, True), since="2026-01-02")
    assert standing_of(found).values == (40,)
    earlier = tmp_path / "earlier"
    earlier.mkdir()
    with pytest.raises(InputError, match="gap: no run gives it a value"):
        standing_of(figures_of(earlier, (0.9, True), since="2026-01-02"))


def test_a_claim_without_a_target_is_reported(tmp_path: Path) -> None:
    assert standing_of(figures_of(tmp_path, (9.0, True), target=None)).met == "–"


@pytest.mark.parametrize(
    "changed",
    [
        {"better": "more"},
        {"source": "hearsay"},
        {"what": " ".join(["word"] * 26)},
        {"reference": " ".join(["word"] * 26)},
        {"colour": "blue"},
    ],
)
def test_a_claim_out_of_form_is_refused(tmp_path: Path, changed: dict[str, str]) -> None:
    with pytest.raises(InputError, match="gap"):
        figures_of(tmp_path, (1.0, True), **changed)


def test_two_claims_of_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "claims.yaml").write_text(yaml.safe_dump([CLAIM, CLAIM]))
    with pytest.raises(InputError, match="two claims 'gap'"):
        read(tmp_path / "claims.yaml", tmp_path)


def test_a_file_that_is_no_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "claims.yaml").write_text(yaml.safe_dump([CLAIM]))
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(InputError, match=r"other\.json"):
        read(tmp_path / "claims.yaml", tmp_path)


def test_numbers_keep_four_digits_and_never_an_exponent() -> None:
    values = (0, 40.0, 0.97991, 10.04, 2454.8, 533_123.4, 0.0002)
    assert [number(v) for v in values] == [
        "0", "40", "0.9799", "10.04", "2,455", "533,123", "0.0002"
    ]  # fmt: skip


def test_the_direction_decides_what_keeps_a_target() -> None:
    claim = Claim(**CLAIM)
    assert claim.keeps(50)
    assert not claim.keeps(51)
