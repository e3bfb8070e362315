"""Plans of one model in two sizes, for servers that must start in seconds."""

from dataclasses import replace

from tests.triton_backend.serving.small_plans import model, plan, stage, tensor
from triton_backend.contract.plan import Plan
from triton_backend.contract.workload import ModelDemand, Workload

NAME = "reader"
WIDTHS = (32, 64)
SIZES = tuple(f"{NAME}@3x{width}" for width in WIDTHS)


def sized_plan(
    widths: tuple[int, ...] = WIDTHS, plan_id: str = "sized", names: tuple[str, ...] = (NAME,)
) -> Plan:
    """Emulated models of these sizes each, told apart by the shapes of their answers."""
    found = plan(
        *(
            model(
                f"{name}@3x{width}",
                (stage((0, 10), "FAST", 0),),
                inputs=(tensor("x", 3, width),),
                outputs=(tensor("y", width // 4),),
            )
            for name in names
            for width in widths
        ),
        plan_id=plan_id,
    )
    demands = tuple(
        ModelDemand(name=one.name, slo_us=one.slo_us, size_of=one.name.split("@")[0])
        for one in found.models
    )
    return replace(found, workload=Workload(models=demands))
