"""The manifests of docs/examples, as Kubernetes has them; and what a pod of theirs prints."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fleet.kubernetes_schema import VERSIONS, problems
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


def objects(path: Path) -> list[Json]:
    return [found for found in yaml.safe_load_all(path.read_text()) if found]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("path", sorted(FOLDER.glob("**/*.yaml")), ids=lambda path: path.name)
def test_the_examples_are_as_kubernetes_has_it(path: Path, version: str) -> None:
    found = objects(path)
    assert found
    assert [problem for one in found for problem in problems(one, version)] == []


def test_a_misspelt_field_is_a_problem() -> None:
    (job,) = objects(CHECK)
    job["spec"]["template"]["spec"]["hostNetwrok"] = True
    assert problems(job, VERSIONS[0])


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl (kubernetes-client)")
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
