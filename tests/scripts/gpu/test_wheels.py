"""Wheels that are carried to a bare machine."""

import pytest

from scripts.gpu import wheels
from scripts.gpu.wheels import CHECKS, MIB, ROOT, needed, parcels, read_lock, roots, wheel_bytes


def url(tags: str, size: int) -> dict[str, object]:
    return {"url": f"host/one-1.0-{tags}.whl", "size": size}


@pytest.mark.parametrize(
    ("tags", "fits"),
    [
        ("cp311-cp311-manylinux_2_28_x86_64", True),
        ("cp310-abi3-manylinux_2_17_x86_64.manylinux2014_x86_64", True),
        ("py3-none-any", True),
        ("py2.py3-none-any", True),
        ("cp312-cp312-manylinux_2_28_x86_64", False),
        ("cp311-cp311-manylinux_2_28_aarch64", False),
        ("cp311-cp311-musllinux_1_2_x86_64", False),
        ("cp311-cp311-macosx_11_0_x86_64", False),
    ],
)
def test_only_wheels_of_this_python_on_linux_count(tags: str, *, fits: bool) -> None:
    assert wheel_bytes([{"wheels": [url(tags, 7)]}], "311") == (7 if fits else None)


def test_parcels_hold_every_wheel_once_and_none_is_too_heavy() -> None:
    sizes = {"a": 40, "b": 30, "c": 30, "d": 20, "e": 1}
    found = parcels(sizes, 60)
    assert found == [["a", "d"], ["b", "c"], ["e"]]
    with pytest.raises(ValueError, match="a alone weighs"):
        parcels(sizes, 39)


def test_what_the_checks_need_fits_one_parcel_and_the_kit_some(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lock = read_lock(ROOT / "uv.lock")
    checks = needed(lock, CHECKS)
    assert {"numpy", "protobuf"} <= set(checks)
    sizes = [wheel_bytes(lock[name], "311") for name in checks]
    assert sum(size or 0 for size in sizes) <= 60 * MIB
    every = needed(lock, roots(lock, triton=True))
    assert {"duckdb", "nvidia-pytriton", "nvidia-ml-py", "tritonclient", "grpcio"} <= set(every)
    assert "nvidia-pytriton" not in needed(lock, roots(lock, triton=False))
    assert "tensorrt" not in every
    assert wheels.main([]) == 0
    said = capsys.readouterr().out
    assert "the checks alone: " in said
    assert "without a wheel" not in said
