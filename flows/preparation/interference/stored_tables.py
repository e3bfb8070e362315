"""Tables of a folder taken into the warehouse, and written from it.

Profiles, pairs, interference models. Here: which files a folder has and what goes where. Not here:
the files themselves (`tables`, `profiling.csv_tables`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from flows.clock import now_utc
from flows.preparation.interference import tables
from flows.preparation.interference.fit import FitReport, fit
from flows.preparation.interference.options import FitOptions
from flows.preparation.profiling import csv_tables
from flows.workspace import Workspace
from triton_backend.contract.errors import InputError
from triton_backend.contract.profiles import InterferenceModel, ModelProfile, Pair, Utilisation
from warehouse.db import Warehouse
from warehouse.profiles import (
    add_interference,
    add_pairs,
    add_utilisations,
    find_model,
    import_profile,
    model_names,
    pairs_of_runs,
    read_interference,
    read_pairs,
    read_profiles,
)

LEAST_RUNS = 5  # of one kind beside another: fewer say little of their mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """The tables of a folder.

    Attributes:
        utilisation: by model, of models whose latencies are not in the folder.
        interference: models by GPU class.
    """

    profiles: Mapping[str, ModelProfile]
    utilisation: Mapping[str, list[Utilisation]]
    pairs: list[Pair]
    interference: Mapping[str, InterferenceModel]
    warnings: list[str]


def read_folder(folder: Path) -> Tables:
    """Every table of a folder; one at least.

    Raises:
        InputError: a file cannot be used, or there is none.
    """
    profiles: dict[str, ModelProfile] = {}
    warnings: list[str] = []
    others = (csv_tables.UTILISATION_FILE, tables.PAIRS_FILE, tables.MODEL_FILE)
    there = {name: folder / name for name in others if (folder / name).exists()}
    if (folder / csv_tables.LATENCY_FILE).exists() or not there:
        profiles, warnings = csv_tables.read_tables(folder)
    used = csv_tables.read_utilisation(folder) if csv_tables.UTILISATION_FILE in there else {}
    classes = {name for profile in profiles.values() for name in profile.classes}
    pairs = there.get(tables.PAIRS_FILE)
    models = there.get(tables.MODEL_FILE)
    return Tables(
        profiles=profiles,
        utilisation={name: rows for name, rows in used.items() if name not in profiles},
        pairs=[] if pairs is None else tables.read_pairs(pairs, _only(classes)),
        interference={} if models is None else tables.read_models(models),
        warnings=warnings,
    )


def _only(classes: Iterable[str]) -> str | None:
    known = list(classes)
    return known[0] if len(known) == 1 else None


def import_tables(warehouse: Warehouse, found: Tables, source: str) -> None:
    """Take tables into the warehouse; `source` says where they come from.

    Raises:
        InputError: utilisation is given of an unknown model; nothing is stored.
    """
    now = now_utc()
    keys = {name: find_model(warehouse, name).model_key for name in found.utilisation}
    known = set(read_pairs(warehouse))
    for profile in found.profiles.values():
        import_profile(warehouse, profile, source, now)
    with warehouse.transaction():
        for name, rows in found.utilisation.items():
            add_utilisations(warehouse, keys[name], rows, now)
        add_pairs(warehouse, [pair for pair in found.pairs if pair not in known], now)
        add_interference(warehouse, found.interference, source, now)


def export_tables(
    warehouse: Warehouse, folder: Path, names: Iterable[str] | None = None
) -> tuple[dict[str, ModelProfile], tuple[Path, ...], list[str]]:
    """Write what the warehouse knows of models (all without names), as `read_folder` reads it.

    Returns:
        the profiles, the files, and warnings about what was left out.

    Raises:
        InputError: no such model, or the folder cannot be written.
    """
    profiles, warnings = read_profiles(warehouse, names or model_names(warehouse))
    files = list(csv_tables.write_tables(folder, profiles))
    pairs = [p for p in read_pairs(warehouse) if {p.model_1, p.model_2} <= set(profiles)]
    if pairs:
        files.append(folder / tables.PAIRS_FILE)
        tables.write_pairs(files[-1], pairs)
    classes = {name for profile in profiles.values() for name in profile.classes}
    models = {name: m for name, m in read_interference(warehouse).items() if name in classes}
    if models:
        files.append(folder / tables.MODEL_FILE)
        tables.write_models(files[-1], models)
    return profiles, tuple(files), warnings


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """The fit of a class.

    `unknown` sides of pairs were left out, as they were not measured alone.
    """

    gpu_class: str
    report: FitReport
    unknown: int


def fit_tables(
    profiles: Mapping[str, ModelProfile],
    pairs: list[Pair],
    gpu_class: str | None = None,
    *,
    seed: int = 0,
    robust: bool = False,
) -> Fitted:
    """Fit the interference model of a class to pairs; the class may be left out where there is one.

    Raises:
        InputError: no pairs, pairs of several classes, or they cannot be fitted.
    """
    classes = sorted({pair.gpu_class for pair in pairs})
    if not classes:
        reason = "there are none; `poolpipe profile --pairs` or a running system measures them"
        raise InputError("pairs", reason)
    name = gpu_class or _only(classes)
    if name not in classes:
        what = f"are not of GPU class {gpu_class!r}"
        if gpu_class is None:
            what = "are of several GPU classes, name one"
        raise InputError("pairs", f"{what}; known: {', '.join(classes)}")
    rows, unknown = tables.pair_rows(pairs, profiles, name)
    return Fitted(gpu_class=name, report=fit(rows, seed, robust=robust), unknown=unknown)


def known_pairs(
    warehouse: Warehouse, *, from_runs: bool = False
) -> tuple[dict[str, ModelProfile], list[Pair]]:
    """Pairs of the warehouse and the profiles of their models.

    Pairs as they were profiled, or `from_runs` as the running system measured them.
    """
    pairs = pairs_of_runs(warehouse, LEAST_RUNS) if from_runs else read_pairs(warehouse)
    named = {name for pair in pairs for name in (pair.model_1, pair.model_2)}
    profiles, _ = read_profiles(warehouse, sorted(named & set(model_names(warehouse))))
    return profiles, pairs


def fit_step(work: Workspace, folder: Path | None, how: FitOptions) -> Fitted:
    """Fit a class to the pairs of a folder, or of the warehouse, and store its model.

    Raises:
        InputError: as `fit_tables`; runs are asked for of a folder.
    """
    if folder is None:
        with work.open(read_only=True) as store:
            profiles, pairs = known_pairs(store, from_runs=how.from_runs)
    elif how.from_runs:
        raise InputError("--from-runs", "takes runs from the warehouse, not from a folder")
    else:
        found = read_folder(folder)
        profiles, pairs = dict(found.profiles), found.pairs
    fitted = fit_tables(profiles, pairs, how.gpu_class, seed=how.seed, robust=how.robust)
    source = str(folder or ("runs" if how.from_runs else "pairs"))
    with work.open() as store:
        add_interference(store, {fitted.gpu_class: fitted.report.model}, source, now_utc())
    return fitted
