"""Table I of the Piccolo paper with unrounded throughputs b / d, and chains of it."""

from flows.planning.applications.lines import Lines, lines_to_plan
from flows.planning.applications.machines import Machine, ranked
from triton_backend.contract.workload import Workload

_TABLE = {
    "M1": ((5, 0.100), (20, 0.250), (100, 1.000)),
    "M2": ((2, 0.125), (4, 0.160), (8, 0.8 / 3)),
    "M3": ((2, 0.5 / 3), (4, 0.200), (8, 0.320)),
}
TABLES = {
    name: ranked(
        [
            Machine(batch=b, duration_us=d * 1e6, rate_rps=b / d, price=1.0, gpu_class="gpu")
            for b, d in rows
        ]
    )
    for name, rows in _TABLE.items()
}


def application(slo_ms: float, *modules: tuple[str, str, float, tuple[str, ...]]) -> Lines:
    """An application of (name, model, rows per request, after) at 50 requests/s."""
    listed = [
        {
            "name": name,
            "model": model,
            "rows_per_request": rows,
            "max_rows": 9,
            "after": list(after),
        }
        for name, model, rows, after in modules
    ]
    asked = {"name": "app", "slo_ms": slo_ms, "rate_rps": 50, "modules": listed}
    return lines_to_plan(Workload.from_dict({"applications": [asked]}), "cost", {"app": 0.0})


def chain(slo_ms: float) -> Lines:
    """M2 at 50/s, then M3 at 40/s (section II)."""
    return application(slo_ms, ("first", "M2", 1, ()), ("second", "M3", 0.8, ("first",)))


def rates_of(lines: Lines) -> list[float]:
    return [demand.rate_rps or 0.0 for demand in lines.demands]
