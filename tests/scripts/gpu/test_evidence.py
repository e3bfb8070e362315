"""The kit for GPU evidence where there is no GPU: by steps of a test, and by CPU cores."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flows.files import read_cluster
from flows.preparation.profiling.pairs import cuts_in_two
from scripts.benchmarks.served import small_plan
from scripts.gpu import evidence, steps
from scripts.gpu.evidence import DONE, FAILED, NOT_RUN, STAND_IN, outcome_of, run_steps
from scripts.gpu.steps import ROOT, Command, Kit, NotRun, Step
from tests.fakes.cuda import HostCuda
from triton_backend.contract.errors import InputError

CARDS = ("NVIDIA L4",)
BARE = """
import sys
for name in ("duckdb", "highspy", "numba", "pynvml", "pytriton", "scipy"):
    sys.modules[name] = None
import scripts.gpu.evidence
"""
CUT_OFF = """
import runpy, sys
from scripts.gpu import steps
def give(kit):
    hang = "import pathlib, sys, time; pathlib.Path(sys.argv[1]).touch(); time.sleep(600)"
    words = (sys.executable, "-c", hang, kit.file("begun"))
    yield steps.Command(words=words)
    yield steps.Command(words=(sys.executable, "-c", ""), out="never")
    yield steps.Command(words=(sys.executable, "-c", ""), out="stopped", always=True)
steps.STEPS = {
    "one": steps.Step(does="a test's", limit_s=400, commands=give),
    "two": steps.Step(does="a test's", limit_s=400, commands=give),
}
sys.argv = ["evidence", "--stand-in", "--work", sys.argv[1]]
runpy.run_module("scripts.gpu.evidence", run_name="__main__")
"""
COUNTING = "import pathlib; p = pathlib.Path({!r}); p.write_text(p.read_text() + 'x')"


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    return Kit(work=tmp_path, stand_in=True)


def python(program: str, *, out: str | None = None, always: bool = False) -> Command:
    return Command(words=(sys.executable, "-c", program), out=out, always=always)


def step(*commands: Command, needs: tuple[str, ...] = (), limit_s: int = 60) -> Step:
    def give(_: Kit) -> Iterator[Command]:
        yield from commands

    return Step(does="a test's", limit_s=limit_s, commands=give, needs=needs)


def without(_: Kit) -> Iterator[Command]:
    raise NotRun("no Triton is here")


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Replaces the steps."""

    def replace(**named: Step) -> None:
        monkeypatch.setattr(evidence, "STEPS", named)

    return replace


def results(kit: Kit, *names: str) -> list[str]:
    return [outcome_of(kit, name).result for name in names]


