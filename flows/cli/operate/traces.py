"""`traces`: requests as spans for a receiver of OpenTelemetry."""

from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli.console import note, print_json, show
from flows.cli.registry import command
from flows.cli.shared_options import WAREHOUSE, AsJson, EndAfter, WarehouseFile
from triton_backend.contract.errors import InputError

if TYPE_CHECKING:
    from flows.operations.traces.export import Follower

LOOK_SECONDS = 1.0


@command(
    "traces",
    "poolpipe traces --otlp http://localhost:4318",
    "poolpipe traces --otlp http://localhost:4318 --follow --sample 0.01",
)
def traces(
    *,
    otlp: Annotated[
        str, typer.Option(metavar="URL", help="The receiver: OTLP over HTTP (extra `otel`).")
    ],
    follow: Annotated[
        bool,
        typer.Option("--follow", help="Send requests from now on, as they end, until interrupted."),
    ] = False,
    sample: Annotated[
        float,
        typer.Option(
            metavar="SHARE",
            min=0,
            max=1,
            help="Share of the requests without a sampled `traceparent` that get a trace of their"
            " own.",
        ),
    ] = 0.0,
    looks: EndAfter = None,
    patience: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=0.1,
            max=600,
            help="Seconds in which the receiver must take a batch.",
        ),
    ] = 10.0,
    folder: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="The serve folder to read; by default this project's own."
        ),
    ] = None,
    as_json: AsJson = False,
    warehouse: WarehouseFile = WAREHOUSE,
) -> None:
    """Send spans of requests to a receiver of OpenTelemetry.

    Requests whose client sent a sampled W3C `traceparent` get a span below the client's, with one
    for front, queue, every vGPU and every link, and the answer; jobs of applications one for every
    module. They are made from the event files and request logs that the gateway writes anyway. What
    a request contains is never sent.
    """
    from flows.operations.ingest.reader import check_folder
    from flows.operations.traces.export import Follower, export
    from flows.operations.traces.otlp import Receiver
    from flows.operations.traces.reading import TraceReader
    from flows.workspace import workspace

    if looks is not None and not follow:
        raise InputError("--looks", "needs --follow")
    work = workspace(warehouse)
    place = folder or work.state.serve
    receiver = Receiver(otlp, patience_s=patience)
    try:
        if follow:
            reader = TraceReader(work, place, share=sample, from_now=True)
            follower = Follower(reader, receiver, note)
            _look(follower, looks)
            sent = follower.sent
        else:
            check_folder(place)
            reader = TraceReader(work, place, share=sample)
            sent = export(reader, receiver)
    finally:
        receiver.close()
    if as_json:
        counts = {"traces": sent.traces, "left_out": sent.left_out}
        print_json(counts | {"alone": reader.alone, "skipped": reader.skipped})
        return
    show(
        f"{sent.traces:,} traces sent, {reader.alone:,} of them without events,"
        f" {reader.skipped:,} lines skipped"
    )


def _look(follower: "Follower", looks: int | None) -> None:
    """Look once a second, so many times or until the command is interrupted."""
    import time

    for _ in count() if looks is None else range(looks - 1):
        follower.look()
        time.sleep(LOOK_SECONDS)
    follower.look(everything=True)
