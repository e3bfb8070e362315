"""Options of `load` and `serve`, in the groups that the commands hand on."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from flows.cli import shared_options

if TYPE_CHECKING:
    from triton_backend.serve_folder.endpoints import Endpoints

CLIENTS = "Clients"  # a panel of the help


@dataclass(frozen=True, kw_only=True)
class Connection:
    """How `load` reaches the endpoint."""

    url: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            rich_help_panel="Connection",
            help="Address of the endpoint; by default the one that `poolpipe serve` started.",
        ),
    ] = None
    protocol: Annotated[
        Literal["grpc", "http"],
        typer.Option(
            metavar="grpc|http",
            rich_help_panel="Connection",
            help="Protocol of the endpoint at --url.",
        ),
    ] = "grpc"
    ca: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            rich_help_panel="Connection",
            help="Use TLS for gRPC and trust the authority in this PEM file.",
        ),
    ] = None
    cert: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            rich_help_panel="Connection",
            help="PEM file with the client's certificate, for mutual TLS.",
        ),
    ] = None
    key: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            rich_help_panel="Connection",
            help="PEM file with the key of the client's certificate.",
        ),
    ] = None
    connections: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            max=256,
            rich_help_panel="Connection",
            help="Number of gRPC connections, used in turn.",
        ),
    ] = 1

    def arguments(self) -> dict[str, Any]:
        """As the load generator's command line has them, `url` and `protocol` aside.

        None: not given.
        """
        return {
            "ca": self.ca,
            "cert": self.cert,
            "key": self.key,
            "connections": self.connections if self.connections > 1 else None,
        }


@dataclass(frozen=True, kw_only=True)
class SentLoad:
    """The load that `load` sends."""

    arrivals: shared_options.ArrivalsFrom = "poisson"
    shape: shared_options.Shape = shared_options.SHAPE
    load_factor: shared_options.LoadFactor = None
    rate: shared_options.Rate = None
    reference_plan: shared_options.ReferencePlan = None
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            "--application",
            metavar="NAME",
            rich_help_panel="Load",
            help="Send load to this model or application only; repeat it for several.",
        ),
    ] = None
    duration: shared_options.Duration = 30.0
    samples: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            max=4096,
            rich_help_panel="Load",
            help="Number of samples in each request.",
        ),
    ] = 1
    deadline_ms: Annotated[
        float | None,
        typer.Option(
            metavar="MS",
            min=0.001,
            max=1e7,
            rich_help_panel="Load",
            help="Deadline sent with every request; by default the server applies the SLO.",
        ),
    ] = None
    priority: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            max=100,
            rich_help_panel=CLIENTS,
            help="Priority of all requests: 2 and above are low, served with what others leave.",
        ),
    ] = 0
    client: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            rich_help_panel=CLIENTS,
            help="Name of the client that all requests say, under which `serve --quota` holds.",
        ),
    ] = None
    retries: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            max=10,
            rich_help_panel="Load",
            help="Send a request that failed or was dropped up to this many times again.",
        ),
    ] = 0
    seed: shared_options.Seed = 0
    trace_time: shared_options.TraceTime = shared_options.TIME_COLUMN
    trace_model: shared_options.TraceModel = None
    trace_interval: shared_options.TraceInterval = None
    trace_names: shared_options.TraceNames = None

    def __post_init__(self) -> None:
        trace = shared_options.of_trace(self)
        shared_options.check_load(self.arrivals, self.shape, self.load_factor, self.rate, trace)

    def arguments(self) -> dict[str, Any]:
        """The load generator's own options, without plans, factor, duration and seed."""
        return {
            "arrivals": self.arrivals,
            "shape": self.shape,
            "rate": self.rate,
            "model": self.model,
            "samples": self.samples,
            "deadline-ms": self.deadline_ms,
            "priority": self.priority or None,
            "client": self.client,
            "retries": self.retries or None,
            "trace-time": self.trace_time,
            "trace-model": self.trace_model,
            "trace-interval": self.trace_interval,
            "map": self.trace_names,
        }


@dataclass(frozen=True, kw_only=True)
class Ports:
    """Address and ports of a server's endpoints."""

    address: shared_options.Address = "127.0.0.1"
    http_port: shared_options.HttpPort = 8000
    grpc_port: shared_options.GrpcPort = 8001
    metrics_port: shared_options.MetricsPort = 8002
    accept_old_server: shared_options.AcceptOldServer = False

    def endpoints(self) -> "Endpoints":
        """Of the server."""
        from triton_backend.serve_folder.endpoints import Endpoints

        return Endpoints(
            http=self.http_port,
            grpc=self.grpc_port,
            metrics=self.metrics_port,
            address=self.address,
            accept_old_server=self.accept_old_server,
        )


@dataclass(frozen=True, kw_only=True)
class EndpointOptions(Ports):
    """Where and how `serve` answers."""

    metrics_address: Annotated[
        str,
        typer.Option(
            metavar="HOST",
            rich_help_panel="Endpoints",
            help="Serve metrics on this address; loopback by default.",
        ),
    ] = "127.0.0.1"
    tls_cert: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            rich_help_panel="Endpoints",
            help="Serve gRPC over TLS with the certificate in this PEM file.",
        ),
    ] = None
    tls_key: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", rich_help_panel="Endpoints", help="PEM file with the key of --tls-cert."
        ),
    ] = None
    tls_client_ca: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            rich_help_panel="Endpoints",
            help="Accept only clients with a certificate of the authority in this PEM file.",
        ),
    ] = None
    opened: Annotated[
        list[str] | None,
        typer.Option(
            "--open",
            metavar="NAME",
            rich_help_panel="Endpoints",
            help="Answer without the access token: model-config, statistics or shared-memory.",
        ),
    ] = None
    gateways: shared_options.Gateways = 1
    cut_models: shared_options.CutModels = False

    def endpoints(self) -> "Endpoints":
        """Of the server.

        Raises:
            InputError: files of TLS or names do not fit.
        """
        from triton_backend.serve_folder.endpoints import Tls

        return replace(
            Ports.endpoints(self),
            metrics_address=self.metrics_address,
            tls=Tls.from_files(self.tls_cert, self.tls_key, self.tls_client_ca),
            opened=tuple(self.opened or ()),
        )


