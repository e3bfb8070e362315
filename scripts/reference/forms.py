"""Pages and JSON schemas of the files that users write and read."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flows.file_forms import ClusterForm, WorkloadForm
from flows.plan_fields import OBJECTS
from scripts.reference.markdown import page, table
from triton_backend.contract.fields import FieldForm

DIALECT = "https://json-schema.org/draft/2020-12/schema"
KINDS: Mapping[str, dict[str, Any]] = {
    "text": {"type": "string"},
    "integer": {"type": "integer"},
    "number": {"type": "number"},
    "flag": {"type": "boolean"},
    "texts": {"type": "array", "items": {"type": "string"}},
    "integers": {"type": "array", "items": {"type": "integer"}},
    "table": {"type": "object"},
}
SCHEMA_LINE = "# yaml-language-server: $schema="


def schemas() -> dict[str, dict[str, Any]]:
    """Schema of every file by its name without an ending."""
    return {
        "cluster": _titled(ClusterForm.model_json_schema(), "cluster.yaml"),
        "workload": _titled(WorkloadForm.model_json_schema(), "workload.yaml"),
        "plan": _plan_schema(),
    }


def form_pages() -> dict[str, str]:
    """Text of every page and schema by its path below `docs/reference/`."""
    found = schemas()
    pages = {
        f"schema/{name}.json": json.dumps(schema, indent=1, ensure_ascii=False) + "\n"
        for name, schema in found.items()
    }
    for name, title, about in (
        ("cluster", "cluster.yaml", "GPU classes and nodes. Read by `plan`, `build`, `profile`."),
        ("workload", "workload.yaml", "Models and applications with their objectives."),
        ("plan", "plan.json", "A plan: written by `poolpipe plan`, read by every later step."),
    ):
        schema = found[name]
        note = f"[JSON schema](schema/{name}.json)."
        if name != "plan":
            note += (
                " An editor completes the file if its first line is"
                f" `{SCHEMA_LINE}PATH/docs/reference/schema/{name}.json`."
                f" [A whole example](../examples/index.md)."
            )
        pages[f"{name}.md"] = page(title, f"{about} {note}", *_sections(schema))
    return pages


def undocumented(schema: Mapping[str, Any]) -> list[str]:
    """Fields of a schema without a description or without an example."""
    return [
        f"{title}.{name}"
        for title, form in _objects(schema)
        for name, given in form["properties"].items()
        if not given.get("description") or not given.get("examples")
    ]


def _titled(schema: dict[str, Any], title: str) -> dict[str, Any]:
    return {"$schema": DIALECT} | _plain(_named_items(schema)) | {"title": title}


def _named_items(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with objects that stand inside the file's own lists moved to its definitions."""
    named = dict(schema.get("$defs", {}))

    def moved(node: Any) -> Any:
        if isinstance(node, list):
            return [moved(item) for item in node]
        if not isinstance(node, dict):
            return node
        items = node.get("items", {})
        if "properties" not in items:
            return {key: moved(value) for key, value in node.items()}
        named[items["title"]] = items
        return node | {"items": {"$ref": f"#/$defs/{items['title']}"}}

    return schema | {"properties": moved(schema["properties"]), "$defs": named}


def _plain(node: Any) -> Any:
    """The schema without pydantic's titles and without `null` beside optional fields."""
    if isinstance(node, list):
        return [_plain(item) for item in node]
    if not isinstance(node, dict):
        return node
    found: dict[str, Any] = {}
    for key, value in node.items():
        if key == "properties":
            found[key] = {name: _stated(_plain(given)) for name, given in value.items()}
        elif key in ("examples", "default"):
            found[key] = value
        elif key != "title":
            found[key] = _plain(value)
    return found


def _stated(field: dict[str, Any]) -> dict[str, Any]:
    """A field as it is where it is stated: left out says the same as null."""
    kept = {k: v for k, v in field.items() if (k, v) != ("default", None)}
    left = [option for option in kept.get("anyOf", []) if option != {"type": "null"}]
    if len(left) == 1:
        del kept["anyOf"]
        return left[0] | kept
    return kept | {"anyOf": left} if left else kept


