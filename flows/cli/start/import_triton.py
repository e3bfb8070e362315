"""`import-triton`: a first plan from a Triton model repository that was tuned by hand."""

import shlex
import shutil
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.cli.console import note, notes, print_json, progress, show, table
from flows.cli.registry import command
from flows.cli.shared_options import WAREHOUSE, AsJson, WarehouseFile, pairs, rates

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    from flows.operations.adoption.repository import Objectives
    from flows.operations.adoption.taken import Taken
    from flows.preparation.triton_repository.repository import Found
    from flows.workspace import Workspace
    from triton_backend.contract.plan import Plan

ASSUMED_MS = 1_000.0
PLANNING_S = 20.0


@dataclass(frozen=True, kw_only=True)
class Promises:
    """SLOs and rates of what is imported."""

    slo_ms: Annotated[
        float | None,
        typer.Option(
            metavar="MS",
            min=0.001,
            max=1e9,
            help="SLO of every model whose config.pbtxt has no default timeout; 1000 by default.",
        ),
    ] = None
    slo: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=MS", help="SLO of one model or ensemble; repeat it."),
    ] = None
    rate: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=RPS",
            help="Requests per second of one model or ensemble; repeat it. With a rate for every "
            "one the plan takes the fewest GPUs.",
        ),
    ] = None

    def objectives(self) -> "Objectives":
        """In µs and requests/s.

        Raises:
            InputError: a text is not NAME=NUMBER.
        """
        from flows.operations.adoption.repository import Objectives
        from triton_backend.contract.units import ms_to_us

        assumed_ms = ASSUMED_MS if self.slo_ms is None else self.slo_ms
        own_us = {name: ms_to_us(ms) for name, ms in rates("--slo", self.slo).items()}
        return Objectives(
            slo_us={"*": ms_to_us(assumed_ms)} | own_us, rate_rps=rates("--rate", self.rate)
        )


@command(
    "import-triton",
    "poolpipe import-triton models --slo-ms 100",
    "poolpipe import-triton models --slo-ms 100 --slo ranker=40 --rate ranker=300",
)
def import_triton(
    repository: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Triton's model repository; only read.")
    ],
    *,
    promises: Promises,
    cluster: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The cluster.yaml to plan for; by default one of this machine is written.",
        ),
    ] = None,
    taken: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=GPUS[:GIB]",
            help="GPUs that a model left beside the plan holds, such as 0,1, or none; with :16 it "
            "holds 16 GiB of each. By default the GPUs of its instance groups, whole. Repeat it.",
        ),
    ] = None,
    blocks: Annotated[
        int, typer.Option(metavar="N", min=1, help="Number of blocks to cut each model into.")
    ] = 10,
    output: Annotated[
        Path,
        typer.Option("-o", "--output", metavar="FOLDER", help="Folder for the written files."),
    ] = Path(),
    plan: Annotated[
        bool,
        typer.Option(
            "--plan/--no-plan",
            help="Profile and plan too, where all classes of the cluster run in onnxruntime here.",
        ),
    ] = True,
    as_json: AsJson = False,
    warehouse: WarehouseFile = WAREHOUSE,
) -> None:
    """Read a Triton model repository and plan what can be planned.

    ONNX models are split, ensembles become applications, other models are left beside the plan,
    each with its reason. Writes cluster.yaml and workload.yaml, and shows the GPUs of today beside
    the planned ones. Nothing in the repository changes.
    """
    import yaml

    from flows.files import write_text
    from flows.operations.adoption.repository import split_models, workload_of
    from flows.operations.adoption.taken import parse_taken
    from flows.workspace import workspace
    from triton_backend.contract.errors import InputError

    objectives = promises.objectives()
    cluster_file, workload_file = output / "cluster.yaml", output / "workload.yaml"
    work = workspace(warehouse)
    _check_apart(repository, (output, work.state.home, work.warehouse))
    stated = parse_taken(pairs("--taken", taken))
    for file in (workload_file, cluster_file):
        _check_new(file, wanted=file == workload_file or cluster is None)
    found = _found(repository, cluster, stated, objectives)
    with _whole(output):
        try:
            output.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(str(output), f"cannot be made: {error.strerror}") from error
        with progress("splitting") as report:
            found = split_models(work, found, blocks=blocks, output=output, report=report)
        document = workload_of(found, objectives)
        write_text(workload_file, yaml.safe_dump(document, sort_keys=False))
        cluster_file = _written_cluster(cluster, cluster_file, found, stated)
        unsaid = [f.name for f in found if f.kind != "beside" and not f.timeout_us]
        if promises.slo_ms is None and any(name not in objectives.slo_us for name in unsaid):
            note(f"SLO: {ASSUMED_MS:g} ms is assumed; --slo-ms and --slo say others")
        made = _planned(work, (cluster_file, workload_file), document, found) if plan else None
    if as_json:
        print_json(_document(found, made, (cluster_file, workload_file)))
        return
    _show(found, made, (cluster_file, workload_file), repository)


