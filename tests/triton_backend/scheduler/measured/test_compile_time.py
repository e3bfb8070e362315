"""Time spent on compiling kernels."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from triton_backend.scheduler.measured.compile_time import CompileTime

ROOT = Path(__file__).parents[4]
COMPILED = """
import sys
from triton_backend.scheduler.compiled import compile_for, entry
from triton_backend.scheduler.measured.compile_time import COMPILE_TIME

@entry
def added(first, second):
    return first + second

before = COMPILE_TIME.seconds()
compile_for(added, 1, 2)
print(before, COMPILE_TIME.seconds())
"""


def test_blocks_are_added_up_also_where_one_fails() -> None:
    spent = CompileTime()
    with spent.counted():
        time.sleep(0.01)
    first_s = spent.seconds()
    assert first_s >= 0.01
    with pytest.raises(KeyError), spent.counted():
        raise KeyError
    assert spent.seconds() > first_s


@pytest.mark.slow
def test_a_kernel_that_is_compiled_counts_and_one_from_the_cache_does_not(tmp_path: Path) -> None:
    file = tmp_path / "added.py"
    file.write_text(COMPILED)
    own = {"NUMBA_DISABLE_JIT": "0", "NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    spent: list[float] = []
    for _ in range(2):
        ran = subprocess.run(
            [sys.executable, str(file)], env=own, capture_output=True, text=True, check=True
        )
        before, after = map(float, ran.stdout.split())
        assert before == 0.0
        spent.append(after)
    assert spent[0] > 0.0
    assert spent[1] == 0.0
