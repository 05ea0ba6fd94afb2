"""Objects held against Kubernetes' own schema, in which a misspelt field is an error."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema

FOLDER = Path(__file__).parents[1] / "data" / "openapi"
VERSIONS = ("1.25", "1.37")
_KINDS = {
    ("v1", "Pod"): "io.k8s.api.core.v1.Pod",
    ("v1", "ConfigMap"): "io.k8s.api.core.v1.ConfigMap",
    ("v1", "ServiceAccount"): "io.k8s.api.core.v1.ServiceAccount",
    ("batch/v1", "Job"): "io.k8s.api.batch.v1.Job",
    ("apps/v1", "DaemonSet"): "io.k8s.api.apps.v1.DaemonSet",
    ("apps/v1", "Deployment"): "io.k8s.api.apps.v1.Deployment",
    ("apps/v1", "StatefulSet"): "io.k8s.api.apps.v1.StatefulSet",
    ("rbac.authorization.k8s.io/v1", "Role"): "io.k8s.api.rbac.v1.Role",
    ("rbac.authorization.k8s.io/v1", "RoleBinding"): "io.k8s.api.rbac.v1.RoleBinding",
}


@cache
def _schema(version: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((FOLDER / f"kubernetes-{version}.json").read_text())
    return loaded


@cache
def validator(definition: str, version: str) -> jsonschema.Draft202012Validator:
    schema = {**_schema(version), "$ref": f"#/$defs/{definition}"}
    return jsonschema.Draft202012Validator(schema)


def problems(found: dict[str, Any], version: str) -> list[str]:
    """What Kubernetes would not take, each with its place; [] for a good object."""
    definition = _KINDS[found["apiVersion"], found["kind"]]
    return [
        f"{error.json_path}: {error.message[:300]}"
        for error in validator(definition, version).iter_errors(found)
    ]
