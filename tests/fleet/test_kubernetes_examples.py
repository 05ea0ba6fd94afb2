"""The manifests of docs/examples, as Kubernetes has them; and what a pod of theirs prints."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.paths import ROOT

FOLDER = ROOT / "docs/examples"
CHECK = FOLDER / "kubernetes-check.yaml"
LAUNCH = """\
apiVersion: v1
kind: Pod
metadata: {name: sglang}
spec:
  containers:
  - name: sglang
    image: x
    command: [python3, -m, sglang.launch_server, --model-path, Qwen/Qwen3-14B]
"""

Json = dict[str, Any]

SCHEMAS = ROOT / "tests/data/openapi"
VERSIONS = ("1.25", "1.37")
_KINDS = {
    ("v1", "Pod"): "io.k8s.api.core.v1.Pod",
    ("v1", "ConfigMap"): "io.k8s.api.core.v1.ConfigMap",
    ("batch/v1", "Job"): "io.k8s.api.batch.v1.Job",
    ("apps/v1", "Deployment"): "io.k8s.api.apps.v1.Deployment",
}


@cache
def _schema(version: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((SCHEMAS / f"kubernetes-{version}.json").read_text())
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


def objects(path: Path) -> list[Json]:
    return [found for found in yaml.safe_load_all(path.read_text()) if found]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yaml")), ids=lambda path: path.name)
def test_the_examples_are_as_kubernetes_has_it(path: Path, version: str) -> None:
    found = objects(path)
    assert found
    assert [problem for one in found for problem in problems(one, version)] == []


def test_a_misspelt_field_is_a_problem() -> None:
    (job,) = objects(CHECK)
    job["spec"]["template"]["spec"]["hostNetwrok"] = True
    assert problems(job, VERSIONS[0])


POD_OF_ITS_OWN: Json = {
    "containers": [
        {
            "name": "own",
            "image": "own",
            "command": ["python3", "-m", "sglang.launch_server"],
            "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
        }
    ],
    "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
}
GATE = ["python3", "/preflight/mooncake-preflight.pyz", "exec", "--fail-on=fail", "--"]
KUBECTL = pytest.mark.skipif(
    shutil.which("kubectl") is None, reason="needs kubectl (kubernetes-client)"
)


def own(kind: str) -> Json:
    """Somebody's own server, as a Pod or as what makes pods."""
    named: Json = {"metadata": {"name": "own", "labels": {"mooncake-preflight": "exec"}}}
    if kind == "Pod":
        return {"apiVersion": "v1", "kind": kind, **named, "spec": POD_OF_ITS_OWN}
    labels = {"app": "own"}
    spec = {
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": POD_OF_ITS_OWN},
    }
    return {"apiVersion": "apps/v1", "kind": kind, **named, "spec": spec}


@pytest.mark.slow
@KUBECTL
@pytest.mark.parametrize("labelled", [True, False], ids=["labelled", "not labelled"])
@pytest.mark.parametrize("kind", ["Pod", "Deployment"])
def test_the_component_puts_the_gate_in_front(tmp_path: Path, kind: str, labelled: bool) -> None:
    shutil.copytree(FOLDER / "gate", tmp_path / "gate")
    server = own(kind)
    if not labelled:
        del server["metadata"]["labels"]
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(server))
    (tmp_path / "kustomization.yaml").write_text("components: [gate]\nresources: [own.yaml]\n")
    done = subprocess.run(["kubectl", "kustomize", str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = yaml.safe_load(done.stdout)
    if not labelled:
        assert found == server
        return
    assert [each for version in VERSIONS for each in problems(found, version)] == []
    spec = found["spec"] if kind == "Pod" else found["spec"]["template"]["spec"]
    (container,), (program,) = spec["containers"], spec["initContainers"]
    assert container["command"] == [*GATE, *POD_OF_ITS_OWN["containers"][0]["command"]]
    assert program["volumeMounts"][0] in container["volumeMounts"]


@pytest.mark.slow
@KUBECTL
def test_the_patch_of_the_page_puts_the_gate_in_front(tmp_path: Path) -> None:
    (tmp_path / "pod.yaml").write_text(yaml.safe_dump(own("Pod")))
    page = (ROOT / "docs/howto-kubernetes.md").read_text()
    script = "kubectl patch --local" + page.split("kubectl patch --local")[1].split("```")[0]
    subprocess.run(["sh", "-ec", script], cwd=tmp_path, check=True)
    (container,) = yaml.safe_load((tmp_path / "gated.yaml").read_text())["spec"]["containers"]
    gate = ["mooncake-preflight", "exec", "--fail-on=fail", "--", "python3"]
    assert container["command"][:5] == gate


@pytest.mark.slow
@KUBECTL
def test_kubectl_reads_it_as_it_was_meant() -> None:
    command = ["kubectl", "patch", "--local", "--type=merge", "--patch={}", "-o=json"]
    done = subprocess.run([*command, f"--filename={CHECK}"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["spec"] == objects(CHECK)[0]["spec"]


@pytest.mark.slow
def test_what_a_pod_prints_is_merged_under_its_nodes_name(tmp_path: Path) -> None:
    """Its own command, in a shell here: the log of two pods, one after the other."""
    (job,) = objects(CHECK)
    (container,) = job["spec"]["template"]["spec"]["containers"]
    (named,) = (one["name"] for one in container["env"])
    (mounted,) = container["volumeMounts"]
    (tmp_path / "launch.yaml").write_text(LAUNCH)
    program = tmp_path / "mooncake-preflight"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m preflight.cli.main "$@"\n')
    program.chmod(0o755)
    (text,) = container["args"]
    text = text.replace(f"{mounted['mountPath']}/", f"{tmp_path}/", 1).replace("sleep 60", "true")
    log = ""
    for node in ("gpu-a", "gpu-b"):
        path = f"{tmp_path}:{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), named: node}
        log += subprocess.run(
            [*container["command"], text], env=environment, capture_output=True, text=True
        ).stdout
    merge = [sys.executable, "-m", "preflight.cli.main", "fleet", "merge", "--json"]
    done = subprocess.run(
        [*merge, "--expect", "gpu-a,gpu-b", "-"],
        input=log,
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    answer = json.loads(done.stdout)["answer"]
    assert (answer["nodes"], answer["reports"]["read"]) == (2, 2), done.stderr
