"""Plans of one name in several versions, for servers that must start in seconds."""

from collections.abc import Mapping
from dataclasses import replace

from tests.triton_backend.serving.small_plans import RATE_RPS, model, plan, stage, tensor
from triton_backend.contract.plan import Plan
from triton_backend.contract.workload import ModelDemand, Workload

NAME = "net"
VERSIONS = (1, 2)
GIVEN, ANSWER = (tensor("x", 3),), (tensor("y", 3),)


def version_name(version: int) -> str:
    """The planned model of a version."""
    return f"{NAME}-v{version}"


def versioned_plan(
    versions: tuple[int, ...] = VERSIONS,
    plan_id: str = "versions",
    artifacts: Mapping[int, str] | None = None,
) -> Plan:
    """A model on GPUs of its own for each version of `NAME`."""
    found = plan(
        *(
            model(
                version_name(version),
                (stage((0, 1), "FAST", 0, artifact=(artifacts or {}).get(version)),),
                inputs=GIVEN,
                outputs=ANSWER,
            )
            for version in versions
        ),
        plan_id=plan_id,
    )
    demands = tuple(
        ModelDemand(
            name=version_name(version),
            slo_us=found.model(version_name(version)).slo_us,
            rate_rps=RATE_RPS,
            size_of=NAME,
            version=version,
        )
        for version in versions
    )
    return replace(found, workload=Workload(models=demands))
