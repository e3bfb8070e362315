"""Schemas of files: complete, and true of what is read and written."""

import json
from typing import Any

import jsonschema
import pytest

from flows.file_forms import ApplicationForm, ModuleForm
from flows.plan_fields import OBJECTS
from scripts.reference.forms import form_pages, schemas, undocumented
from tests.docs.pages import EXAMPLES
from tests.fakes.applications import hand_application, hand_module, with_applications
from tests.fakes.plans import two_stages, two_tails
from tests.fakes.unequal_shares import example
from triton_backend.contract.applications import Application, Module
from triton_backend.contract.applications.module import MODULE_FIELDS
from triton_backend.contract.plan import Plan


@pytest.mark.parametrize("name", ["cluster", "workload", "plan"])
def test_every_field_has_a_description_and_an_example(name: str) -> None:
    schema = schemas()[name]
    jsonschema.Draft202012Validator.check_schema(schema)
    assert undocumented(schema) == []


def test_a_field_without_a_description_is_noticed() -> None:
    bare = {"title": "t", "properties": {"a": {"description": "x"}}, "$defs": {}}
    assert undocumented(bare) == ["t.a"]


@pytest.mark.parametrize("name", ["cluster", "workload"])
def test_examples_of_fields_fit_their_schemas(name: str) -> None:
    schema = schemas()[name]
    for form in (schema, *schema["$defs"].values()):
        for given in form["properties"].values():
            checked = {"$ref": given["$ref"]} if "$ref" in given else given
            whole = checked | {"$defs": schema["$defs"]}
            for value in given["examples"]:
                jsonschema.validate(value, whole)


def test_every_object_of_a_file_has_a_section_named_by_its_place() -> None:
    page = form_pages()["workload.md"]
    assert "## `applications[]`" in page
    assert "| list of `applications[]` |" in page
    assert "list of object" not in page
    for page in form_pages().values():
        assert "Form`" not in page


def plans() -> dict[str, dict[str, Any]]:
    """Plans that together state nearly every field."""
    name = two_stages().models[0].name
    again = hand_module("again", name, "first", rows=2.0, max_rows=4, optional=True)
    application = hand_application("app", (hand_module("first", name), again))
    return {
        "stages": two_stages().to_dict(),
        "entries and shared batches": two_tails().to_dict(),
        "shares": Plan.from_dict(example()).to_dict(),
        "application": with_applications(two_stages(), application).to_dict(),
    }


@pytest.mark.parametrize("name", plans())
def test_plans_fit_the_schema(name: str) -> None:
    jsonschema.validate(json.loads(json.dumps(plans()[name])), schemas()["plan"])


def test_a_plan_with_an_unknown_field_does_not_fit() -> None:
    document = two_stages().to_dict()
    document["pools"][0]["colour"] = "red"
    with pytest.raises(jsonschema.ValidationError, match="colour"):
        jsonschema.validate(document, schemas()["plan"])


def test_forms_of_applications_have_the_fields_that_the_contract_reads() -> None:
    assert set(ModuleForm.model_fields) == set(MODULE_FIELDS)
    one = Module(name="m", model="net")
    made = Application(name="a", slo_us=1000, modules=(one,), rate_rps=1.0, weight=1.0)
    assert set(ApplicationForm.model_fields) == {*made.to_dict(), "outputs"}


def test_no_object_of_the_table_lists_a_field_twice() -> None:
    for fields in OBJECTS.values():
        names = [field.key for field in fields]
        assert sorted(names) == sorted(set(names))


def test_examples_name_the_schema_that_completes_them() -> None:
    for file in sorted(EXAMPLES.glob("*.yaml")):
        first = file.read_text().splitlines()[0]
        if "yaml-language-server" in first:
            assert (EXAMPLES / first.partition("$schema=")[2]).is_file()
