"""The main job as a Prefect flow: real models split, profiled, planned, served, loaded, reported.

Thin: it names the steps and their order. Call `prepare_prefect` before importing it.
"""

import contextlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from prefect import flow, task
from prefect.cache_policies import NO_CACHE

from flows.clock import Stopwatch
from flows.files import write_plan
from flows.planning import PlanOptions
from flows.planning.stored_plans import load_profiles, plan_step
from flows.preparation.profiling.copies import Copies
from flows.preparation.profiling.measure import cell_progress
from flows.preparation.profiling.model_profile import Prepared, profile_step
from flows.preparation.splitting.model import SplitModel
from flows.preparation.splitting.stored_split import split_step
from flows.preparation.steps.given import read_steps
from flows.preparation.steps.prepare import prepare_steps
from flows.progress import Say, StepLog
from flows.quickstart import ocr
from flows.quickstart.compile_process import compiling
from flows.quickstart.example_project import (
    BLOCKS,
    LIMITS,
    MAX_BATCH,
    OCR,
    SHORTEST_SLO_US,
    SLOW,
    OfferedModel,
    application_models,
    application_slo_us,
    example_application,
    example_classes,
    example_cluster,
    example_models,
    ocr_models,
    ocr_workload,
    offered_share,
    with_slo,
    workload_of,
)
from flows.quickstart.load_process import LoadRequest, LoadResult, run_load
from flows.quickstart.outcome import QuickstartOutcome, keep_outcome
from flows.quickstart.reference_outputs import mean_rows, write_answers, write_application_answers
from flows.release.artifacts import attach_artifacts
from flows.release.server.admin import check_can_start, start, starting, stop
from flows.release.server.running import ServerState
from flows.workspace import Workspace
from triton_backend.contract.plan import Plan
from triton_backend.contract.workload import Workload
from triton_backend.runtimes.stage_tensors import check_served_alone, served_models
from triton_backend.serve_folder.endpoints import Endpoints
from triton_backend.serve_folder.repository import render_repository
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.simulator.results import SimResult
from triton_backend.simulator.run import SimOptions, simulate

