"""Everything that needs GPUs, in one go: the first thing to run wherever there is a card.

    python -m scripts.gpu.evidence --work DIR [--only STEP] [--again] [--list]
                                   [--stand-in] [--out FILE.json]

Checks, engines, profiles of equal parts (MPS), pairs on unequal parts, a plan, and that plan served
beside whole models behind Triton's own batcher, tuned, under the same load. Each step runs in
processes of its own with a time limit of at most eight minutes; the limits add up to 25 minutes. A
step that breaks costs those alone that need it. DIR keeps what steps leave, a log of each, and
`evidence.md`, the page. A run that was cut off goes on in the same DIR: what is done there on the
same cards, after all that it needs, is not done again (`--again`: all of it). Ctrl-C ends the step
under way with what it started, and the page is still written.

`--stand-in` tries the kit without a card: CPU cores stand in, with longer limits, and every page
and figure says so.
Needs no network. Exit code 0 where every step is done, 1 where one failed or was not run, 2 on
wrong input, 130 after Ctrl-C.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from flows.clock import Stopwatch, now_utc
from flows.preparation.profiling.devices import list_devices
from scripts.benchmarks.figures import Figure, add_destinations, conclude
from scripts.gpu.steps import LOADS, ROOT, STEPS, Command, Kit, NotRun, Step
from triton_backend.contract.errors import InputError, PoolPipeError
from triton_backend.runtimes.cuda import open_cuda

DONE, FAILED, NOT_RUN = "done", "failed", "not run"
STAND_IN = "CPU cores (stand-in)"
KILLED_SECONDS = 10.0
WAY_BACK_SECONDS = 30.0  # left to what runs after a failure too
INTERRUPTED = 130
PACKAGES = ("onnx", "tensorrt", "torch", "onnxruntime-gpu", "nvidia-ml-py")
UNLIKE = "two unlike cards"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a step ended.

    Attributes:
        step: its name.
        result: `done`, `failed` or `not run`.
        reason: why it is not done; empty where it is.
        seconds: how long it took.
        devices: the cards it ran on.
        at: when it ended.
    """

    step: str
    result: str
    reason: str = ""
    seconds: float = 0.0
    devices: tuple[str, ...] = ()
    at: str = ""

    @classmethod
    def read(cls, kit: Kit, step: str) -> "Outcome | None":
        """As the kit's folder has it; None where the step never ended."""
        try:
            data = json.loads(_file(kit, step).read_text())
            return cls(**data | {"devices": tuple(data["devices"])})
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def write(self, kit: Kit) -> None:
        """Write it into the kit's folder."""
        _file(kit, self.step).write_text(json.dumps(asdict(self)) + "\n")


def _file(kit: Kit, step: str) -> Path:
    return kit.work / "steps" / f"{step}.json"


def outcome_of(kit: Kit, step: str) -> Outcome:
    """How a step ended the last time."""
    return Outcome.read(kit, step) or Outcome(step=step, result=NOT_RUN, reason="not asked for")


def stands(kit: Kit, step: str, devices: tuple[str, ...]) -> bool:
    """True for a step that is done on these devices, and after all that it needs."""
    one = outcome_of(kit, step)
    return (one.result, one.devices) == (DONE, devices) and all(
        stands(kit, need, devices) and outcome_of(kit, need).at <= one.at
        for need in STEPS[step].needs
    )


def shown(kit: Kit, step: str, devices: tuple[str, ...]) -> Outcome:
    """How a step ended, as far as that says something of these devices."""
    one = outcome_of(kit, step)
    if one.devices not in {(), devices}:
        return Outcome(step=step, result=NOT_RUN, reason="it last ran on other cards")
    if one.result == DONE and not stands(kit, step, devices):
        return replace(one, result=NOT_RUN, reason="done before what it needs was done again")
    return one


