"""A database of Prefect with all migrations, made once: a server makes its own in seven seconds.

`test_home.py` starts a server that does.
"""

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import prefect

from tests.repository.files import ROOT

CACHE = ROOT / ".cache"
NAME = "prefect.db"


def give_database(home: Path) -> None:
    """Put one into Prefect's folder of a project, before its first server starts."""
    CACHE.mkdir(exist_ok=True)
    made = CACHE / f"prefect-{prefect.__version__}.db"
    with (CACHE / "prefect.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            _make(made)
    home.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(made, home / NAME)


def _make(path: Path) -> None:
    plain = {k: v for k, v in os.environ.items() if not k.startswith("PREFECT_")}
    with TemporaryDirectory(dir=path.parent) as home:
        subprocess.run(
            [sys.executable, "-m", "prefect", "server", "database", "upgrade", "--yes"],
            env=plain | {"PREFECT_HOME": home},
            capture_output=True,
            check=True,
        )
        (Path(home) / NAME).replace(path)
