"""A process that is killed while it brings a warehouse up to date leaves one that opens."""

import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from warehouse.schema import migrations

ROOT = Path(__file__).parents[2]
# In a process of its own, which opens no database itself: for every commit of an update, one
# process that is killed after it, and one that opens the file then. Prints the commits after which
# a file does not open, lacks its row or has not the newest schema; last, the number of commits.
PROGRAM = """
import os, signal, shutil, sys
from pathlib import Path

import duckdb

from warehouse.db import OFFLINE, open_warehouse
from warehouse.schema import migrate, migrations, schema_version


class Killed:
    def __init__(self, real, commits):
        self.real, self.left = real, commits

    def __getattr__(self, name):
        return getattr(self.real, name)

    def commit(self):
        self.real.commit()
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def in_process(work):
    child = os.fork()
    if child == 0:
        try:
            code = work()
        except BaseException as error:
            print(error, file=sys.stderr, flush=True)
            code = 1
        os._exit(code)
    return os.waitpid(child, 0)[1]


before, folder = Path(sys.argv[1]), Path(sys.argv[2])
commits = 0
while True:
    commits += 1
    path = folder / str(commits) / "w.duckdb"
    path.parent.mkdir()
    existed = before.exists()
    if existed:
        shutil.copy(before, path)

    def update():
        connection = Killed(duckdb.connect(str(path), config=OFFLINE), commits)
        migrate(connection, path, existed=existed, read_only=False)
        return 0

    def look():
        with open_warehouse(path) as warehouse:
            (row,) = warehouse.rows("SELECT count(*) AS n FROM models")
            return int(row["n"] != existed or schema_version(warehouse.connection) != newest)

    newest = len(migrations())
    if os.WIFEXITED(in_process(update)):
        break  # it came to its end, or failed, which stderr says
    if in_process(look) != 0:
        print("fails after", commits)
print("commits", commits - 1)
"""


def old_file(path: Path, version: int) -> None:
    """A warehouse of an earlier schema with one model; none for version 0."""
    if version == 0:
        return
    with duckdb.connect(str(path)) as connection:
        connection.execute(
            "CREATE TABLE schema_migrations (number INTEGER PRIMARY KEY, name VARCHAR NOT NULL,"
            " applied_at TIMESTAMPTZ NOT NULL)"
        )
        for number, file in enumerate(migrations()[:version], start=1):
            connection.execute(file.read_text())
            connection.execute(
                "INSERT INTO schema_migrations VALUES (?, ?, now())", [number, file.stem]
            )
        connection.execute(
            "INSERT INTO models VALUES ('k', 'm', 'm.onnx', NULL, 1, [], [], '{}', [], now())"
        )


@pytest.mark.slow
@pytest.mark.parametrize("version", [0, 1])
def test_a_warehouse_opens_wherever_the_process_that_updated_it_was_killed(
    tmp_path: Path, version: int
) -> None:
    old_file(tmp_path / "old.duckdb", version)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, tmp_path / "old.duckdb", tmp_path],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert (done.stdout, done.stderr) == ("commits 1\n", "")