def run_steps(kit: Kit, names: Sequence[str], devices: tuple[str, ...]) -> None:
    """Run steps in order, but for those that are done on these devices; keep how each ended."""
    (kit.work / "steps").mkdir(parents=True, exist_ok=True)
    for name in names:
        one = outcome_of(kit, name)
        if not stands(kit, name, devices):
            half = Outcome(step=name, result=NOT_RUN, reason="interrupted", devices=devices)
            half.write(kit)  # stays where this process is killed
            one = run_step(kit, name, STEPS[name], devices)
            one.write(kit)
        print(f"{one.result:8} {name}: {one.reason or f'{one.seconds:.0f} s'}", flush=True)


def run_step(kit: Kit, name: str, step: Step, devices: tuple[str, ...]) -> Outcome:
    """Run the commands of a step, within its time."""
    watch = Stopwatch()

    def ended(result: str, reason: str = "") -> Outcome:
        return Outcome(
            step=name,
            result=result,
            reason=" ".join(reason.split()),
            seconds=round(watch.seconds(), 1),
            devices=devices,
            at=now_utc().isoformat(timespec="milliseconds"),
        )

    lacking = [each for each in step.needs if not stands(kit, each, devices)]
    if lacking:
        return ended(NOT_RUN, f"needs {' and '.join(lacking)}")
    reason = ""
    try:
        with (kit.work / "steps" / f"{name}.log").open("wb") as log:
            commands = step.commands(kit)
            try:
                for command in commands:
                    if not reason or command.always:
                        least_s = WAY_BACK_SECONDS if command.always else 0.0
                        left_s = max(kit.limit_s(step) - watch.seconds(), least_s)
                        reason = run_command(kit, command, log, left_s) or reason
            except KeyboardInterrupt:
                for command in commands:
                    if command.always:
                        run_command(kit, command, log, WAY_BACK_SECONDS)
                raise
    except NotRun as error:
        return ended(NOT_RUN, str(error))
    except (PoolPipeError, ImportError, OSError, ValueError, KeyError, TypeError) as error:
        return ended(FAILED, f"{type(error).__name__}: {error}")
    return ended(FAILED, reason) if reason else ended(DONE)


def run_command(kit: Kit, command: Command, log: Any, limit_s: float) -> str:
    """Run one command; why it did not end well, or nothing."""
    log.write(f"$ {command}\n".encode())
    log.flush()
    out = (kit.work / command.out).open("wb") if command.out else None
    process = subprocess.Popen(
        command.words,
        cwd=ROOT,
        env=kit.environment,
        stdin=subprocess.DEVNULL,
        stdout=out or log,
        stderr=log,
        start_new_session=True,
    )
    try:
        code = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return f"{_named(command)} took longer than the {limit_s:.0f} s left"
    finally:
        _end(process)
        if out is not None:
            out.close()
    return f"{_named(command)} ended with {code}: {_last_line(Path(log.name))}" if code else ""


