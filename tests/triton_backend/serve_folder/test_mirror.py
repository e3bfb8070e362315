"""Orders of copies, as fronts read them."""

import json
from pathlib import Path

import pytest

from triton_backend.serve_folder.mirror import MirrorOrder


def test_an_order_is_read_as_it_was_placed(tmp_path: Path) -> None:
    placed = MirrorOrder.place(tmp_path, ("m", "n"), 3, 7)
    assert MirrorOrder.read(tmp_path) == placed


@pytest.mark.parametrize(
    "wrong",
    [{"until_us": "7"}, {"requests": "3"}, {"requests": True}, {"models": "mn"}, {"models": [1]}],
)
def test_an_order_with_fields_of_other_kinds_is_none(
    tmp_path: Path, wrong: dict[str, object]
) -> None:
    MirrorOrder.place(tmp_path, ("m", "n"), 3, 7)
    file = tmp_path / "mirror" / "order.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | wrong))
    assert MirrorOrder.read(tmp_path) is None