@pytest.mark.slow
def test_a_step_that_fails_costs_those_that_need_it_and_no_others(
    kit: Kit, given: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    given(
        one=step(python("import sys; sys.exit('no room | on the card')")),
        two=step(python("print(2)"), needs=("one",)),
        three=step(python("print('{}')", out="three.txt")),
        four=Step(does="a test's", limit_s=60, commands=without),
    )
    names = ("one", "two", "three", "four")
    run_steps(kit, names, CARDS)
    assert results(kit, *names) == [FAILED, NOT_RUN, DONE, NOT_RUN]
    assert (kit.work / "three.txt").read_text() == "{}\n"
    assert "no room | on the card" in outcome_of(kit, "one").reason
    assert outcome_of(kit, "two").reason == "needs one"
    assert outcome_of(kit, "four").reason == "no Triton is here"
    assert capsys.readouterr().out.count("\n") == len(names)
    page = evidence.page(kit, [outcome_of(kit, name) for name in names], [])
    assert "Never run on a card: one, two, three, four." in page
    assert "no room / on the card" in page


@pytest.mark.slow
def test_what_is_done_on_the_same_cards_is_not_done_again(
    kit: Kit, given: Callable[..., None]
) -> None:
    count = kit.work / "count"
    count.write_text("")
    given(one=step(python(COUNTING.format(str(count)))))
    for cards, runs in ((CARDS, 1), (CARDS, 1), (("NVIDIA T4",), 2)):
        run_steps(kit, ["one"], cards)
        assert len(count.read_text()) == runs
        assert outcome_of(kit, "one").devices == cards
    (kit.work / "steps" / "one.json").write_text("{cut o")
    run_steps(kit, ["one"], CARDS)
    assert len(count.read_text()) == 3


@pytest.mark.slow
def test_a_hang_ends_at_the_limit_with_what_it_started_and_the_way_back_runs(
    kit: Kit, given: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence, "KILLED_SECONDS", 0.5)
    given(
        one=step(
            python("import time; time.sleep(600)"),
            python("print('never')", out="never"),
            python("print('stopped')", out="stopped", always=True),
            limit_s=1,
        )
    )
    run_steps(kit, ["one"], CARDS)
    assert outcome_of(kit, "one").result == FAILED
    assert "took longer than" in outcome_of(kit, "one").reason
    assert (kit.work / "stopped").exists()
    assert not (kit.work / "never").exists()


@pytest.mark.slow
def test_what_a_step_needs_and_is_done_again_makes_it_run_again(
    kit: Kit, given: Callable[..., None]
) -> None:
    counts = [kit.work / name for name in ("first", "second")]
    for count in counts:
        count.write_text("")
    one, two = (python(COUNTING.format(str(count))) for count in counts)
    given(one=step(one), two=step(two, needs=("one",)))
    run_steps(kit, ["one", "two"], CARDS)
    (kit.work / "steps" / "one.json").unlink()
    run_steps(kit, ["one"], CARDS)
    assert evidence.shown(kit, "two", CARDS).result == NOT_RUN
    run_steps(kit, ["one", "two"], CARDS)
    assert [len(count.read_text()) for count in counts] == [2, 2]
    run_steps(kit, ["two"], ("NVIDIA T4",))
    assert outcome_of(kit, "two").reason == "needs one"


def test_figures_of_other_cards_are_none_of_these(kit: Kit, given: Callable[..., None]) -> None:
    given(simulate=step(), serve=step(), rival=step())
    run_steps(kit, ["simulate", "serve", "rival"], (STAND_IN,))
    for file in ("simulated", "simulated-rival", "served", "served-rival"):
        for load in steps.LOADS:
            seen = {"models": {"m": {"attainment": 0.9}}}
            (kit.work / f"{file}-{load}.json").write_text(json.dumps(seen))
    assert {one.value for one in evidence.figures_of(kit, (STAND_IN,))} == {0.9}
    assert {one.value for one in evidence.figures_of(kit, CARDS)} == {None}
    on_cards = Kit(work=kit.work, stand_in=False)
    outcomes = [evidence.shown(on_cards, name, CARDS) for name in ("simulate", "serve")]
    page = evidence.page(on_cards, outcomes, [])
    assert "Never run on a card: simulate, serve." in page
    assert "Taken on: nothing." in page


@pytest.mark.slow
def test_a_run_that_is_cut_off_ends_what_it_started_and_writes_its_page(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CUT_OFF, str(tmp_path)]
    run = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        while not (tmp_path / "begun").exists() and run.poll() is None:
            time.sleep(0.05)
        run.terminate()
        _, errors = run.communicate(timeout=60)
    finally:
        run.kill()
    assert (run.returncode, errors) == (evidence.INTERRUPTED, b"")
    assert (tmp_path / "stopped").exists()
    assert not (tmp_path / "never").exists()
    page = (tmp_path / "evidence.md").read_text()
    assert "| one | a test's | not run: interrupted |" in page
    assert "| two | a test's | not run: not asked for |" in page


@pytest.mark.slow
def test_it_starts_where_only_what_the_checks_need_is_installed() -> None:
    command = [sys.executable, "-c", BARE]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_a_card_without_an_inventory_is_one_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_library() -> None:
        raise InputError("devices", "nvidia-ml-py is not installed")

    monkeypatch.setattr(evidence, "list_devices", without_library)
    monkeypatch.setattr(evidence, "open_cuda", HostCuda)
    names, inventory = evidence.cards()
    assert names == (f"compute capability {HostCuda().compute_capability()}",)
    assert "nvidia-ml-py is not installed" in inventory[0]["no_inventory"]


def test_pairs_on_a_card_are_those_of_its_engines_on_two_parts(tmp_path: Path) -> None:
    cluster = {
        "gpu_classes": {"L4": {"memory_gib": 24, "vgpu_divisors": [1, 2]}, "T4": {}},
        "nodes": [
            {"count": 1, "gpu_class": name, "gpus": 1, "nic_gbps": 10, "devices": [device]}
            for name, device in (("L4", "GPU-1"), ("T4", "GPU-2"))
        ],
    }
    (tmp_path / "cluster.yaml").write_text(json.dumps(cluster))
    (command,) = steps.STEPS["pairs"].commands(Kit(work=tmp_path, stand_in=False))
    words = str(command).split()
    assert {"--pairs", "tensorrt", "L4=GPU-1"} <= set(words)
    assert "T4=GPU-2" not in words
    parts = read_cluster(tmp_path / "parts.yaml")
    assert [each.name for each in parts.gpu_classes] == ["L4"]
    assert cuts_in_two(parts.gpu_class("L4")) == [(120, 180)]


@pytest.mark.parametrize("name", ["serve", "rival"])
def test_a_plan_without_engines_is_not_served_as_one_of_a_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:

    def there(_: str) -> bool:
        return True

    monkeypatch.setattr(steps, "find_spec", there)  # Triton is there
    plan = small_plan("emulated").to_dict()
    for file in steps.PLANS:
        (tmp_path / f"served-{file}").write_text(json.dumps(plan))
    with pytest.raises(NotRun, match="have no engine, and would be emulated"):
        list(steps.STEPS[name].commands(Kit(work=tmp_path, stand_in=False)))


def test_engines_of_both_plans_are_built_on_a_card(tmp_path: Path) -> None:
    built = [
        str(one) for one in steps.STEPS["engines"].commands(Kit(work=tmp_path, stand_in=False))
    ]
    for text, name in zip(built, steps.PLANS, strict=True):
        assert text.startswith(f"poolpipe engines {tmp_path / name}")
        assert text.endswith(f"served-{name}")


def test_without_a_card_it_says_so_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["evidence", "--work", str(tmp_path / "kit")])
    assert evidence.main() == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "--stand-in tries the kit without a card" in said
    assert not (tmp_path / "kit").exists()


