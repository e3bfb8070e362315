"""Checks of a card and of what we run on it, in order, on a machine that has one.

    python -m scripts.gpu.check [--model resnet50] [--path tensorrt|onnxruntime-cuda|torch-cuda]
                                [--json FILE] [--work DIR] [--quick] [--only CHECK]

One line per check: pass, fail, skip or a figure; then one JSON object as the last line. Exit code 0
where nothing failed, 1 where something did, 2 where there is no GPU: then every line says what
would have been checked. Needs no network. Stages run by the first path that this card and this
machine have; the summary says which.
"""

import argparse
import json
import platform
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

from flows.preparation.graphs.examples import example_names
from scripts.gpu.checks import CHECKS, Bench, Skipped
from scripts.gpu.copies import be_a_copy
from scripts.gpu.paths import PATHS, find_path
from triton_backend.contract.errors import InputError, PoolPipeError
from triton_backend.runtimes.cuda import open_cuda

FAILED, NO_GPU = 1, 2
LOAD = "build and load"
PACKAGES = ("numpy", "onnx", "onnxruntime", "tensorrt", "tensorrt-rtx-cu12-bindings", "torch")


def main() -> int:
    """Run the checks asked for; returns the exit code."""
    options = _options()
    if options.copy is not None:
        return be_a_copy(options.copy, options.path, options.work)
    summary: dict[str, Any] = {"model": options.model, "versions": _versions()}
    try:
        cuda = open_cuda()
    except InputError as error:
        print(f"no GPU here, nothing to check: {error}")
        for name in _chosen(options.only):
            what = (CHECKS[name].__doc__ or "").partition("\n")[0]
            print(f"skip   {name}: would check: {what}")
        return _finish({**summary, "gpu": False, "reason": str(error)}, options.json, NO_GPU)
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as scratch:
        work = options.work or Path(scratch)
        work.mkdir(parents=True, exist_ok=True)
        bench = Bench(work=work, model=options.model, quick=options.quick, cuda=cuda)
        bench.path = find_path(work, bench.complaints, options.path)
        results = [_run(name, bench) for name in _chosen(options.only)]
    summary |= {"gpu": True, "path": bench.path.name if bench.path else None, "checks": results}
    failed = any(result["result"] == "fail" for result in results)
    return _finish(summary, options.json, FAILED if failed else 0)


def _chosen(only: str | None) -> list[str]:
    """All checks in order, or the one asked for after the one that loads the model."""
    return [name for name in CHECKS if only in {None, name} or name == LOAD]


def _run(name: str, bench: Bench) -> dict[str, Any]:
    try:
        good, figure = CHECKS[name](bench)
        result = "figure" if good is None else "pass" if good else "fail"
    except Skipped as reason:
        result, figure = "skip", str(reason)
    except (PoolPipeError, ImportError, OSError, RuntimeError, ValueError) as error:
        # One check that breaks must not cost the others: the machine may not be had again soon.
        result, figure = "fail", f"{type(error).__name__}: {error}"
    print(f"{result:6} {name}: {json.dumps(figure, default=float)}", flush=True)
    return {"check": name, "result": result, "figure": figure}


def _finish(summary: dict[str, Any], file: Path | None, code: int) -> int:
    text = json.dumps(summary, default=float)
    if file is not None:
        file.write_text(text + "\n")
    print(text)
    return code


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Check everything that needs a GPU.")
    parser.add_argument("--model", default="resnet50", choices=example_names())
    parser.add_argument("--path", choices=sorted(PATHS), help="run stages this way and no other")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the summary here")
    parser.add_argument("--work", type=Path, metavar="DIR", help="keep models and engines here")
    parser.add_argument("--quick", action="store_true", help="batch 1 and 8 only")
    parser.add_argument("--only", choices=sorted(CHECKS), help="one check alone")
    parser.add_argument("--copy", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
