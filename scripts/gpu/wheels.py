"""Which wheels the kit for evidence needs on a bare machine, and how much they weigh.

    python -m scripts.gpu.wheels [--python 311] [--without-triton] [--most-mib 60]

Sizes are those of the lock file, for Linux on x86-64. A machine may take no more than 64 MiB at a
time, the tree among it, so the wheels are divided among parcels that leave room for it: they are
carried one after the other, since what was installed stays. `--without-triton`: the steps `serve`
and `rival` are then not run. TensorRT (over 1 GiB) and the driver must be there.
"""

import argparse
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SELF = "poolpipe"
CHECKS = ("numpy", "onnx", "onnx-graphsurgeon", "onnxruntime")
EXTRAS = ("gpu",)
TRITON = "local"  # the extra that brings it
ELSEWHERE = re.compile(r"win32|darwin|emscripten|pypy|aarch64'$")
MIB = 2**20


def read_lock(path: Path) -> dict[str, list[dict[str, Any]]]:
    """The packages of a lock file, by name; several where Pythons differ."""
    found: dict[str, list[dict[str, Any]]] = {}
    for package in tomllib.loads(path.read_text())["package"]:
        found.setdefault(package["name"], []).append(package)
    return found


def wheel_bytes(packages: Sequence[Mapping[str, Any]], python: str) -> int | None:
    """Size of the smallest wheel that this Python takes on Linux; None where there is none."""
    tags = f"cp{python}-cp{python}|cp3\\d+-abi3|(?:cp{python}|py3|py2\\.py3)-none"
    fits = re.compile(rf"-(?:{tags})-(?:any|\S*manylinux\S*x86_64)\.whl$")
    wheels = [wheel for package in packages for wheel in package.get("wheels", ())]
    return min((int(one["size"]) for one in wheels if fits.search(one["url"])), default=None)


def needed(lock: Mapping[str, list[dict[str, Any]]], names: Sequence[str]) -> list[str]:
    """Packages and all that they need on Linux, in order of name."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        for package in lock[name]:
            waiting += [*_named(package.get("dependencies", ()), lock)]
    return sorted(found - {SELF})


def _named(
    dependencies: Sequence[Mapping[str, Any]], lock: Mapping[str, list[dict[str, Any]]]
) -> Iterator[str]:
    """The names of dependencies and of what their extras bring."""
    for each in dependencies:
        if ELSEWHERE.search(each.get("marker", "")):
            continue
        yield each["name"]
        for package in lock[each["name"]]:
            for extra in each.get("extra", ()):
                more = package.get("optional-dependencies", {}).get(extra, ())
                yield from _named(more, lock)


def roots(lock: Mapping[str, list[dict[str, Any]]], *, triton: bool) -> list[str]:
    """All that the whole kit imports: the project's own dependencies, with GPUs' and Triton's."""
    (package,) = lock[SELF]
    extras = package["optional-dependencies"]
    asked = (*EXTRAS, TRITON) if triton else EXTRAS
    given = [*package["dependencies"], *(one for name in asked for one in extras[name])]
    return list(_named(given, lock))


def parcels(sizes: Mapping[str, int], most: int) -> list[list[str]]:
    """Wheels in parcels of at most so many bytes, the heaviest first where they fit.

    Raises:
        ValueError: one wheel alone is heavier.
    """
    found: list[list[str]] = []
    for name in sorted(sizes, key=lambda each: (-sizes[each], each)):
        if sizes[name] > most:
            raise ValueError(f"{name} alone weighs {sizes[name] / MIB:.1f} MiB")
        for parcel in found:
            if sum(map(sizes.__getitem__, parcel)) + sizes[name] <= most:
                parcel.append(name)
                break
        else:
            found.append([name])
    return found


def main(arguments: Sequence[str]) -> int:
    """Print the parcels; 1 where a wheel fits none."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", default="311", metavar="VERSION", help="311 is 3.11")
    parser.add_argument("--without-triton", action="store_true")
    parser.add_argument("--most-mib", type=float, default=60.0, help="of a parcel")
    asked = parser.parse_args(arguments)
    lock = read_lock(ROOT / "uv.lock")
    for what, names in (
        ("the checks alone", CHECKS),
        ("all steps", roots(lock, triton=not asked.without_triton)),
    ):
        known = {name: wheel_bytes(lock[name], asked.python) for name in needed(lock, names)}
        sizes = {name: size for name, size in known.items() if size is not None}
        try:
            found = parcels(sizes, round(asked.most_mib * MIB))
        except ValueError as error:
            print(f"wheels: {error}", file=sys.stderr)
            return 1
        total = sum(sizes.values()) / MIB
        print(f"{what}: {total:.1f} MiB in {len(sizes)} wheels, {len(found)} parcels")
        for number, parcel in enumerate(found, 1):
            weight = sum(map(sizes.__getitem__, parcel)) / MIB
            print(f"  {number}: {weight:5.1f} MiB  {' '.join(parcel)}")
        if lacking := sorted(name for name, size in known.items() if size is None):
            print(f"  without a wheel here: {' '.join(lacking)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
