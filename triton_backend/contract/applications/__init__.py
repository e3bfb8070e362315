"""Applications: DAGs of modules, as asked for (`workload.yaml`) and as planned (`plan.json`)."""

from triton_backend.contract.applications.application import Application, check_names
from triton_backend.contract.applications.module import REQUEST, Module, read_bindings
from triton_backend.contract.applications.planned import ApplicationPlan
from triton_backend.contract.applications.tensors import check_tensors, shape_name, widest
from triton_backend.contract.applications.transfers import (
    producing_models,
    received_bytes,
    sent_bytes,
)

__all__ = [
    "REQUEST",
    "Application",
    "ApplicationPlan",
    "Module",
    "check_names",
    "check_tensors",
    "producing_models",
    "read_bindings",
    "received_bytes",
    "sent_bytes",
    "shape_name",
    "widest",
]
