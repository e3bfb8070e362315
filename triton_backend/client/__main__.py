"""The command `poolpipe-client`: `measure` and `run`.

Exit codes: 0 done, 2 wrong input, 130 interrupted.
"""

import argparse
import asyncio
import json
import socket
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from .decide import Power
from .device import RANDOM, Device, read_input
from .errors import ClientError
from .heads import Heads, read_heads, write_times
from .link import read_trace
from .run import Client, Record, RunOptions, summary
from .server import Server

WATTS = "5,2"  # of a small board; an assumption
INTERRUPTED = 130
MOST = 1e9  # of any option that is a number


class _Parser(argparse.ArgumentParser):
    """Complains in one line, as the other commands do."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; its exit code."""
    asked = _parser().parse_args(arguments)
    try:
        heads = read_heads(asked.folder)
        document = (
            measure(heads, asked.stretch)
            if asked.command == "measure"
            else asyncio.run(run(heads, asked))
        )
    except ClientError as error:
        sys.stderr.write(f"poolpipe-client: {error}\n")
        return 2
    except KeyboardInterrupt:
        return INTERRUPTED
    if asked.json:
        sys.stdout.write(json.dumps(document, allow_nan=False) + "\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="poolpipe-client",
        description="Runs the first blocks of a model here, and the others where they are served.",
        epilog="example: poolpipe-client measure heads/ && poolpipe-client run heads/ "
        "--url 127.0.0.1:8001 --input random --rps 30 --slo-ms 200",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    measured = commands.add_parser("measure", help="time every head on this device")
    running = commands.add_parser("run", help="send requests, each cut where it is best")
    for one in (measured, running):
        one.add_argument("folder", type=Path, metavar="DIR", help="from `poolpipe heads export`")
        one.add_argument(
            "--stretch",
            type=_stretch,
            default=1.0,
            metavar="X",
            help="a device so many times slower",
        )
        one.add_argument("--json", action="store_true", help="one JSON object on stdout")
    add = running.add_argument
    add("--url", required=True, metavar="HOST:PORT", help="gRPC; or http://HOST:PORT")
    add("--input", default=RANDOM, metavar="IMG|random", help=".npy, .npz, or a picture (Pillow)")
    add("--rps", type=_positive, default=30.0, metavar="N", help="requests per second")
    add("--slo-ms", type=_positive, required=True, metavar="X", help="from capture to answer")
    add("--duration", type=_positive, default=10.0, metavar="S", help="seconds of requests")
    add("--link", type=Path, metavar="TRACE.csv", help="emulate one: time_s,mbit_per_s")
    add("--objective", choices=("latency", "energy"), default="latency", help="what is least")
    add("--watts", type=_watts, default=WATTS, metavar="CPU,RADIO", help="for energy (W)")
    add("--name", default=_name(), metavar="N", help="of this client, for announcements")
    add("--half", action="store_true", help="send FP32 tensors in half the bytes")
    return parser


def _name() -> str:
    """Of no other client of the server."""
    return f"{socket.gethostname()[:100]}-{uuid.uuid4().hex[:8]}"


def _positive(text: str) -> float:
    number = _number(text)
    if not 0 < number <= MOST:
        raise argparse.ArgumentTypeError(f"{text} is no number above 0 and up to {MOST:g}")
    return number


def _stretch(text: str) -> float:
    number = _number(text)
    if not 1 <= number <= MOST:
        raise argparse.ArgumentTypeError(f"{text} is no number from 1 to {MOST:g}")
    return number


def _watts(text: str) -> Power:
    cpu, comma, radio = text.partition(",")
    if not comma or "," in radio:
        raise argparse.ArgumentTypeError(f"{text} is not CPU,RADIO in watts, such as {WATTS}")
    return Power(cpu_w=_positive(cpu), radio_w=_positive(radio))


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def measure(heads: Heads, stretch: float = 1.0) -> dict[str, object]:
    """Time every head on one sample, and write the medians into cuts.json."""
    device, inputs = Device(heads, stretch), read_input(RANDOM, heads.inputs)
    heads_us = [device.measure_us(head, inputs) for head in heads.cuts]
    write_times(heads.folder, heads_us)
    for head, head_us in zip(heads.cuts, heads_us, strict=True):
        sys.stderr.write(f"blocks 0 to {head.block}: {head_us / 1e3:.2f} ms\n")
    return {"model": heads.model, "split": heads.split, "heads_us": heads_us}


async def run(heads: Heads, asked: argparse.Namespace) -> dict[str, object]:
    """A run as asked; a line per request, unless the whole is printed as JSON."""
    unknown = [str(head.block) for head in heads.cuts if head.head_us is None]
    if unknown:
        reason = f"head_us of block {', '.join(unknown)} is not known: `poolpipe-client measure`"
        raise ClientError(str(heads.folder), reason)
    options = RunOptions(
        rps=asked.rps,
        slo_us=round(asked.slo_ms * 1e3),
        duration_s=asked.duration,
        link=None if asked.link is None else read_trace(asked.link),
        power=asked.watts if asked.objective == "energy" else None,
        half=asked.half,
        name=asked.name,
        stretch=asked.stretch,
    )
    inputs = read_input(asked.input, heads.inputs)
    server = Server(asked.url, heads)
    client = Client(heads, server, inputs, options, (lambda _: None) if asked.json else show)
    try:
        document = summary(heads, await client.run())
        document["asked"] = dict(client.asked)
    finally:
        await server.close()
    if client.why_closed:
        sys.stderr.write(f"poolpipe-client: {asked.url}: {client.why_closed}\n")
    if not asked.json:
        shown = ("offered", "served", "late", "refused", "on_device", "cuts", "max_error")
        sys.stdout.write(", ".join(f"{name} {document[name]}" for name in shown) + "\n")
    return document


def show(record: Record) -> None:
    """A line for one request, and where it is late, why."""
    parts = (record.head_us, record.upload_us, record.tail_us, record.total_us)
    head, upload, tail, total = ("-" if us is None else f"{us / 1e3:.1f}" for us in parts)
    why = f": {record.why}" if record.why and record.outcome == "late" else ""
    sys.stdout.write(
        f"{record.request}: cut {record.cut}, head {head}, upload {upload}, tail {tail}, total "
        f"{total} ms,"
        f" {record.outcome}{f' on the {record.on}' if record.on else ''}"
        f"{f' (refused: {record.refused})' if record.refused else ''}{why}\n"
    )


if __name__ == "__main__":
    sys.exit(main())
