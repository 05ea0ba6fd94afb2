"""The fields of operators' kinds are those of their schemas: each is read, or said why not."""

from __future__ import annotations

import ast
import copy
import inspect
import json
import re
from typing import Any

from preflight.launches import kubernetes, kubernetes_pods
from preflight.launches.kubernetes import read_kubernetes
from tests.paths import ROOT
from tests.tables import each_row

FIELDS = json.loads((ROOT / "tests/data/crds/fields.json").read_text())
POD = {"containers": [{"name": "c", "image": "i", "command": ["mooncake_client"]}]}
COUNTS = ("replicas", "size", "podGroupSize", "slices", "nodeCount")
# What no pod stands at by itself: a template that roles name.
ALONE = re.compile(r"roleTemplates")
# Fields that are not read, and why.
PASSED_OVER = {
    "volumeMounts[].useAsCompilationCache": "a cache on disk",
    "compilationCache.": "a cache on disk",
    "resources.limits.cpu": "no memory",
    "resources.requests.cpu": "no memory",
    "frontendSidecar": "named as not read",
    "dynamoSidecar": "a name of a container that is read",
    "roles[].name": "the layout that multinode has in any case",
    "roles[].replicas": "of a leader and its workers: nodeCount has it",
    "subComponentType": "a label: the words say what a worker is",
    "gpuMemoryService": "memory of the GPU",
    "numShadows": "a failover is named as not read",
    "failover.mode": "a failover is named as not read",
    "componentGroups[]": "named as not read",
}


def fields(kind: str) -> dict[str, str]:
    return {**FIELDS[kind]["fields"]}


def put(whole: dict[str, Any], path: str, leaf: Any) -> None:
    """Set ``spec.roles[].template``: of a list its first item, of ``*`` the key x."""
    steps = path.replace("[]", ".[]").replace("*", "x").split(".")
    node: Any = whole
    for step, following in zip(steps, [*steps[1:], None], strict=True):
        empty: Any = [] if following == "[]" else {}
        if following is None and not isinstance(leaf, dict):
            node[step] = leaf
        elif step == "[]":
            if not node:
                node.append(empty)
            node = node[0]
        else:
            node = node.setdefault(step, empty)
    if isinstance(leaf, dict):
        node.update(copy.deepcopy(leaf))


def copies(kind: str, *set_: tuple[str, Any]) -> int:
    whole: dict[str, Any] = {"kind": kind.split()[0], "metadata": {"name": "n"}}
    for path, leaf in set_:
        put(whole, path, leaf)
    commands = read_kubernetes(json.dumps(whole), "m.json").commands
    return sum(one.copies for one in commands if one.words[0].text == "mooncake_client")


def pod_paths(kind: str) -> list[tuple[str, Any]]:
    """Return where a schema has pods or the container of one, and what to write there."""
    found: list[tuple[str, Any]] = []
    for path, what in fields(kind).items():
        if ALONE.search(path) or "engineRuntimes" in path:
            continue
        if what == "PodSpec":
            found.append((path, POD))
        elif what == "Container":
            found.append((path, POD["containers"][0]))
        elif path.endswith(("components[].template", "roleInstanceTemplate")):
            spec = {"spec": POD}
            inner = {"components": [{"name": "a", "template": spec}]}
            found.append((path, inner if "roleInstance" in path else spec))
    return found


@each_row("kind", FIELDS)
def test_each_pod_of_a_schema_is_read(kind: str) -> None:
    for path, leaf in pod_paths(kind):
        assert copies(kind, (path, leaf)) == 1, path


@each_row("kind", FIELDS)
def test_each_count_of_a_schema_is_counted(kind: str) -> None:
    for path, what in fields(kind).items():
        above, _, name = path.rpartition(".")
        if what != "integer" or name not in COUNTS or any(text in path for text in PASSED_OVER):
            continue
        above = above.removesuffix(".multinode")
        below = [found for found in pod_paths(kind) if found[0].startswith(above)]
        workers = [found for found in below if "worker" in found[0].removeprefix(above)]
        if "leaderWorkerSet" in path:  # of RBG's v1alpha1, beside the template
            workers = [(f"{above.rpartition('.')[0]}.template.spec", POD)]
        own = (workers or below) if name == "size" else below
        assert copies(kind, own[0], (path, 3)) == 3, (path, own[0][0])


def asked() -> set[str]:
    """Return every name that the readers look for in a manifest."""
    names: set[str] = set(kubernetes_pods._COUNTS)
    for module in (kubernetes, kubernetes_pods):
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                names.add(node.value)
    return names


@each_row("kind", FIELDS)
def test_each_other_field_of_a_schema_is_asked_for(kind: str) -> None:
    names = asked()
    for path in fields(kind):
        last = path.replace("[]", "").replace(".*", "").rpartition(".")[2]
        pod = any(path == found for found, _ in pod_paths(kind))
        assert pod or last in names or any(text in path for text in PASSED_OVER), path