def test_no_step_may_take_more_than_eight_minutes_and_all_no_more_than_25(tmp_path: Path) -> None:
    for stand_in in (False, True):
        kit = Kit(work=tmp_path, stand_in=stand_in)
        assert max(kit.limit_s(one) for one in steps.STEPS.values()) <= 480
    assert sum(one.limit_s for one in steps.STEPS.values()) <= 25 * 60
    known: set[str] = set()
    for name, one in steps.STEPS.items():
        assert set(one.needs) <= known
        known.add(name)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_cpu_cores_stand_in_for_cards_in_every_step_and_the_page_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "LOADS", loads := (0.3,))
    monkeypatch.setattr(evidence, "LOADS", loads)
    monkeypatch.setattr(steps, "LOAD_SECONDS", 3)
    monkeypatch.setattr(steps, "BLOCKS", 2)
    monkeypatch.setattr(steps, "MAX_BATCH", 2)
    monkeypatch.setattr(steps, "BATCHES", (1, 2))
    monkeypatch.setattr(steps, "CELL_SECONDS", "0.02")
    command = ["evidence", "--stand-in", "--work", str(tmp_path), "--out", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", command)
    assert evidence.main() == 1  # the checks are of a card
    kept = json.loads((tmp_path / "out").read_text())
    assert kept["benchmark"] == "gpu-evidence-stand-in"
    ended = {one["step"]: (one["result"], one["reason"]) for one in kept["steps"]}
    assert ended.pop("checks") == (NOT_RUN, "there is no card here")
    assert set(ended.values()) == {(DONE, "")}
    values = [figure["value"] for figure in kept["figures"]]
    assert len(values) == 4
    assert all(0.5 < value <= 1 for value in values)
    page = (tmp_path / "evidence.md").read_text()
    assert f"Taken on: {STAND_IN}." in page
    assert all(name in page.partition("Never run on a card:")[2] for name in steps.STEPS)
