"""How an interference model is fitted; importing this loads nothing that fits."""

from dataclasses import dataclass

from flows.options import check_options, option


@dataclass(frozen=True, slots=True, kw_only=True)
class FitOptions:
    """Which pairs, and how."""

    gpu_class: str | None = option(
        None,
        help="The GPU class to fit; needed where the tables hold several classes.",
        metavar="NAME",
    )
    from_runs: bool = option(
        default=False,
        help="Use pairs that the running system measured (`poolpipe ingest`), not profiled ones.",
    )
    robust: bool = option(default=False, help="Give outliers less weight (Huber loss).")
    seed: int = option(
        0,
        help="Seed that divides the pairs into training and validation.",
        least=0,
        metavar="N",
    )

    def __post_init__(self) -> None:
        check_options(self)