def _named(command: Command) -> str:
    return " ".join(str(command).split()[:3])


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End a command that still runs, with what it started."""
    if process.poll() is not None:
        return
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(KILLED_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else "it said nothing"


def figures_of(kit: Kit, devices: tuple[str, ...]) -> list[Figure]:
    """Attainment of the plan and of whole models, simulated and served, at each load.

    Without a value where the step that measures it is not done on these devices.
    """
    found: list[Figure] = []
    served = {"": "serve", "-rival": "rival"}
    for load in LOADS:
        for side, file in (("the plan", ""), ("whole models", "-rival")):
            for how in ("simulated", "served"):
                step = served[file] if how == "served" else "simulate"
                there = stands(kit, step, devices)
                seen = kit.json(f"{how}{file}-{load}.json") if there else None
                models: Mapping[str, Any] = {} if seen is None else seen["models"]
                least = min((each["attainment"] for each in models.values()), default=None)
                name = f"{side}, {how}: least attainment of a model at load {load}"
                found.append(Figure(name=name, value=least))
    return found


def page(kit: Kit, outcomes: Sequence[Outcome], figures: Sequence[Figure]) -> str:
    """The page of a run, in Markdown."""
    devices = sorted({device for one in outcomes for device in one.devices})
    never = [one.step for one in outcomes if one.result != DONE or kit.stand_in]
    lines = [
        "# Evidence",
        "",
        f"Taken on: {', '.join(devices) or 'nothing'}.",
        f"Never run on a card: {', '.join(never) or 'none of the steps'}.",
        "",
        "| step | what | result | seconds |",
        "| --- | --- | --- | --- |",
    ]
    for one in outcomes:
        does = STEPS[one.step].does if one.step in STEPS else "serve a plan over both"
        said = one.result + (f": {one.reason}" if one.reason else "")
        lines.append(f"| {one.step} | {does} | {said.replace('|', '/')} | {one.seconds:g} |")
    lines += ["", "| figure | value |", "| --- | --- |"]
    for figure in figures:
        value = "not measured" if figure.value is None else f"{figure.value:.2%}"
        lines.append(f"| {figure.name} | {value} |")
    return "\n".join(lines) + "\n"


def unlike(kit: Kit, devices: tuple[str, ...]) -> Outcome:
    """The outcome of a plan that is served over two classes of card."""
    path = kit.work / "cluster.yaml"
    classes = yaml.safe_load(path.read_text())["gpu_classes"] if path.exists() else {}
    if len(classes) > 1 and stands(kit, "serve", devices):
        return Outcome(step=UNLIKE, result=DONE, devices=devices)
    reason = "nothing was served" if len(classes) > 1 else f"{len(classes)} class of card is here"
    return Outcome(step=UNLIKE, result=NOT_RUN, reason=reason, devices=devices)


def cards() -> tuple[tuple[str, ...], list[dict[str, Any]]]:
    """This machine's cards: their names, and what the driver says of each.

    Raises:
        InputError: there is none.
    """
    try:
        found = list_devices()
    except InputError as error:
        # A card without NVIDIA's management library can still be checked.
        capability = open_cuda().compute_capability()
        return (f"compute capability {capability}",), [{"no_inventory": str(error)}]
    return tuple(one.name for one in found), [one.to_dict() for one in found]


def _packages() -> dict[str, str]:
    """Versions of the packages that only a machine with a card has, those installed."""
    found: dict[str, str] = {}
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def main() -> int:
    """Run the steps asked for; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, metavar="DIR", help="keep everything here")
    parser.add_argument("--only", choices=list(STEPS), help="this step alone")
    parser.add_argument("--again", action="store_true", help="do again what is done")
    parser.add_argument("--list", action="store_true", help="name the steps and end")
    parser.add_argument("--stand-in", action="store_true", help="CPU cores in place of cards")
    add_destinations(parser)
    asked = parser.parse_args()
    if asked.list:
        for name, step in STEPS.items():
            print(f"{name:9} {step.limit_s:4} s at most  {step.does}")
        return 0
    if asked.work is None:
        parser.error("--work DIR is required")
    try:
        found, inventory = ((STAND_IN,), []) if asked.stand_in else cards()
    except InputError as error:
        print(f"evidence: {error}; --stand-in tries the kit without a card", file=sys.stderr)
        return 2
    kit = Kit(work=asked.work.resolve(), stand_in=asked.stand_in)
    names = [asked.only] if asked.only else list(STEPS)
    for name in names if asked.again else ():
        _file(kit, name).unlink(missing_ok=True)
    code = 0
    try:
        run_steps(kit, names, found)
    except KeyboardInterrupt:
        code = INTERRUPTED
    outcomes = [*(shown(kit, name, found) for name in STEPS), unlike(kit, found)]
    figures = figures_of(kit, found)
    (kit.work / "evidence.md").write_text(page(kit, outcomes, figures))
    details: dict[str, Any] = {
        "cards": inventory,
        "card_packages": _packages(),
        "steps": [asdict(one) for one in outcomes],
        "checks": kit.json("check.json") if outcomes[0].result in {DONE, FAILED} else None,
    }
    name = "gpu-evidence-stand-in" if kit.stand_in else "gpu-evidence"
    conclude(asked, name, figures, details)
    print(f"the page: {kit.work / 'evidence.md'}")
    return code or int(any(one.result != DONE for one in outcomes))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a time limit's end, as Ctrl-C
    sys.exit(main())