@contextmanager
def _whole(output: Path) -> "Generator[None]":
    """Remove what an import wrote where it does not end: the next one would refuse the files."""
    from flows.operations.adoption.repository import STEPS_FOLDER

    steps = output / STEPS_FOLDER

    def there() -> list[Path]:  # a folder after its content
        files = (output / "cluster.yaml", output / "workload.yaml", *steps.glob("*"), steps)
        return [path for path in files if path.exists()]

    before, made = set(there()), not output.exists()
    try:
        yield
    except BaseException:
        for path in there():
            if path in before:
                continue
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        if made:
            with suppress(OSError):  # something else is in it
                output.rmdir()
        raise


def _found(
    repository: Path,
    cluster: Path | None,
    stated: "Mapping[str, Taken]",
    objectives: "Objectives",
) -> "Sequence[Found]":
    """The models and ensembles of the repository.

    Names, objectives and what is taken are checked before anything takes long.

    Raises:
        InputError: a file cannot be read, or an option names nothing that is there.
    """
    from flows.files import read_cluster, read_yaml
    from flows.operations.adoption.repository import without_broken_ensembles, workload_of
    from flows.operations.adoption.taken import (
        check_stated,
        devices_by_number,
        taken_beside,
        without_taken,
    )
    from flows.preparation.triton_repository.repository import BESIDE, read_repository
    from triton_backend.contract.workload import Workload

    if cluster is not None:
        read_cluster(cluster)
    found = without_broken_ensembles(read_repository(repository))
    check_stated(stated, (each.name for each in found))
    beside = {each.name for each in found if each.kind == BESIDE}
    _check_gpus(cluster, {name: taken for name, taken in stated.items() if name in beside})
    if cluster is not None:
        held, _ = taken_beside(found, stated)
        without_taken(read_yaml(cluster), held, devices_by_number(), str(cluster))
    Workload.from_dict(workload_of(found, objectives))
    return found


def _check_gpus(cluster: Path | None, stated: "Mapping[str, Taken]") -> None:
    from flows.files import read_yaml
    from flows.operations.adoption.taken import check_gpus, devices_by_number

    document = None if cluster is None else read_yaml(cluster)
    where = str(cluster) if cluster else "this machine, and --cluster gives no other"
    check_gpus(stated, document, devices_by_number(), where)


def _check_new(file: Path, *, wanted: bool) -> None:
    """Refuse to write a file over another, or where none can be written."""
    from flows.files import check_writable
    from triton_backend.contract.errors import InputError

    if not wanted:
        return
    if file.exists():
        raise InputError(str(file), "is there already; give another folder with -o")
    check_writable(file, makes_folders=True)


