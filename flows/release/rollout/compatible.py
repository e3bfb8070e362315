"""Which plans can follow one that is being served: names and tensors that clients know stay."""

from typing import Any

from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import ModelPlan, Plan
from triton_backend.runtimes.stage_tensors import endpoints, request_tensors, served_models
from triton_backend.serve_folder.names import VARIANT_OUTPUT
from triton_backend.serve_folder.repository import Declared, declared

RENAME = "give it another name"
SHADOW = (
    "a rollout cannot open or close a cut of a model with entries; a plan with --shadow-rps has all"
    " open: stop and serve one"
)


def check_tensors(model: ModelPlan, new: Plan) -> None:
    """Clients of a model that stays must not see other tensors.

    They know them by name, in any order.

    Raises:
        InputError: they would.
    """
    for other in served_models(new):
        if other.name == model.name and (
            request_tensors(other) != request_tensors(model) or {*other.outputs} != {*model.outputs}
        ):
            raise InputError(
                f"plan {new.plan_id}, model {model.name!r}",
                "has other inputs or outputs than the plan being served; "
                + (SHADOW if model.entries and other.entries else RENAME),
            )


def check_artifacts(old: Plan, new: Plan) -> None:
    """Refuse a plan that would emulate a model whose stages compute answers now.

    A stage without an artifact returns dummy outputs, with which clients could do nothing.

    Raises:
        InputError: a stage of such a model has no artifact.
    """
    computed = {
        m.name for m in old.models if any(s.artifact for p in m.pipelines for s in p.stages)
    }
    for model in new.models:
        for stage in (s for p in model.pipelines for s in p.stages):
            if stage.artifact is None and model.name in computed:
                first, last = stage.blocks
                raise InputError(
                    f"plan {new.plan_id}, model {model.name!r}",
                    f"blocks {first} to {last - 1} are not built, so that dummy outputs would"
                    " follow computed ones; build them: `poolpipe engines`, or plan, steer and"
                    " autoscale with a --cluster that states runtimes",
                )


def check_names(old: Plan, new: Plan) -> None:
    """Check that a rollout can change what answers for each name that stays.

    Its sizes and variants come and go in the front that serves it. Triton loads no model again, so
    that the tensors that its configuration declares stay.

    Raises:
        InputError: a model would answer for another name, or a tensor would not be the declared
            one.
    """
    before, after = endpoints(old), endpoints(new)
    asked = {size.name: name for name, sizes in before.items() for size in sizes}
    for name, sizes in after.items():
        where = f"plan {new.plan_id}, model {name!r}"
        for size in sizes:
            if (former := asked.get(size.name, name)) != name:
                reason = f"{size.name!r} answers for {former!r} in the plan being served"
                raise InputError(where, f"{reason}; remove it first, by a rollout of its own")
        if name in before:
            versions = _check_versions(where, name, old, new)
            former = declared(name, before[name], versions=versions)
            _check_declared(where, former, declared(name, sizes, versions=versions))


def _check_versions(where: str, name: str, old: Plan, new: Plan) -> bool:
    """Check that a rollout can change the versions of a name that stays; whether it has some.

    Triton hands requests to the highest version that is loaded at the moment, so one stays loaded.
    """
    before, after = (plan.workload.versions.get(name) for plan in (old, new))
    if before is None and after is None:
        return False
    if before is None or after is None:
        with_or_without = "without versions" if before is None else "with versions"
        reason = f"is served {with_or_without}, which a rollout cannot change"
        raise InputError(where, f"{reason}; {RENAME}, or stop and serve the new plan")
    if not before.keys() & after.keys():
        listed = ", ".join(map(str, before))
        reason = f"keeps no version of those being served ({listed}); add the new ones first"
        raise InputError(where, f"{reason}, and remove the others by a rollout of its own")
    known = {demand.name: version for version, demand in before.items()}
    for version, demand in after.items():
        if known.get(demand.name, version) != version:
            reason = f"{demand.name!r} is version {known[demand.name]} in the plan being served"
            raise InputError(where, f"{reason}; remove it first, by a rollout of its own")
    return True


def _check_declared(where: str, before: Declared, after: Declared) -> None:
    """Check the tensors of a name against those of the Triton model that serves it."""
    for kind in ("inputs", "outputs"):
        former = {one["name"]: one for one in before[kind]}
        wanted = {one["name"]: one for one in after[kind]}
        for tensor in wanted.keys() | former.keys():
            one, other = former.get(tensor), wanted.get(tensor)
            if tensor == VARIANT_OUTPUT or (one and other and _covers(one, other)):
                continue
            if one is None or other is None or _kind(one) != _kind(other):
                raise InputError(where, f"has other {kind} than the one being served; {RENAME}")
            shape = "x".join(map(str, one["shape"][1:]))
            raise InputError(
                where,
                f"is served with {tensor!r} of shape {shape} alone, which a rollout cannot open;"
                f" {RENAME}, or stop and serve the new plan",
            )


def _kind(tensor: dict[str, Any]) -> tuple[str, int, bool]:
    return tensor["dtype"], len(tensor["shape"]), tensor.get("optional", False)


def _covers(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """True if a declared tensor takes all that another one does."""
    dims = zip(one["shape"], other["shape"], strict=False)
    return _kind(one) == _kind(other) and all(mine in (-1, theirs) for mine, theirs in dims)
