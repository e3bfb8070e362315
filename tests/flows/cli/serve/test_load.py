"""`poolpipe load` against an endpoint that answers everything."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.fakes.kserve import doubled, grpc_sink
from tests.fakes.plans import two_stages
from tests.flows.cli.conftest import Command


@pytest.mark.slow
def test_an_interrupted_load_tells_and_keeps_what_it_measured(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(json.dumps(two_stages().to_dict()))

    async def interrupted() -> tuple[int | None, bytes, bytes]:
        asked = asyncio.Event()

        def reply(
            inputs: dict[str, NDArray[np.float32]], timeout_us: int | None
        ) -> NDArray[np.float32]:
            asked.set()
            return doubled(inputs, timeout_us)

        async with grpc_sink(reply) as address:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", "from flows.cli.main import main; main()", "load"),
                *("--plan=plan.json", f"--url={address}", "--duration=600", "--rate=50"),
                *("--records=records.npz", "--json"),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                cwd=tmp_path,
                start_new_session=True,
            )
            await asked.wait()
            os.killpg(process.pid, signal.SIGINT)
            out, err = await process.communicate()
            return process.returncode, out, err

    code, out, err = asyncio.run(interrupted())
    assert (code, err) == (130, b"")
    found = json.loads(out)
    assert found["interrupted"]
    (model,) = found["models"].values()
    with np.load(tmp_path / "records.npz") as saved:
        assert len(saved["records"]) == model["offered"] >= 1


@pytest.mark.slow
def test_a_full_disk_costs_the_records_and_not_the_results(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(json.dumps(two_stages().to_dict()))

    async def loaded(*records: str) -> tuple[int | None, bytes, bytes]:
        async with grpc_sink(doubled) as address:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", "from flows.cli.main import main; main()", "load"),
                *("--plan=plan.json", f"--url={address}", "--duration=1", "--rate=20"),
                *(*records, "--json"),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                cwd=tmp_path,
            )
            out, err = await process.communicate()
            return process.returncode, out, err

    code, out, err = asyncio.run(loaded("--records=/dev/full"))
    (model,) = json.loads(out)["models"].values()
    assert model["offered"] >= 1
    reason = "/dev/full: cannot be written: No space left on device; the results are whole"
    assert (code, err.decode()) == (1, f"poolpipe: {reason}, the records are lost\n")


@pytest.mark.usefixtures("planned")
def test_a_file_of_records_that_cannot_be_written_is_refused_before_the_load(
    poolpipe: Command,
) -> None:
    ran = poolpipe("load", "plan.json", "--url", "127.0.0.1:1", "--records", ".")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == "poolpipe: .: cannot be written: Is a directory\n"
