"""Small plans with applications, and what their jobs must be answered.

Module after module, in numpy.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from tests.fakes.plans import HandModel
from tests.triton_backend.runtimes.stages import write_crops
from tests.triton_backend.serving import small_plans
from tests.triton_backend.serving.artifacts import write_join, write_stage
from triton_backend.contract.applications import Application, ApplicationPlan, Module
from triton_backend.contract.plan import Plan
from triton_backend.contract.tensors import TensorSpec
from triton_backend.contract.workload import Workload
from triton_backend.runtimes.base import NUMPY_DTYPES
from triton_backend.runtimes.emulated import drawn_place, drawn_rows, row_mark, sample_marks
from triton_backend.serving.deployment import Deployment
from triton_backend.serving.transport.shared_memory import Arrays

DROPPED = "classify.dropped"
CROPS_ROWS = "crops_rows"
SLO_US = 1_500_000


def one_stage(name: str) -> HandModel:
    """A model of one stage without stated tensors."""
    return small_plans.model(name, (small_plans.stage((0, 10), "FAST", 0),))


def two_stage(name: str) -> HandModel:
    stages = small_plans.stage((0, 5), "FAST", 0), small_plans.stage((5, 10), "SLOW", 1, vgpus=2)
    return small_plans.model(name, stages)


def application(
    name: str, *modules: Module, outputs: Mapping[str, str] | None = None, rate_rps: float = 40.0
) -> Application:
    return Application(
        name=name, slo_us=SLO_US, rate_rps=rate_rps, modules=modules, outputs=outputs or {}
    )


def module(name: str, *after: str, model: str = "", **fields: Any) -> Module:
    return Module(name=name, model=model or f"m_{name}", after=after, **fields)


def with_applications(plan: Plan, *graphs: Application, alone: tuple[str, ...] = ()) -> Plan:
    """A plan that serves applications, and of its models only those in `alone` by themselves."""
    planned = [
        ApplicationPlan(
            application=graph,
            budgets_us={m.name: plan.model(m.model).slo_us for m in graph.modules},
        )
        for graph in graphs
    ]
    demands = tuple(demand for demand in plan.workload.models if demand.name in alone)
    workload = Workload(models=demands, applications=graphs)
    return replace(plan, applications=tuple(planned), workload=workload)


def diamond(name: str = "actdet") -> Application:
    """One module, two that read it, one that reads both."""
    return application(name, module("a"), module("b", "a"), module("c", "a"), module("d", "b", "c"))


def traffic() -> Application:
    """A detector, and two modules that run as many rows as it finds for each: often none."""
    return application(
        "traffic",
        module("detect", model="m_a"),
        module("cars", "detect", model="m_b", rows_per_request=2.4, max_rows=6, optional=True),
        module("people", "detect", model="m_c", rows_per_request=0.7, max_rows=2, optional=True),
        outputs={
            "boxes": "detect.output",
            "cars_of": "detect.for_cars_rows",
            "car": "cars.output",
            "person": "people.output",
        },
    )


def sized_plan(plan_id: str = "sized", shares: tuple[float, float] = (0.5, 0.5)) -> Plan:
    """A module whose rows choose among two sizes, the wider on another node, and a reader of both.

    `x` is [8], its rows [2] or [4].
    """
    tensor = small_plans.tensor
    ends = {
        "m_a": ((tensor("x", 8),), (tensor("x", 4), tensor("x_shape", 1, dtype="INT64"))),
        "m_b": ((tensor("x", 2),), (tensor("y", 2),)),
        "m_c": ((tensor("x", 4),), (tensor("y", 4),)),
        "m_d": ((tensor("y", 4),), (tensor("z", 1),)),
    }
    models = [
        small_plans.model(
            name,
            (small_plans.stage((0, 10), *(("SLOW", 1) if name == "m_c" else ("FAST", 0))),),
            inputs=inputs,
            outputs=outputs,
        )
        for name, (inputs, outputs) in ends.items()
    ]
    sizes = [
        Module(
            name=f"read@{n}",
            model=f"m_{name}",
            rows_per_request=share,
            max_rows=1,
            inputs={"x": "fit.x"},
            size_of="read",
            size_by="fit.x",
        )
        for n, name, share in ((2, "b", shares[0]), (4, "c", shares[1]))
    ]
    graph = application(
        "sized",
        Module(name="fit", model="m_a", inputs={"x": "request.x"}),
        *sizes,
        Module(name="all", model="m_d", inputs={"y": "read.y"}),
        outputs={"y": "read.y", "z": "all.z"},
    )
    return with_applications(small_plans.plan(*models, plan_id=plan_id), graph)


def sized_answer(x: NDArray[np.float32], shares: tuple[float, float] = (0.5, 0.5)) -> Arrays:
    """The answer of `sized_plan`, row by row."""
    y, z = np.zeros((len(x), 4), np.float32), np.zeros((len(x), 1), np.float32)
    for row, mark in enumerate(_marks([x])):
        columns = (2, 4)[drawn_place(mark, shares)]
        (seen,) = _marks([np.full((1, columns), mark, np.float32)])
        y[row, :columns] = seen
        z[row] = _marks([y[row : row + 1]])[0]
    return {"y": y, "z": z}


def expected(deployment: Deployment, name: str, request: Arrays) -> Arrays:
    """The answer of an application of emulated models.

    Where several pipelines run one, by their first.
    """
    return right_answers([deployment], name, request)[0]


def right_answers(deployments: Sequence[Deployment], name: str, request: Arrays) -> list[Arrays]:
    """Every right answer of an application of emulated models while generations are served.

    What an emulated model makes of a row depends on the tensors between its stages, and how many
    rows it gives on the mean that its generation states. So each module may have run as any
    pipeline of any generation says.
    """
    graph = deployments[0].applications.graph_of(name)
    ways: list[dict[str, Arrays]] = [{"request": request}]
    for one in graph.ordered():
        ways = [
            known | {one.name: made} for known in ways for made in _made(deployments, one, known)
        ]
    not_dropped = {f"{m.name}.dropped": np.array([False]) for m in graph.modules if m.optional}
    return [
        not_dropped
        | {
            output: known[source.partition(".")[0]][source.partition(".")[2]]
            for output, source in graph.outputs.items()
        }
        for known in ways
    ]


def _made(
    deployments: Sequence[Deployment], one: Module, known: Mapping[str, Arrays]
) -> list[Arrays]:
    """Possible outputs of a module, each once."""
    inputs = {
        tensor: known[source.partition(".")[0]][source.partition(".")[2]]
        for tensor, source in one.inputs.items()
    }
    found: dict[tuple[bytes, ...], Arrays] = {}
    for deployment, other in product(deployments, deployments):
        model = deployment.plan.model(one.model)
        first = _marks([inputs[spec.name] for spec in model.inputs])
        for pipeline in model.pipelines:
            marks = first
            for stage in pipeline.stages[:-1]:
                boundary = stage.boundary or ()
                marks = _marks([_filled(spec.shape, spec.dtype, marks) for spec in boundary])
            made = {s.name: _filled(s.shape, s.dtype, marks) for s in model.outputs}
            for output, (counts, most, mean) in other.applications.drawn_rows(one.model).items():
                drawn = [drawn_rows(mark, mean, most) for mark in marks]
                rows = [row_mark(m, k) for m, n in zip(marks, drawn, strict=True) for k in range(n)]
                (spec,) = (s for s in model.outputs if s.name == output)
                made[output] = _filled(spec.shape, spec.dtype, rows)
                made[counts] = np.array(drawn, dtype=np.int64)
            found.setdefault(tuple(array.tobytes() for array in made.values()), made)
    return list(found.values())


def _marks(inputs: Sequence[NDArray[np.generic]]) -> list[int]:
    return sample_marks(inputs) if len(inputs[0]) else []


def _filled(shape: tuple[int, ...], dtype: str, marks: list[int]) -> NDArray[np.generic]:
    out = np.empty((len(marks), *shape[1:]), NUMPY_DTYPES[dtype])
    for i, mark in enumerate(marks):
        out[i] = mark
    return out


def onnx_plan(
    root: Path, beside: Sequence[HandModel] = (), applications: Sequence[Application] = ()
) -> Plan:
    """Applications of real models.

    A diamond, a model whose 0 to 4 crops of a sample another one reads, and one alone.
    `applications` of the models `beside` are served too.

    y = 3x, then y + 1 and y - 2, then their difference; `detect` gives crops, which `a` makes
    larger.
    """
    x, y = small_plans.tensor("x", 3), small_plans.tensor("y", 3)
    for name, operator, number in (("a", "Mul", 3.0), ("b", "Add", 1.0), ("c", "Sub", 2.0)):
        write_stage(root, name, operator, number, ("x", "y"))
    write_join(root, "d", "Sub", ("left", "right"), "y")
    for name in ("detect", "find"):
        write_crops(root / name, most=4)
    join = small_plans.tensor("left", 3), small_plans.tensor("right", 3)
    crops = small_plans.tensor("crops", 3), TensorSpec(name=CROPS_ROWS, dtype="INT64", shape=(-1,))
    ends = dict.fromkeys("abc", ((x,), (y,))) | {"d": (join, (y,))}
    ends |= {"detect": ((x,), crops), "find": ((x,), crops)}
    models = [
        small_plans.model(
            name,
            (small_plans.stage((0, 1), "FAST", 0, artifact=name),),
            inputs=inputs,
            outputs=outputs,
        )
        for name, (inputs, outputs) in ends.items()
    ]
    return with_applications(
        small_plans.plan(*models, *beside, plan_id="onnx"),
        *applications,
        application(
            "diamond",
            module("first", model="a", inputs={"x": "request.x"}),
            module("left", "first", model="b", inputs={"x": "first.y"}),
            module("right", "first", model="c", inputs={"x": "first.y"}),
            module(
                "last", "left", "right", model="d", inputs={"left": "left.y", "right": "right.y"}
            ),
            outputs={"all": "last.y", "half": "left.y"},
        ),
        application(
            "crops",
            module("detect", model="detect", inputs={"x": "request.x"}),
            Module(
                name="classify",
                model="a",
                rows_per_request=2.0,
                max_rows=4,
                optional=True,
                inputs={"x": "detect.crops"},
            ),
            outputs={"found": "detect.crops_rows", "y": "classify.y"},
        ),
        application(
            "alone",
            module("find", max_rows_given=4, model="find", inputs={"x": "request.x"}),
            outputs={"found": "find.crops_rows", "crops": "find.crops"},
        ),
    )


class OneAfterTheOther:
    """Right answers of the applications of `onnx_plan`: their models in onnxruntime."""

    def __init__(self, root: Path) -> None:
        self._sessions = {
            name: onnxruntime.InferenceSession(str(root / name / "model.onnx"))
            for name in ("a", "b", "c", "d", "detect", "find")
        }

    def answer(self, name: str, x: NDArray[np.float32]) -> dict[str, Any]:
        """Of one application."""
        if name == "crops":
            crops, counts = self._run("detect", x=x)
            (y,) = self._run("a", x=crops)
            return {"found": counts, "y": y, DROPPED: np.array([False])}
        if name == "alone":
            crops, counts = self._run("find", x=x)
            return {"found": counts, "crops": crops}
        (a,) = self._run("a", x=x)
        (b,), (c,) = self._run("b", x=a), self._run("c", x=a)
        (d,) = self._run("d", left=b, right=c)
        return {"all": d, "half": b}

    def _run(self, name: str, **inputs: Any) -> list[Any]:
        return list(self._sessions[name].run(None, inputs))
