"""Objects of Kubernetes against its own schemas, and custom resources against small ones of ours.

A file here holds the fields of one custom resource that this repository writes, so that a field of
another name is an error; the definitions themselves are thousands of lines.
"""

from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import yaml

SCHEMAS = Path(__file__).parent
INFERENCE_SERVICE = "serving.kserve.io-v1beta1-InferenceService"


def check_object(item: dict[str, Any], version: str) -> None:
    """Check an object.

    Raises:
        jsonschema.ValidationError: it is no such object.
        kubernetes_validate.InvalidSchemaError: its kind is known neither to Kubernetes nor to us.
    """
    name = f"{item['apiVersion'].replace('/', '-')}-{item['kind']}"
    own = SCHEMAS / f"{name}.yaml"
    if not own.is_file():
        kubernetes_validate.validate(item, version, strict=True)
        return
    schema = yaml.safe_load(own.read_text())
    jsonschema.validate(item, schema)
    if name == INFERENCE_SERVICE:
        kubernetes_validate.validate(pod_of_predictor(item), version, strict=True)


def pod_of_predictor(item: dict[str, Any]) -> dict[str, Any]:
    """The pod that KServe makes of a predictor which has its container."""
    schema = yaml.safe_load((SCHEMAS / f"{INFERENCE_SERVICE}.yaml").read_text())
    own = schema["properties"]["spec"]["properties"]["predictor"]["properties"]
    predictor = item["spec"]["predictor"]
    spec = {key: value for key, value in predictor.items() if key not in {*own} - {"containers"}}
    labels = {"labels": predictor.get("labels", {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": labels, "spec": spec}
