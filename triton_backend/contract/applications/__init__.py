"""Applications: DAGs of modules, as asked for (`workload.yaml`) and as planned (`plan.json`)."""

from triton_backend.contract.applications.application import (
    REQUEST,
    Application,
    Module,
    check_names,
    check_tensors,
    read_bindings,
)
from triton_backend.contract.applications.planned import ApplicationPlan

__all__ = [
    "REQUEST",
    "Application",
    "ApplicationPlan",
    "Module",
    "check_names",
    "check_tensors",
    "read_bindings",
]
