"""The README's example of a family runs, and its answer is that of a second solver."""

import re
from typing import Any

import pytest

from tests.flows.planning.engine.problems import cutting_stock
from tests.repository.files import ROOT


def test_the_family_of_the_readme_is_planned_and_proven(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "flows" / "planning" / "README.md").read_text()
    (example,) = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(example, "README.md", "exec"), names)
    sizes, copies = names["SIZE_GIB"], names["COPIES"]
    best = cutting_stock(80, sizes, copies).best
    *plan, last = capsys.readouterr().out.splitlines()
    assert last == f"{best:g} GPUs, none has fewer than {best:g}"
    assert sum(int(line.split()[0]) for line in plan) == best
