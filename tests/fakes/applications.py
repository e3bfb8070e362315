"""Applications over plans made by hand."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from triton_backend.contract.applications import Application, ApplicationPlan, Module
from triton_backend.contract.plan import Plan


def hand_module(
    name: str,
    model: str,
    *after: str,
    rows: float = 1.0,
    max_rows: int | None = None,
    optional: bool = False,
) -> Module:
    """A module after others, without stated tensors."""
    return Module(
        name=name,
        model=model,
        after=after,
        rows_per_request=rows,
        max_rows=max_rows,
        optional=optional,
    )


def hand_application(
    name: str,
    modules: Sequence[Module],
    *,
    slo_us: int = 100_000,
    rate_rps: float = 10.0,
    budgets_us: Mapping[str, int] | None = None,
) -> ApplicationPlan:
    """An application as planned.

    Without budgets all modules on the longest path have equal ones.
    """
    application = Application(name=name, slo_us=slo_us, modules=tuple(modules), rate_rps=rate_rps)
    depth = application.longest({module.name: 1 for module in modules})
    equal = {module.name: int(slo_us // depth) for module in modules}
    return ApplicationPlan(application=application, budgets_us=budgets_us or equal)


def with_applications(plan: Plan, *applications: ApplicationPlan) -> Plan:
    """The plan with applications over its models."""
    return replace(plan, applications=applications)


def diamond(*, optional: bool = False, rows: float = 2.0, max_rows: int = 8) -> tuple[Module, ...]:
    """detect -> cars, people (rows that vary) -> join (a row per request)."""
    return (
        hand_module("detect", "m0"),
        hand_module("cars", "m1", "detect", rows=rows, max_rows=max_rows),
        hand_module("people", "m2", "detect", rows=rows, max_rows=max_rows, optional=optional),
        hand_module("join", "m3", "cars", *(() if optional else ("people",))),
    )
