"""Complaints of flows: names of the form, and one line in the log."""

import importlib
import logging
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.deployments.orchestration.complaints import LOGGERS, as_of_form, of_form
from flows.deployments.parameters import PlanParameters, RolloutParameters, WhatIfParameters
from flows.planning.sweep import what_if
from tests.flows.planning.test_sweep import SITUATION
from triton_backend.contract.errors import InfeasibleError, InputError, InvariantError

ROOT = Path(__file__).parents[4]
DEPLOYMENTS = yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]


@pytest.mark.parametrize(
    ("form", "error", "said"),
    [
        (WhatIfParameters, InputError("option vary", "gpus: 1"), "vary: gpus: 1"),
        (PlanParameters, InputError("option minimum_rps.net", "-1"), "minimum_rps.net: -1"),
        (
            PlanParameters,
            InputError("planning", "raise --time-limit"),
            "planning: raise time_limit_s",
        ),
        (PlanParameters, InputError("--keep net", "is 0"), "minimum_rps net: is 0"),
        (RolloutParameters, InputError("rollout --canary", "no"), "rollout canary: no"),
        (PlanParameters, InputError("a", "try `poolpipe plan --gap 1`, --loud"), None),
        (
            PlanParameters,
            InputError("a.lock", "(--gap beside): process 7 (poolpipe plan --gap 1), since 2026"),
            "a.lock: (gap beside): process 7 (poolpipe plan --gap 1), since 2026",
        ),
        (PlanParameters, InfeasibleError("net", "no plan"), None),
    ],
)
def test_a_complaint_names_fields_of_the_form(
    form: type[Any], error: InputError, said: str | None
) -> None:
    found = as_of_form(error, form)
    assert (type(found), str(found)) == (type(error), said or str(error))


def test_a_variation_that_there_is_none_of_is_named_as_the_field() -> None:
    with pytest.raises(InputError, match=r"^option vary: 'colour' is none of"):
        what_if(SITUATION, "colour", [1])


@pytest.mark.long
@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda d: d["name"])
def test_every_deployment_complains_in_terms_of_its_form(deployment: dict[str, Any]) -> None:
    path, _, name = deployment["entrypoint"].partition(":")
    flow = getattr(importlib.import_module(path.removesuffix(".py").replace("/", ".")), name)
    assert flow.fn.__wrapped__.__name__ == name


@pytest.mark.parametrize("name", LOGGERS)
@pytest.mark.parametrize(
    ("error", "traced"),
    [(InputError("vary", "no"), False), (InvariantError("ours"), True), (KeyError("x"), True)],
)
def test_only_what_is_no_complaint_has_a_traceback_in_the_log(
    name: str, error: Exception, *, traced: bool
) -> None:
    of_form(type("Made", (), {"fn": print}))
    logger = logging.getLogger(name)
    raised = (type(error), error, None)
    record = logger.makeRecord(name, logging.ERROR, "a.py", 1, "%r", (error,), raised)
    assert logger.filter(record)
    assert (record.exc_info == raised, record.getMessage()) == (traced, repr(error))
