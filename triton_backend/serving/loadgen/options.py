"""Options of the load generator's command line, and what they mean."""

import argparse
from pathlib import Path
from typing import NoReturn

from triton_backend.contract.errors import InputError
from triton_backend.serving.loadgen.schedule import GAMMA_SHAPE, PROCESSES
from triton_backend.serving.loadgen.series import TraceFile

EXAMPLE = """example:
  python -m triton_backend.serving.loadgen --plan plan.json --url 127.0.0.1:8001 \\
      --arrivals gamma --shape 0.3 --load-factor 0.8 --duration 30 --seed 1 --json
"""


class _Parser(argparse.ArgumentParser):
    """Wrong usage in one line, as of every other command; not all options again."""

    def error(self, message: str) -> NoReturn:
        """Say so and exit with 2."""
        self.exit(2, f"{message.removeprefix('argument ')}\n")


def make_parser() -> argparse.ArgumentParser:
    """The parser, with an example in its help."""
    parser = _Parser(
        prog="poolpipe load",
        description="Open-loop load against a live endpoint; attainment and latency out.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--plan", type=Path, required=True, help="plan.json: models, inputs, SLOs, planned rates")
    add("--url", default="127.0.0.1:8001", help="host:port of the endpoint")
    add("--protocol", choices=("grpc", "http"), default="grpc")
    add("--ca", type=Path, help="gRPC over TLS, trusting this authority (PEM)")
    add("--cert", type=Path, help="our own certificate, for mutual TLS (PEM)")
    add("--key", type=Path, help="its key (PEM)")
    add(
        "--model",
        "--application",
        action="append",
        help="load this model or application alone (may be given several times)",
    )
    add("--duration", type=_positive, default=30.0, help="seconds")
    add("--samples", type=int, default=1, help="samples in each request")
    add("--deadline-ms", type=_positive, help="send this deadline with every request, not the SLO")
    add("--priority", type=int, default=0, help="of all requests: 2 and above is low")
    add("--client", default="", metavar="NAME", help="name under which quotas hold")
    add("--give-up-s", type=_positive, default=10.0, help="wait so long after the deadline")
    add("--retries", type=int, default=0, help="send what failed or was dropped again, so often")
    add("--connections", type=int, default=1, help="of gRPC, used in turn (HTTP has what it needs)")
    add("--connect-s", type=_positive, default=10.0, help="wait so long for the endpoint")
    add("--seed", type=int, default=0)
    add("--json", action="store_true", help="print one JSON object")
    add("--records", type=Path, help="write every request's record to this .npz file")
    add(
        "--check",
        action="append",
        default=[],
        metavar="MODEL=FILE.npz",
        help="samples to send (inputs/NAME) and the answers they must get (outputs/NAME)",
    )
    add(
        "--tolerance",
        type=_positive,
        help="relative error of a right answer; by default as the file of samples states,"
        " else 1e-4, or 5e-3 where it has FP16",
    )
    _add_arrivals(parser)
    return parser


def _add_arrivals(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("arrivals").add_argument
    add("--arrivals", default="poisson", help=f"{', '.join(PROCESSES)}, or a trace's path")
    add("--shape", type=_positive, default=GAMMA_SHAPE, help="of gamma; below 1 is bursty")
    add("--load-factor", type=_positive, help="times the planned rates (default 1)")
    add("--rate", type=_positive, help="requests per second over all models loaded")
    add("--reference-plan", type=Path, help="plan whose planned rates are scaled")
    add("--trace-time", default="arrival_s", metavar="COLUMN", help="time column, in seconds")
    add("--trace-model", metavar="COLUMN", help="model column of the trace")
    add("--trace-interval", type=_positive, metavar="S", help="one row of counts per S seconds")
    add("--map", action="append", default=[], metavar="SERIES=MODEL", help="names in the trace")


def arrivals_of(options: argparse.Namespace) -> str | TraceFile:
    """The process named, or the trace."""
    if options.arrivals in PROCESSES:
        return options.arrivals
    return TraceFile(
        path=Path(options.arrivals),
        time_column=options.trace_time,
        model_column=options.trace_model,
        interval_s=options.trace_interval,
        names=pairs("--map", options.map) or None,
    )


def pairs(option: str, texts: list[str]) -> dict[str, str]:
    """`A=B` texts as a mapping.

    Raises:
        InputError: a text has no `=` or names a key twice.
    """
    found: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key or not value or key in found:
            raise InputError(option, f"{text!r} is not NAME=VALUE with a new name")
        found[key] = value
    return found


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value