def _plan_schema() -> dict[str, Any]:
    forms: dict[str, Any] = {}
    for name, form in (("cluster", ClusterForm), ("workload", WorkloadForm)):
        schema = _plain(_named_items(form.model_json_schema()))
        forms |= schema.pop("$defs", {})
        forms[name] = schema
    known = {name: _object(fields) for name, fields in OBJECTS.items()}
    whole = known.pop("plan")
    return {"$schema": DIALECT, "title": "plan.json"} | whole | {"$defs": known | forms}


def _object(fields: Sequence[FieldForm]) -> dict[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            field.key: _kind(field.kind) | {"description": field.about, "examples": [field.example]}
            for field in fields
        },
        "required": [field.key for field in fields if field.required],
    }


def _kind(kind: str) -> dict[str, Any]:
    if kind in KINDS:
        return dict(KINDS[kind])
    if kind.endswith("[]"):
        return {"type": "array", "items": {"$ref": f"#/$defs/{kind.removesuffix('[]')}"}}
    return {"$ref": f"#/$defs/{kind}"}


def _objects(schema: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every object of a schema with a name, the file itself first."""
    yield schema["title"], schema
    for name, form in schema.get("$defs", {}).items():
        if "properties" in form:
            yield name, form


# How sections of the YAML files are called: by the place where the object stands.
PLACES = {
    "GpuClassForm": "gpu_classes.NAME",
    "RuntimeForm": "gpu_classes.NAME.runtime",
    "PercentsForm": "gpu_classes.NAME.vgpu_percents",
    "MigForm": "gpu_classes.NAME.mig",
    "NodeGroupForm": "nodes[]",
    "ModelDemandForm": "models[]",
    "EntryForm": "models[].entries[]",
    "SizeForm": "models[].sizes[]",
    "VariantForm": "models[].variants[]",
    "VersionForm": "models[].versions[]",
    "ApplicationForm": "applications[]",
    "ModuleForm": "applications[].modules[]",
    "StepForm": "steps[]",
}


def _sections(schema: Mapping[str, Any]) -> Iterator[str]:
    for name, form in _objects(schema):
        if schema["title"] == "plan.json" and (name in PLACES or name in ("cluster", "workload")):
            continue  # they have pages of their own
        heading = PLACES.get(name, name)
        title = "## Top level" if name == schema["title"] else f"## `{heading}`"
        required = form.get("required", [])
        rows = [
            (
                f"`{field}`",
                _type(given),
                "yes" if field in required else _default(given),
                given["description"],
                f"`{json.dumps(given['examples'][0], ensure_ascii=False)}`",
            )
            for field, given in form["properties"].items()
        ]
        about = "" if name == schema["title"] else form.get("description", "")
        yield "\n\n".join(
            part
            for part in (
                title,
                about,
                table(("field", "type", "required", "meaning", "example"), rows),
            )
            if part
        )


def _default(given: Mapping[str, Any]) -> str:
    return f"no (`{json.dumps(given['default'])}`)" if "default" in given else "no"


def _type(given: Mapping[str, Any]) -> str:
    if "$ref" in given:
        return _named(given["$ref"])
    if "anyOf" in given or "oneOf" in given:
        return " or ".join(_type(option) for option in given.get("anyOf") or given["oneOf"])
    if "const" in given or "enum" in given:
        return " or ".join(f"`{value}`" for value in given.get("enum", [given.get("const")]))
    kind = given.get("type", "any")
    if kind == "array":
        return f"list of {_type(given.get('items', {}))}"
    if kind == "object" and isinstance(given.get("additionalProperties"), dict):
        return f"name -> {_type(given['additionalProperties'])}"
    return {"string": "text", "boolean": "true or false", "null": "empty"}.get(kind, kind)


def _named(reference: str) -> str:
    name = reference.rpartition("/")[2]
    if name in ("cluster", "workload"):
        return f"[{name}.yaml]({name}.md)"
    return f"`{PLACES.get(name, name)}`"
