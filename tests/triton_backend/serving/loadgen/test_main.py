"""Bad input on the command line: one line on stderr and exit code 2."""

import json
from pathlib import Path

import pytest

from tests.fakes.plans import two_stages
from triton_backend.serving.loadgen.__main__ import main
from triton_backend.serving.loadgen.options import pairs


def test_a_missing_plan_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--plan", str(tmp_path / "none.json")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "none.json: cannot be read as a plan" in error


@pytest.mark.parametrize("arguments", [["--duration", "0"], ["--rate", "-1"], ["--protocol", "x"]])
def test_options_out_of_range_are_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--plan", "p", *arguments])
    assert stop.value.code == 2


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--check", "zz=no.npz"], "no model 'zz'"),
        (["--check", "m0=no.npz"], "--check m0: no.npz: no such file"),
        (["--records", "."], "--records: .: cannot be written"),
        (["--records", "none/r.npz"], "--records: none/r.npz: cannot be written"),
        (["--url", "127.0.0.1"], "--url: '127.0.0.1' is not host:port"),
        (["--url", "h:99999", "--protocol", "http"], "--url: 'h:99999' is not host:port"),
        (["--url", "http://h:8000"], "--url: 'http://h:8000' is not host:port"),
        (["--cert", "c.pem"], "--cert and --key: need --ca"),
        (["--ca", "a.pem", "--key", "k.pem"], "--cert and --key: one needs the other"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_sent(
    arguments: list[str],
    complaint: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(two_stages().to_dict()))
    nobody = ["--plan", str(path), "--url", "127.0.0.1:9", "--connect-s", "60"]
    assert main([*nobody, *arguments]) == 2
    error = capsys.readouterr().err
    assert complaint in error
    assert error.count("\n") == 1
    assert main([*nobody, *arguments, "--json"]) == 2
    told = json.loads(capsys.readouterr().out)
    assert complaint in f"{told['where']}: {told['reason']}"


@pytest.mark.parametrize("texts", [["a"], ["=b"], ["a="], ["a=b", "a=c"]])
def test_pairs_must_be_pairs(texts: list[str]) -> None:
    with pytest.raises(Exception, match="NAME=VALUE"):
        pairs("--map", texts)