@dataclass(frozen=True, kw_only=True)
class ClientQuotas:
    """Rates that clients may send."""

    quota: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME:NAME=RPS",
            rich_help_panel=CLIENTS,
            help="Rate up to which a served name answers a client, as net:shop=50; repeat it. "
            "Clients say their name by the header or parameter poolpipe-client.",
        ),
    ] = None
    over_quota: Annotated[
        Literal["low", "refused"],
        typer.Option(
            metavar="low|refused",
            rich_help_panel=CLIENTS,
            help="Fate of requests beyond a quota: low, served with what others leave (refused "
            "where nothing is low: applications, shared batches, two gateways), or refused.",
        ),
    ] = "low"

    def chosen(self) -> dict[str, Any]:
        """As `ServeOptions` has them.

        Raises:
            InputError: a quota is not written NAME:NAME=RPS, or given twice.
        """
        from triton_backend.contract.errors import InputError

        quotas: dict[str, dict[str, float]] = {}
        for pair, rate_rps in shared_options.rates("--quota", self.quota).items():
            name, _, client = pair.partition(":")
            if not name or not client:
                raise InputError(
                    "--quota", f"{pair!r} is not NAME:NAME, a served name and a client"
                )
            quotas.setdefault(name, {})[client] = rate_rps
        return {"quotas": quotas, "over_quota": self.over_quota}


@dataclass(frozen=True, kw_only=True)
class LateBinding:
    """Rules of late binding in place of the policy's own, as `simulate` takes them, too."""

    heads: shared_options.Heads = None
    target: shared_options.Target = None
    rank: shared_options.Rank = None
    batch_timeout_ms: shared_options.BatchTimeoutMs = None
    batch_timeout_share: shared_options.BatchTimeoutShare = None
    lead_us: shared_options.LeadUs = 0
    lead_us_per_sample: shared_options.LeadUsPerSample = 0

    def chosen(self) -> dict[str, Any]:
        """Those given, by name, as `ServeOptions` has them."""
        given = asdict(self)
        leads = ("lead_us", "lead_us_per_sample")
        return {
            "late_binding": {
                name: value
                for name, value in given.items()
                if value is not None and (value or name not in leads)
            }
        }


@dataclass(frozen=True, kw_only=True)
class EmulatedHardware:
    """How stages without real engines run."""

    nic: shared_options.Nic = "shared"
    noise: Annotated[
        float,
        typer.Option(
            metavar="FACTOR",
            min=0.0,
            max=10.0,
            rich_help_panel="Emulated hardware",
            help="Coefficient of variation of an emulated stage's run time.",
        ),
    ] = 0.0
    time_stretch: Annotated[
        float,
        typer.Option(
            metavar="FACTOR",
            min=0.001,
            max=1e6,
            rich_help_panel="Emulated hardware",
            help="Run emulated stages this many times slower than planned.",
        ),
    ] = 1.0
    interference: Annotated[
        str,
        typer.Option(
            metavar="planned|overlap",
            rich_help_panel="Emulated hardware",
            help="Slow-down of emulated stages on shared GPUs: the planned factor, or computed "
            "from the actual overlap.",
        ),
    ] = "planned"
    seed: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            rich_help_panel="Emulated hardware",
            help="Seed of the run times of emulated stages.",
        ),
    ] = 0


@dataclass(frozen=True, kw_only=True)
class OtherHosts:
    """Nodes on other hosts, and the nodes of this host for the gateway of another."""

    gateway_host: Annotated[
        str,
        typer.Option(
            metavar="HOST",
            rich_help_panel="Other hosts",
            help="Address of this host, as nodes on other hosts reach it.",
        ),
    ] = "127.0.0.1"
    host_http_port: Annotated[
        int,
        typer.Option(
            metavar="PORT",
            min=1,
            max=65535,
            rich_help_panel="Other hosts",
            help="The --http-port that the other hosts use.",
        ),
    ] = 8000
    join: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            rich_help_panel="Other hosts",
            help="Run this host's nodes for the gateway that wrote this settings.json.",
        ),
    ] = None
    host: Annotated[
        str | None,
        typer.Option(
            metavar="HOST",
            rich_help_panel="Other hosts",
            help="With --join: the address of this host.",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class NodeAddresses:
    """Addresses of the containers that `render` writes."""

    host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NODE=HOST",
            rich_help_panel="Containers",
            help="Address of a node; by default the node's own name.",
        ),
    ] = None
    gateway_host: Annotated[
        str | None,
        typer.Option(
            metavar="HOST",
            rich_help_panel="Containers",
            help="Address of the gateway; by default the gateway's own name.",
        ),
    ] = None

    def chosen(self) -> dict[str, Any]:
        """Those given, as `ServeOptions` has them.

        Raises:
            InputError: an address is not written NODE=HOST.
        """
        given = {} if self.gateway_host is None else {"gateway_host": self.gateway_host}
        return {"hosts": shared_options.pairs("--host", self.host), **given}