def _written_cluster(
    given: Path | None, written: Path, found: "Sequence[Found]", stated: "Mapping[str, Taken]"
) -> Path:
    """The cluster to plan for, without what models beside the plan hold of it.

    It is written where none is given, and where something of the given one is held.
    """
    import yaml

    from flows.files import read_cluster, read_yaml, write_text
    from flows.operations.adoption.repository import CPU_CLASS, cluster_of, steps_of
    from flows.operations.adoption.taken import (
        check_stated,
        devices_by_number,
        in_words,
        taken_beside,
        without_taken,
    )
    from flows.preparation.triton_repository.repository import BESIDE

    steps = steps_of(found)
    models = sum(each.kind == "model" for each in found) + len(steps)
    check_stated(stated, (each.name for each in found if each.kind == BESIDE))
    _check_gpus(given, stated)
    held, unknown = taken_beside(found, stated)
    document = cluster_of(models) if given is None else read_yaml(given)
    classes = document["gpu_classes"]
    if given is None and CPU_CLASS in classes:
        note(
            f"no GPU was found: in {written} one processor stands for {models}; give your"
            " GPUs with --cluster to plan for them"
        )
        held, unknown = {}, ()
    elif steps and not any("cores" in (each or {}).get("runtime", {}) for each in classes.values()):
        note(f"{steps[0].name} runs as a step, on a class of cores: add one (docs/how-to/steps.md)")
    for name in unknown:
        note(f"{name}: its configuration names no GPU; take those that it holds out by --taken")
    if held:
        document = without_taken(document, held, devices_by_number(), str(given or written))
        note(f"held beside the plan, and taken out of {written}: {in_words(held)}")
    elif given is not None:
        return given
    _check_new(written, wanted=True)
    write_text(written, yaml.safe_dump(document, sort_keys=False))
    read_cluster(written)
    return written


def _check_apart(repository: Path, written: "Sequence[Path]") -> None:
    """Refuse to write into the repository that is read."""
    from triton_backend.contract.errors import InputError

    for path in written:
        if path.resolve().is_relative_to(repository.resolve()):
            raise InputError(str(path), "lies in the repository, where nothing is written")


def _planned(
    work: "Workspace",
    files: tuple[Path, Path],
    document: dict[str, Any],
    found: "Sequence[Found]",
) -> "Plan | None":
    """The plan, after profiling; None where a class of the cluster does not run here."""
    from flows.cli.prepare.selection import onnxruntime_classes
    from flows.files import read_cluster, read_device_classes, read_workload
    from flows.operations.adoption.repository import steps_of
    from flows.planning import PlanOptions
    from flows.planning.stored_plans import plan_step
    from flows.preparation.profiling.model_profile import profile_step
    from flows.preparation.splitting.stored_split import read_split
    from flows.release.artifacts import attach_artifacts
    from triton_backend.contract.errors import InputError

    if not _runs_here(files[0]):
        return None
    known, devices = read_cluster(files[0]), read_device_classes(files[0])
    classes = onnxruntime_classes(files[0])
    run = [*(each for each in found if each.kind == "model"), *steps_of(found)]
    with progress("profiling") as report:
        for each in run:
            report(f"profiling {each.name}")
            profile_step(work, read_split(work, each.name), classes)
    served = (*document.get("models", ()), *document.get("applications", ()))
    every = all("rate_rps" in each for each in served)
    objective = "gpus" if every else "throughput"
    workload = read_workload(files[1])
    gpus, models = _gpus(files[0]), len(run)
    shared = models > gpus  # then whole models share GPUs, as their instances do today
    if shared and workload.applications:
        reason = f"{gpus} GPUs are too few for {models} models and ensembles: give more"
        raise InputError(f"{files[0]}, nodes", reason)
    options = PlanOptions(
        planner="subclusters" if shared else "pool", objective=objective, time_limit_s=PLANNING_S
    )
    with progress("planning"):
        planned = plan_step(work, known, workload, options)
    notes(planned.warnings)
    return attach_artifacts(work, planned.plan, devices)


