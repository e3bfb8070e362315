"""Ensembles and graphs from elsewhere."""

from typing import Any

import pytest

from flows.operations.adoption.applications import from_kserve, from_triton
from triton_backend.contract.errors import InputError

ENSEMBLE = """
name: "ocr"
platform: "ensemble"
max_batch_size: 8   # not kept
input [ { name: "IMAGE" data_type: TYPE_UINT8 dims: [ -1 ] } ]
output [
  { name: "TEXT", data_type: TYPE_STRING, dims: [ 1 ] }
]
ensemble_scheduling {
  step [
    {
      model_name: "detect"
      model_version: -1
      input_map { key: "image" value: "IMAGE" }
      output_map { key: "boxes" value: "cropped" }
    },
    {
      model_name: "recognise.v2"
      model_version: 3
      input_map { key: "crops" value: "cropped" }
      output_map: { key: "text" value: "TEXT" }
    }
  ]
}
"""


def test_an_ensemble_becomes_an_application() -> None:
    found = from_triton(ENSEMBLE, "config.pbtxt", 400_000)
    application = found.application
    assert application.to_dict() == {
        "name": "ocr",
        "slo_ms": 400.0,
        "modules": [
            {
                "name": "detect",
                "model": "detect",
                "after": [],
                "inputs": {"image": "request.IMAGE"},
            },
            {
                "name": "recognise-v2",
                "model": "recognise.v2",
                "after": ["detect"],
                "inputs": {"crops": "detect.boxes"},
            },
        ],
        "outputs": {"TEXT": "recognise-v2.text"},
    }
    assert found.notes == (
        "recognise.v2: model_version 3 is not kept",
        "max_batch_size is not kept",
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('value: "cropped"', 'value: "CROPS"'), "step recognise-v2: no step gives 'cropped'"),
        (('value: "TEXT"', 'value: "cropped"'), "step recognise-v2: 'cropped' has two producers"),
        ((ENSEMBLE.partition("ensemble_")[2], "scheduling {}"), "ensemble_scheduling: has no step"),
        (("ensemble_scheduling {", "dynamic_batching {"), "line 10: "),
        (('model_name: "detect"', ""), "step.model_name: is missing"),
        (('name: "TEXT"', 'name: "OTHER"'), "'ocr'.outputs.OTHER: '' is not module.tensor"),
        (("  ]\n}\n", "  ]\n"), "config.pbtxt, line 23: "),
        (("    }\n  ]\n}\n", "    }\n"), "config.pbtxt, line 23: "),
        (('key: "text"', "key: }"), "config.pbtxt, line 21: "),
        (('key: "text"', '"key": "text"'), "config.pbtxt, line 21: "),
        (('"ocr"', '"ocr'), "config.pbtxt, line 2: "),
        (("dims: [ 1 ]", "dimensions: [ 1 ]"), 'has no field named "dimensions"'),
        (("TYPE_STRING", "TYPE_TEXT"), "TYPE_TEXT"),
        (("model_version: 3", "model_version: three"), "line 19: "),
        (('name: "ocr"', 'name: "ocr" name: "ocr"'), "should not have multiple"),
    ],
)
def test_ensembles_that_cannot_be_are_named(change: tuple[str, str], message: str) -> None:
    text = ENSEMBLE.replace(*change, 1)
    assert text != ENSEMBLE
    with pytest.raises(InputError) as raised:
        from_triton(text, "config.pbtxt", 400_000)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_text_that_nests_without_end_is_refused() -> None:
    with pytest.raises(InputError, match="x, line 1: "):
        from_triton("a {" * 5_000, "x", 1)
    with pytest.raises(InputError, match="x, line 1: "):
        from_triton("ensemble_scheduling {" * 5_000, "x", 1)


def graph(**nodes: Any) -> dict[str, Any]:
    return {
        "kind": "InferenceGraph",
        "metadata": {"name": "dogs"},
        "spec": {"nodes": nodes},
    }


def node(kind: str, *steps: dict[str, Any]) -> dict[str, Any]:
    return {"routerType": kind, "steps": list(steps)}


def test_a_graph_of_sequences_and_ensembles_becomes_an_application() -> None:
    data = graph(
        root=node("Sequence", {"serviceName": "find"}, {"nodeName": "both", "data": "$response"},
                  {"serviceName": "join"}),
        both=node("Ensemble", {"serviceName": "breed", "dependency": "Soft"},
                  {"serviceName": "age", "name": "years"}),
    )  # fmt: skip
    found = from_kserve(data, "graph.yaml", 250_000)
    after = {module.name: module.parents for module in found.application.modules}
    assert after == {
        "find": (),
        "breed": ("find",),
        "years": ("find",),
        "join": ("breed", "years"),
    }
    assert found.application.slo_us == 250_000
    assert [text.split(" is")[0] for text in found.notes] == [
        "data: $response",
        "dependency: Soft",
    ]


STEP = {"serviceName": "a"}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (3, "graph.yaml: the file: 3 is not an object"),
        ({"kind": "Pod"}, "graph.yaml: kind: 'Pod' is not InferenceGraph"),
        (graph(), "spec.nodes: has no root; it has none"),
        (graph(root=node("Switch", STEP)), "spec.nodes.root.routerType: Switch routes by request"),
        (graph(root=node("Splitter", STEP)), "routerType: Splitter routes"),
        (
            graph(root=node("Sequence", STEP | {"condition": "x"})),
            "steps[0].condition: cannot be kept",
        ),
        (graph(root=node("Sequence", {"nodeName": "x"})), "steps[0].nodeName: no node 'x'"),
        (graph(root=node("Sequence", {"serviceUrl": "http://x"})), "serviceUrl: names no model"),
        (graph(root=node("Sequence", {"nodeName": "root"})), "in a circle: root -> root"),
        (graph(root=node("Sequence")), "modules: there is none"),
    ],
)
def test_graphs_that_cannot_be_are_named(data: object, message: str) -> None:
    with pytest.raises(InputError) as raised:
        from_kserve(data, "graph.yaml", 1_000)
    assert message in str(raised.value)
    assert str(raised.value).startswith("graph.yaml: ")


def test_numbered_modules_have_no_name_of_another() -> None:
    models = ("a-2", "a", "a", "a.2")
    steps = [f'{{ model_name: "{model}" input_map {{ key: "x" value: "I" }} }}' for model in models]
    text = f'input {{ name: "I" }} ensemble_scheduling {{ step [ {", ".join(steps)} ] }}'
    modules = from_triton(text, "config.pbtxt", 400_000).application.modules
    assert [module.name for module in modules] == ["a-2", "a", "a-3", "a-2-2"]
    graph = {
        "kind": "InferenceGraph",
        "metadata": {"name": "g"},
        "spec": {
            "nodes": {
                "root": {
                    "routerType": "Ensemble",
                    "steps": [{"serviceName": model} for model in models],
                }
            }
        },
    }
    modules = from_kserve(graph, "graph.yaml", 400_000).application.modules
    assert [module.name for module in modules] == ["a-2", "a", "a-3", "a-2-2"]
