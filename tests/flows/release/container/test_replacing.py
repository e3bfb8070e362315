"""A bundle's folder, and what renderings that were killed leave beside it."""

from pathlib import Path

import pytest

from flows.release.container.replacing import SCRATCH, START, replaced


def render(folder: Path) -> None:
    with replaced(folder, ()) as made:
        (made / START).touch()


def abandoned(parent: Path) -> Path:
    """The folder of a rendering whose process is gone."""
    left = parent / f"{SCRATCH}gone" / "bundle"
    left.mkdir(parents=True)
    (left / "part").touch()
    return left.parent


@pytest.mark.parametrize("there", [False, True])
def test_a_rendering_clears_away_what_a_killed_one_left(tmp_path: Path, *, there: bool) -> None:
    folder = tmp_path / "bundle"
    if there:
        render(folder)
    left = abandoned(folder if there else tmp_path)
    render(folder)
    assert not left.exists()
    assert [each.name for each in tmp_path.iterdir()] == ["bundle"]
    assert [each.name for each in folder.iterdir()] == [START]


def test_a_rendering_leaves_one_under_way_alone(tmp_path: Path) -> None:
    with replaced(tmp_path / "one", ()) as made:
        (made / START).touch()
        render(tmp_path / "another")
        assert (made / START).exists()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["another", "one"]


def test_a_rendering_leaves_folders_alone_that_hold_something_else(tmp_path: Path) -> None:
    left = abandoned(tmp_path)
    (left / "notes.txt").touch()
    (tmp_path / f"{SCRATCH}link").symlink_to(tmp_path)
    render(tmp_path / "bundle")
    assert (left / "notes.txt").exists()
    assert (left / "bundle" / "part").exists()


def test_a_folder_that_cannot_be_is_named_as_it_was_given() -> None:
    folder = Path("/proc/bundle")
    with pytest.raises(OSError, match=r"No such file") as refused, replaced(folder, ()):
        pytest.fail("it was written")
    assert refused.value.filename == str(folder)
