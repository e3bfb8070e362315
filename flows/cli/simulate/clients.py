"""`simulate --clients FILE --links TRACE [--steer]`.

Clients that offload over recorded links, plans that follow them.
"""

import csv
import gzip
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.cli.console import print_json, progress, show, table
from flows.reporting import words
from triton_backend.contract.errors import InputError

if TYPE_CHECKING:
    from flows.cli.simulate.options import ClientsRun
    from flows.workspace import Workspace
    from triton_backend.client.link import Trace
    from triton_backend.contract.fields import Fields
    from triton_backend.contract.plan import Plan
    from triton_backend.simulator.clients.client import ClientSpec
    from triton_backend.simulator.scenario import SimOptions

COLUMNS = ("time_s", "mbit_per_s")


def read_links(path: Path) -> dict[str, list[tuple[float, float]]]:
    """Rows (seconds, Mbit/s) by name of the link.

    Of a file without the column `link` by the empty name.

    Raises:
        InputError: it cannot be read as such.
    """
    found: dict[str, list[tuple[float, float]]] = {}
    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as stream:
            rows = csv.DictReader(stream)
            missing = set(COLUMNS) - set(rows.fieldnames or ())
            if missing:
                raise InputError(str(path), f"no column {', '.join(sorted(missing))}")
            for row in rows:
                at = (float(row[COLUMNS[0]]), float(row[COLUMNS[1]]))
                found.setdefault(row.get("link") or "", []).append(at)
    except OSError as error:
        raise InputError(str(path), f"cannot be read: {error.strerror or error}") from error
    except (EOFError, TypeError, ValueError, csv.Error, zlib.error) as error:
        raise InputError(str(path), f"not a trace: {error}") from error
    if not found:
        raise InputError(str(path), "no rows")
    return found


def read_clients(
    path: Path, links: Mapping[str, Sequence[tuple[float, float]]], sizes: Mapping[str, list[int]]
) -> list["ClientSpec"]:
    """The clients of `clients.yaml`.

    `sizes` are bytes that cross each cut, by model, where they are known. A client's `link` names
    its rows in the file of links; of a file with one link it says nothing. Beside what every client
    has it may state `rtt_us`, `upload_bytes` (one per cut) and `link_from_s`, where in its link it
    begins.

    Raises:
        InputError: a field is missing or wrong.
    """
    from flows.files import read_yaml
    from triton_backend.contract.fields import Fields

    data = read_yaml(path)
    if not isinstance(data, list) or not data:
        raise InputError(str(path), "is not a list of clients")
    return [_client(Fields(one, f"{path}, [{k}]"), links, sizes) for k, one in enumerate(data)]


def _client(
    fields: "Fields",
    links: Mapping[str, Sequence[tuple[float, float]]],
    sizes: Mapping[str, list[int]],
) -> "ClientSpec":
    from triton_backend.contract.units import ms_to_us
    from triton_backend.simulator.clients.client import ClientSpec

    model = fields.text("model")
    given = [*fields.integers("upload_bytes")] if fields.has("upload_bytes") else sizes.get(model)
    if given is None:
        raise fields.wrong("upload_bytes", f"is needed: bytes of {model}'s cuts are not known")
    return ClientSpec(
        name=fields.text("name"),
        model=model,
        fps=fields.number("fps"),
        slo_us=ms_to_us(fields.number("slo_ms", least=0)),
        heads_us=tuple(fields.integers("heads_us")),
        upload_bytes=tuple(given),
        trace=_trace(fields, links),
        rtt_us=fields.integer("rtt_us") if fields.has("rtt_us") else 0,
    )


def _trace(fields: "Fields", links: Mapping[str, Sequence[tuple[float, float]]]) -> "Trace":
    from triton_backend.client.errors import ClientError
    from triton_backend.client.link import Trace

    named = fields.text("link") if fields.has("link") else ""
    rows = links[""] if list(links) == [""] else links.get(named)
    if rows is None:
        raise fields.wrong("link", f"{named!r} is none of {', '.join(sorted(links))}")
    start_s = fields.number("link_from_s", least=0) if fields.has("link_from_s") else 0.0
    last = max((k for k, (at, _) in enumerate(rows) if at <= start_s), default=0)
    try:
        return Trace([(max(at, start_s), rate) for at, rate in rows[last:]], f"link {named!r}")
    except ClientError as error:
        raise InputError(f"client, link {named!r}", str(error)) from error


def _sizes(plan: "Plan", work: "Workspace") -> dict[str, list[int]]:
    """Bytes of one sample at every cut of the plan's models, where the warehouse knows them."""
    from flows.planning.stored_plans import load_profiles
    from triton_backend.contract.tensors import total_bytes_per_sample

    if not work.warehouse.exists():
        return {}
    profiles, _ = load_profiles(work, plan.cluster, plan.workload)
    return {
        name: [total_bytes_per_sample(profile.inputs), *profile.boundary_bytes]
        for name, profile in profiles.items()
        if profile.inputs
    }


def show_clients(
    plan: "Plan",
    asked: "ClientsRun",
    options: "SimOptions",
    work: "Workspace",
    *,
    as_json: bool,
) -> None:
    """Simulate and print clients.

    Args:
        plan: what serves at first.
        asked: clients, links, and whether plans follow.
        options: of the scheduler.
        work: where profiles are.
        as_json: as one object.

    Raises:
        InputError: a file is wrong, or an option does not fit.
    """
    from flows.operations.steering.policy import steering_of
    from flows.operations.steering.simulated import SteeredRun, SteerTimes, steer_simulated

    clients_file, links_file = asked.files
    clients = read_clients(clients_file, read_links(links_file), _sizes(plan, work))
    steer = asked.steer
    steering = steering_of(work, plan) if steer else None
    plan_s = None if asked.plan_ms is None else asked.plan_ms / 1e3
    times = SteerTimes(plan_s=plan_s, start_s=asked.start_s)
    with progress("simulating") as report:
        loop, changes, unsteered = steer_simulated(plan, clients, options, steering, times, report)
        found = SteeredRun(
            loop=loop,
            steering=steering,
            changes=changes,
            unsteered=unsteered,
        )
    document: dict[str, Any] = {
        "policy": options.policy_of(plan),
        "seed": options.seed,
        "duration_s": options.duration_s,
        **found.to_dict(),
    }
    if as_json:
        print_json(document)
        return
    rows = [
        (
            name,
            client["model"],
            client["offered"],
            words.percent(client["feasible_share"], 2),
            words.percent(client["attainment"], 2),
            client["refused"],
            client["on_device"],
            client["moves"],
        )
        for name, client in document["clients"].items()
    ]
    head = ("client", "model", "offered", "feasible", "in time", "refused", "on device", "moves")
    show(table(head, rows, texts=2))
    feasible = words.percent(document["attainment_feasible"], 2)
    show(f"{feasible} of {document['feasible']} requests whose client had a feasible cut in time")
    show(f"{document['mean_percent']:.1f} % of a GPU in the mean; {changes} changes")
