"""An application as planned: how much time each module has, and what comes after it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from triton_backend.contract.applications.application import Application
from triton_backend.contract.applications.module import MODULE_FIELDS, Module, read_bindings
from triton_backend.contract.errors import InputError
from triton_backend.contract.fields import Fields
from triton_backend.contract.tensors import TensorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationPlan:
    """An application as planned.

    Attributes:
        application: with the rate that is planned for it.
        budgets_us: by module, the time it may take, gathering included; what a path sums up to is
            `verify`'s matter.
        least_latency_us: below this no plan could promise an SLO.
        inputs: the tensors of a client request, where they are known.
    """

    application: Application
    budgets_us: Mapping[str, int]
    least_latency_us: int = 0
    inputs: tuple[TensorSpec, ...] = ()

    def __post_init__(self) -> None:
        if self.application.rate_rps is None:
            raise InputError(f"application {self.name!r}.rate_rps", "is missing")
        for module in self.application.modules:
            budget_us = self.budgets_us.get(module.name, 0)
            if budget_us < 1:
                where = f"application {self.name!r}, module {module.name!r}.budget_us"
                raise InputError(where, f"{budget_us} is not positive")

    @property
    def name(self) -> str:
        """Name of the application."""
        return self.application.name

    @property
    def tails_us(self) -> dict[str, int]:
        """By module, the greatest sum of budgets on a path below it."""
        return {name: int(tail) for name, tail in self.application.tails(self.budgets_us).items()}

    def to_dict(self) -> dict[str, Any]:
        """Plain form, as in `plan.json`."""
        application, tails_us = self.application, self.tails_us
        return {
            "name": application.name,
            "slo_us": application.slo_us,
            "rate_rps": application.rate_rps,
            "least_latency_us": self.least_latency_us,
            "inputs": [spec.to_dict() for spec in self.inputs],
            "outputs": dict(application.outputs),
            "modules": [
                {
                    "name": module.name,
                    "model": module.model,
                    "after": list(module.parents),
                    "rows_per_request": module.rows_per_request,
                    "max_rows": module.max_rows,
                    **_given(module),
                    "optional": module.optional,
                    "bindings": dict(module.inputs),
                    "budget_us": self.budgets_us[module.name],
                    "tail_us": tails_us[module.name],
                }
                | _size(module)
                for module in application.modules
            ],
        }

    @classmethod
    def read(cls, fields: Fields) -> Self:
        """Inverse of `to_dict`.

        Raises:
            InputError: a field is missing, or a tail is not what the budgets below sum up to.
        """
        name = fields.text("name")
        fields = Fields(fields.plain(), f"application {name!r}")
        stated: dict[str, Fields] = {}
        modules: list[Module] = []
        for given in fields.items("modules"):
            plain = given.plain()
            plain["inputs"] = plain.pop("bindings", {})
            kept = {key: value for key, value in plain.items() if key in MODULE_FIELDS}
            modules.append(Module.read(Fields(kept, f"application {name!r}.modules"), name))
            where = f"application {name!r}, module {modules[-1].name!r}"
            stated[modules[-1].name] = Fields(plain, where)
        plan = cls(
            application=Application(
                name=name,
                slo_us=fields.integer("slo_us", least=1),
                rate_rps=fields.number("rate_rps"),
                modules=tuple(modules),
                outputs=read_bindings(fields, "outputs"),
            ),
            budgets_us={m: given.integer("budget_us", least=1) for m, given in stated.items()},
            least_latency_us=fields.integer("least_latency_us")
            if fields.has("least_latency_us")
            else 0,
            inputs=tuple(
                map(TensorSpec.read, fields.items("inputs") if fields.has("inputs") else ())
            ),
        )
        for module, tail_us in plan.tails_us.items():
            given = stated[module]
            said = given.integer("tail_us") if given.has("tail_us") else tail_us
            if said != tail_us:
                raise given.wrong("tail_us", f"{said}, the budgets below sum up to {tail_us}")
        return plan


def _size(module: Module) -> dict[str, str]:
    """How rows choose it, where it is one of several sizes: other plans keep their form."""
    if module.size_of is None or module.size_by is None:
        return {}
    return {"size_of": module.size_of, "size_by": module.size_by}


def _given(module: Module) -> dict[str, int]:
    """Most rows that a sample gives, where the module says so: plans without it keep their form."""
    given = module.max_rows_given
    return {} if given is None else {"max_rows_given": given}
