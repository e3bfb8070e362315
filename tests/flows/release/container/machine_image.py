"""An image made from this machine alone: its interpreter, packages, tools and PyTriton's server.

It stands for a stock Triton image, laid out as one (`/opt/tritonserver`, `python3` on `PATH`), and
has what the online half imports. Nothing is downloaded, and no host folder is mounted.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.metadata import distribution, requires
from importlib.util import cache_from_source
from pathlib import Path
from typing import IO

from tests.repository.files import ROOT
from triton_backend.serving.server.command import lay_out_backends, wheel_folder

SERVER_ROOT = Path("/opt/tritonserver")
PACKAGES = ("jinja2", "numba", "numpy", "onnxruntime")  # as the example Dockerfile installs
OWN = ("triton_backend", "model_repo_templates")
TOOLS = ["bash", "cat", "chmod", "chown", "cp", "dirname", "env", "ln", "ls", "mkdir", "rm"]
UNUSED = {"site-packages", "dist-packages", "test", "idlelib", "tkinter", "ensurepip", "lib2to3"}
BLOCK_BYTES = 1 << 20
LINKED = ("bin", "lib", "lib64", "sbin")  # of a merged /usr
_PATH = re.compile(r"(?:=> )?(/\S+) \(0x")


@cache
def base_paths() -> dict[str, str]:
    """Where the interpreter under the virtual environment has its parts."""
    code = (
        "import json, sys, sysconfig as s; print(json.dumps({'prefix': sys.prefix,"
        " 'python': sys.executable, 'libraries': s.get_config_var('LIBDIR'),"
        " **{k: s.get_path(k) for k in ('stdlib', 'purelib')}}))"
    )
    base = getattr(sys, "_base_executable", sys.executable)
    return json.loads(subprocess.run([base, "-c", code], check=True, capture_output=True).stdout)


def image_environment() -> dict[str, str]:
    """Variables that the image has."""
    base = base_paths()
    return {
        "PATH": f"{Path(base['python']).parent}:/usr/bin",
        "LD_LIBRARY_PATH": base["libraries"],
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def write_root(stream: IO[bytes], scratch: Path) -> None:
    """Write the root folder as a tar file."""
    base = base_paths()
    sources = {**_interpreter(base), **_packages(Path(base["purelib"])), **_server(scratch)}
    sources |= _libraries(sources.values()) | _bytecode(sources)
    with tarfile.open(fileobj=stream, mode="w|", bufsize=BLOCK_BYTES) as archive:
        for folder in ("dev", "etc", "proc", "run", "sys", "tmp", "var/lib"):
            _add_folder(archive, folder)
        for name in LINKED:
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, f"usr/{name}"
            archive.addfile(link)
        for target, source in sorted(sources.items()):
            archive.add(source, str(target).lstrip("/"), filter=_of_root)


def kernels_of_this_checkout(target: Path) -> None:
    """Compiled kernels as numba looks for them in the image; where none fit it compiles again."""
    package = Path(base_paths()["purelib"])
    for name in OWN:
        for folder in (ROOT / name).rglob("__pycache__"):
            cached = [*folder.glob("*.nb[ic]")]
            there = package / folder.parent.relative_to(ROOT)
            place = f"{there.name}_{hashlib.sha1(str(there).encode()).hexdigest()}"
            for file in cached:
                (target / place).mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, target / place / file.name)


def _of_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Owned by root, and open to the user that pods run as."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    entry.mode |= 0o444 | (0o111 if entry.isdir() or entry.mode & 0o100 else 0)
    return entry


def _add_folder(archive: tarfile.TarFile, name: str) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
    archive.addfile(entry)


def _files(folder: Path, *, without: Iterable[str] = ()) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders[:] = [f for f in folders if f not in without and not f.startswith("config-")]
        yield from (Path(place) / name for name in names)


def _interpreter(base: dict[str, str]) -> dict[Path, Path]:
    python = Path(base["python"])
    found = {
        file: file.resolve()
        for file in _files(Path(base["stdlib"]), without=UNUSED)
        if ".opt-" not in file.name
    }
    found |= {python.with_name("python3"): python.resolve()}
    for file in Path(base["libraries"]).glob("libpython3.*.so.*"):
        found[file] = file.resolve()
    for tool in TOOLS:
        found[Path("/usr/bin") / tool] = Path(str(shutil.which(tool))).resolve()
    return found | {Path("/usr/bin/sh"): Path("/bin/bash").resolve()}


def _packages(purelib: Path) -> dict[Path, Path]:
    found: dict[Path, Path] = {}
    names, known = list(PACKAGES), set[str]()
    while names:
        name = names.pop()
        if name in known:
            continue
        known.add(name)
        for file in distribution(name).files or ():
            source = Path(str(file.locate()))
            if ".." not in file.parts and source.is_file():
                found[purelib / file] = source
        needed = [one for one in requires(name) or () if "extra ==" not in one]
        names += [named[0] for one in needed if (named := re.match(r"[\w.-]+", one))]
    for name in OWN:
        for file in _files(ROOT / name, without={"__pycache__"}):
            found[purelib / file.relative_to(ROOT)] = file
    libraries = wheel_folder().parent / "nvidia_pytriton.libs"
    wanted = (f for f in _files(libraries) if not f.name.startswith("libpython"))
    return found | {purelib / libraries.name / f.name: f for f in wanted}


def _server(scratch: Path) -> dict[Path, Path]:
    """The wheel's server where a stock image has its own."""
    lay_out_backends(scratch)
    found = {
        SERVER_ROOT / file.relative_to(scratch): file.resolve()
        for file in _files(scratch / "backends")
    }
    server = wheel_folder() / "tritonserver" / "bin"
    return found | {SERVER_ROOT / "bin" / file.name: file for file in _files(server)}


def _bytecode(sources: Mapping[Path, Path]) -> dict[Path, Path]:
    """Compiled modules, which fit the times of their sources: imports take a third of the time."""
    found: dict[Path, Path] = {}
    for target, source in sources.items():
        if source.suffix == ".py":
            compiled = Path(cache_from_source(str(source)))
            if compiled.is_file():
                found[target.parent / "__pycache__" / compiled.name] = compiled
    return found


def _libraries(sources: Iterable[Path]) -> dict[Path, Path]:
    """Libraries of the system that any of the files needs, where the loader looks for them."""
    files = [str(f) for f in sources if ".so" in f.name or os.access(f, os.X_OK)]
    text = subprocess.run(["ldd", *files], capture_output=True, text=True, check=False).stdout
    found: dict[Path, Path] = {}
    for line in set(text.splitlines()):
        match = _PATH.search(line)
        if match and not match[1].startswith((str(ROOT), sys.prefix)):
            path = Path(match[1])
            found[Path(os.path.realpath(path.parent)) / path.name] = path.resolve()
    return found