# The best plan found until then is served, and says how far from the bound it may be.
PLAN_SECONDS = 20.0
HTTP_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class QuickstartOptions:
    """The run's parameters.

    Attributes:
        models: the user's own models with their SLOs; none for the two examples.
        application: name of the example application in their place.
        load_factor: share of the planned rate that is offered; None: `offered_share`.
        planner: of the models; its plan names the policy.
    """

    models: tuple[OfferedModel, ...] = ()
    application: str | None = None
    keep_serving: bool = False
    load_factor: float | None = None
    load_seconds: float = 20.0
    planner: str = "pool"
    seed: int = 0
    ports: Endpoints = field(default_factory=Endpoints)

    @property
    def http_seconds(self) -> float:
        """Length of the sample over HTTP, no longer than the load over gRPC before it."""
        return min(HTTP_SECONDS, self.load_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A run that came to its end: what it gave, and the page about it.

    Attributes:
        serving: the system that was left running, if it was.
    """

    run_id: str
    report: Path
    outcome: QuickstartOutcome
    serving: ServerState | None
    wall_seconds: float

    def to_dict(self) -> dict[str, Any]:
        """The object that `quickstart --json` prints."""
        state = self.serving
        return {
            "run_id": self.run_id,
            "report": str(self.report),
            **self.outcome.to_dict(),
            "serving": None if state is None else {"http": state.http_url, "grpc": state.grpc_url},
            "wall_seconds": self.wall_seconds,
        }


class _Offered(NamedTuple):
    """The models to be served, or an application of them, whose SLO is yet to be chosen.

    Attributes:
        splits: of ONNX models.
        answers: by name, a file of requests with their answers.
    """

    models: tuple[OfferedModel, ...]
    workload: Workload
    splits: tuple[SplitModel, ...]
    answers: dict[str, Path]


@task(name="split", cache_policy=NO_CACHE)
def _split(work: Workspace, model: OfferedModel) -> SplitModel:
    return split_step(
        work,
        model.path,
        model.name,
        blocks=model.blocks or BLOCKS,
        max_batch=model.max_batch or MAX_BATCH,
        choices=model.choices,
    )


@task(name="build-and-profile", cache_policy=NO_CACHE)
def _profile(
    work: Workspace, split: SplitModel, say: Say, application: str | None, processes: Copies
) -> Prepared:
    return profile_step(
        work,
        split,
        list(example_classes(application).values()),
        limits=LIMITS,
        progress=cell_progress(say),
        processes=processes,
    )


@task(name="plan", cache_policy=NO_CACHE)
def _plan(
    work: Workspace, offered: _Offered, options: PlanOptions, application: str | None
) -> Plan:
    cluster, workload = example_cluster(application), offered.workload
    profiles, _ = load_profiles(work, cluster, workload)
    if application is None:
        workload = workload_of(tuple(with_slo(m, profiles[m.name]) for m in offered.models))
    else:
        (graph,) = workload.applications
        graph = replace(graph, slo_us=application_slo_us(graph, profiles))
        workload = replace(workload, applications=(graph,))
    planned = plan_step(work, cluster, workload, options)
    devices = {name: c.device for name, c in example_classes(application).items()}
    return attach_artifacts(work, planned.plan, devices)


@task(name="simulate", cache_policy=NO_CACHE)
def _simulate(plan: Plan, options: QuickstartOptions) -> SimResult:
    run = SimOptions(
        policy=None,
        load_factor=offered_share(plan, options.load_factor),
        duration_s=options.load_seconds,
        seed=options.seed,
    )
    return simulate(plan, run)


@task(name="roll-out", cache_policy=NO_CACHE)
def _roll_out(work: Workspace, plan: Plan, ports: Endpoints, say: Say) -> ServerState:
    folder = work.state.serve
    render_repository(folder, plan, ServeOptions(artifacts=work.state.artifacts))
    return start(folder, ports, lambda text: say(f"  {text}"))


@task(name="load", cache_policy=NO_CACHE)
def _load(request: LoadRequest) -> LoadResult:
    return LoadResult.from_document(run_load(request))


@task(name="report", cache_policy=NO_CACHE)
def _report(work: Workspace, found: QuickstartOutcome) -> tuple[str, Path]:
    return keep_outcome(work, found)


@flow(name="quickstart", validate_parameters=False)
def quickstart(work: Workspace, options: QuickstartOptions, say: Say) -> Finished:
    """The whole run.

    Raises:
        InputError: the model cannot be split or planned, a port is in use, or another system is
            being served by then.
    """
    watch, log = Stopwatch(), StepLog(say)
    with Copies() as processes:
        offered = _prepare(work, options, log, processes)
    with compiling():
        with log.step("plan (the first time, simulator and scheduler are compiled)") as note:
            plan = _plan(work, offered, _planning(options), options.application)
            note.text = _plan_in_words(plan)
        with log.step("simulate") as note:
            simulated = _simulate(plan, options)
            note.text = f"attainment {simulated.attainment:.2%} predicted"
    with contextlib.ExitStack() as ending:
        with log.step("roll out on Triton") as note, starting(work.state.serve):
            # Another command may have started a system here while models were profiled.
            check_can_start(work.state.serve, options.ports)
            if not options.keep_serving:
                ending.callback(stop, work.state.serve)
            state = _roll_out(work, plan, options.ports, say)
            note.text = f"HTTP {state.http_url}, gRPC {state.grpc_url}"
        measured, sampled = _drive(work, (plan, offered.answers), state, options, log)
    outcome = QuickstartOutcome(
        plan=plan,
        splits=offered.splits,
        simulated=simulated,
        measured=measured,
        sampled=sampled,
        records=work.state.reports / "records.npz",
        events=work.state.serve / "events",
        steps=tuple(log.steps),
    )
    run_id, page = _report(work, outcome)
    return Finished(
        run_id=run_id,
        report=page,
        outcome=outcome,
        serving=state if options.keep_serving else None,
        wall_seconds=watch.seconds(),
    )


def _prepare(
    work: Workspace, options: QuickstartOptions, log: StepLog, processes: Copies
) -> _Offered:
    if options.application == OCR:
        return _prepare_ocr(work, log, processes)
    folder = work.state.models / "examples"
    models = options.models or (
        application_models(folder) if options.application else example_models(folder)
    )
    splits = _split_and_profile(work, models, log, options.application, processes)
    reports = work.state.reports
    if not options.application:
        answers = {s.name: write_answers(s, reports / f"answers-{s.key}.npz") for s in splits}
        return _Offered(models, workload_of(models), splits, answers)
    with log.step("run the models one after the other") as note:
        graph = example_application(splits, rows=1.0, slo_us=SHORTEST_SLO_US)
        files = {model.name: model.path for model in models}
        found = reports / f"answers-{graph.name}.npz"
        write_application_answers(graph, files, {s.name: s for s in splits}, found)
        rows = mean_rows(found, "boxes")
        graph = example_application(splits, rows=rows, slo_us=SHORTEST_SLO_US)
        note.text = f"{rows:.2f} boxes in a picture"
    return _Offered(models, Workload(applications=(graph,)), splits, {graph.name: found})


def _split_and_profile(
    work: Workspace,
    models: tuple[OfferedModel, ...],
    log: StepLog,
    application: str | None,
    processes: Copies,
) -> tuple[SplitModel, ...]:
    splits: list[SplitModel] = []
    for model in models:
        with log.step(f"split {model.name}") as note:
            split = _split(work, model)
            reused = ", reused" if split.reused else ""
            note.text = f"{split.in_words}{reused}"
        if not application:
            check_served_alone(split.name, (spec.name for spec in split.outputs))
        for remark in split.remarks():
            log.say(f"  {split.name}: {remark}")
        with log.step(f"build and profile {model.name}") as note:
            note.text = _profile(work, split, log.say, application, processes).in_words()
        splits.append(split)
    return tuple(splits)


def _prepare_ocr(work: Workspace, log: StepLog, processes: Copies) -> _Offered:
    """Three trained models and the Python steps between them; pages with their answers."""
    with log.step("write the models and samples of the steps"):
        files, path = ocr.write_project(work.state.models / "examples" / OCR)
    models = ocr_models(files)
    splits = _split_and_profile(work, models, log, OCR, processes)
    with log.step("prepare and profile the Python steps") as note:
        steps = prepare_steps(work, list(read_steps(path).values()))
        for split in steps:
            _profile(work, split, log.say, OCR, processes)
        note.text = ", ".join(f"{s.name} {s.block_times_us[0] / 1_000:.1f} ms" for s in steps)
    with log.step("read pages here, and by the package itself") as note:
        found = work.state.reports / f"answers-{OCR}.npz"
        pages = ocr.draw_pages(ocr.PAGES)
        read = ocr.write_answers(ocr.ReaderHere(files), pages, found)
        rows = mean_rows(found, "boxes")
        note.text = f"{rows:.1f} lines on a page; {ocr.compared_with_package(pages, read)}"
    workload = ocr_workload(path, rows=rows, shares=ocr.shares_of_widths(read))
    return _Offered(models, workload, splits, {OCR: found})


def _drive(
    work: Workspace,
    served: tuple[Plan, dict[str, Path]],
    state: ServerState,
    options: QuickstartOptions,
    log: StepLog,
) -> tuple[LoadResult, LoadResult]:
    """Load over gRPC and then a sample over HTTP, every response checked."""
    plan, answers = served
    folder = work.state.reports
    share = offered_share(plan, options.load_factor)
    rate_rps = share * sum(model.throughput_rps for model in served_models(plan))
    shared: dict[str, Any] = {
        "plan": _plan_file(work, plan),
        "load_factor": share,
        "seed": options.seed,
        "checks": answers,
    }
    with log.step(f"load over gRPC for {options.load_seconds:g} s at {rate_rps:.3g} rps") as note:
        measured = _load(
            LoadRequest(
                url=state.grpc_url,
                duration_s=options.load_seconds,
                records=folder / "records.npz",
                **shared,
            )
        )
        note.text = _load_in_words(measured)
    with log.step(f"load over HTTP for {options.http_seconds:g} s at {rate_rps:.3g} rps") as note:
        sampled = _load(
            LoadRequest(
                url=state.http_url, protocol="http", duration_s=options.http_seconds, **shared
            )
        )
        note.text = _load_in_words(sampled)
    return measured, sampled


def _planning(options: QuickstartOptions) -> PlanOptions:
    """How to plan; whole models that share GPUs are all on the fast ones."""
    whole = options.planner == "subclusters"
    return PlanOptions(
        planner=options.planner,
        excluded_classes={"*": (SLOW,)} if whole else {},
        time_limit_s=PLAN_SECONDS if options.application else None,
    )


def _plan_file(work: Workspace, plan: Plan) -> Path:
    work.state.reports.mkdir(parents=True, exist_ok=True)
    path = work.state.reports / f"plan-{plan.plan_id}.json"
    write_plan(path, plan)
    return path


def _plan_in_words(plan: Plan) -> str:
    rates = ", ".join(f"{m.name} {m.throughput_rps:.1f} rps" for m in served_models(plan))
    pools = f"{len(plan.pools)} pools under {plan.models[0].policy}"
    return f"{rates}; {pools}; gap {plan.objective.gap:.2%} of the bound"


def _load_in_words(result: LoadResult) -> str:
    offered = sum(model.offered for model in result.models.values())
    served = sum(model.served for model in result.models.values())
    return f"{served} of {offered} requests answered in time"
