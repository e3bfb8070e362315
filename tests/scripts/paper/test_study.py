"""Runs of the reproduction: a group's models are loaded at once, against the plan of `pool`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from scripts.paper.study import Study

if TYPE_CHECKING:
    from scripts.paper.cells import PaperData
    from scripts.paper.runs import Runner


class Plans:
    """Names in place of plans."""

    def group_plan(self, *asked: str) -> Any:
        return "/".join(asked)


def test_a_group_is_one_run_of_all_its_models_on_isolated_nics() -> None:
    study = Study(
        data=cast("PaperData", Plans()),
        out=Path(),
        policy="reservation",
        runner=cast("Runner", None),
    )
    run = study.together("G1", "HC1-L", "dart-r")
    assert run.plan == "G1/HC1-L/dart-r"
    assert run.options.reference == "G1/HC1-L/pool"
    assert (run.options.models, run.options.nic) == (None, "isolated")