def _runs_here(cluster: Path) -> bool:
    """True if all classes of the cluster run in onnxruntime on this machine."""
    from flows.files import read_cluster, read_device_classes

    return {each.name for each in read_cluster(cluster).gpu_classes} <= set(
        read_device_classes(cluster)
    )


def _document(
    found: "Sequence[Found]", made: "Plan | None", files: tuple[Path, Path]
) -> dict[str, Any]:
    from dataclasses import asdict

    from flows.operations.adoption.comparison import (
        gpus_seen,
        gpus_today,
        rows_of,
        smaller_requests,
    )

    smaller = smaller_requests(found, made) if made else {}
    gpus = _gpus(files[0])
    seen = gpus_seen(found, gpus)
    return {
        "cluster": files[0].resolve(),
        "workload": files[1].resolve(),
        "plan_id": None if made is None else made.plan_id,
        "models": [asdict(row) for row in rows_of(found, made, seen)] if made else None,
        "gpus": {
            "today": gpus_today(found, seen),
            "planned": None if made is None else sum(made.gpus_used.values()),
            "cluster": gpus,
        },
        "planned": [each.name for each in found if each.kind != "beside"],
        "beside": {each.name: each.reason for each in found if each.kind == "beside"},
        "notes": {
            each.name: [*each.notes, *filter(None, [smaller.get(each.name)])]
            for each in found
            if each.notes or each.name in smaller
        },
    }


def _gpus(cluster: Path) -> int:
    from flows.files import read_cluster

    known = read_cluster(cluster)
    return sum(known.gpus(each.name) for each in known.gpu_classes)


def _show(
    found: "Sequence[Found]", made: "Plan | None", files: tuple[Path, Path], repository: Path
) -> None:
    from flows.operations.adoption.comparison import (
        gpus_seen,
        gpus_today,
        rows_of,
        smaller_requests,
    )

    for each in found:
        if each.kind != "beside":
            notes(f"{each.name}: {text}" for text in each.notes)
    gpus = _gpus(files[0])
    seen = gpus_seen(found, gpus)
    if made is not None:
        notes(f"{name}: {text}" for name, text in smaller_requests(found, made).items())
        rows = [
            (row.name, str(row.instances), row.where, row.pools, f"{row.planned_rps:,.0f} rps")
            for row in rows_of(found, made, seen)
        ]
        show(table(("model", "instances today", "on", "planned", "planned rate"), rows))
        used = sum(made.gpus_used.values())
        today = gpus_today(found, seen)
        show(f"GPUs with instances today: {today} of {seen}; planned: {used} of {gpus}")
    beside = [(each.name, each.reason) for each in found if each.kind == "beside"]
    if beside:
        show(table(("left beside the plan", "reason"), beside, texts=2))
    show(f"written to {files[0]} and {files[1]}")
    if made is None:
        profile = f"poolpipe profile --cluster {files[0]}"
        if not _runs_here(files[0]):
            first = next((each.name for each in found if each.kind == "model"), "NAME")
            profile = (
                f"poolpipe profile {first} --cluster {files[0]} --runtime tensorrt --gpu CLASS=GPU"
            )
        show(
            f"next: {profile}\n"
            f"      poolpipe plan --cluster {files[0]} --workload {files[1]} -o plan.json"
        )
    else:
        with_others = _beside_option(repository, made) if beside else ""
        show(f"plan {made.plan_id} is stored; next: poolpipe serve {made.plan_id}{with_others}")


def _beside_option(repository: Path, made: "Plan") -> str:
    """The option that serves the others too, or, with a note, those that `serve` would not refuse.

    A container may have more backends than the server that is installed here.
    """
    from flows.release.beside import backends_here, what_goes_on

    paths, refused = what_goes_on(repository, made, backends_here())
    if refused:
        note(f"not every model left beside the plan can be served with it: {refused}")
    return "".join(f" --beside {shlex.quote(str(path))}" for path in paths)
