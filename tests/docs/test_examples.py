"""The examples of docs/examples hold what their consumers read, and what this program accepts."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from preflight.cli.main import command, run
from preflight.launches.launch_files import read_source
from preflight.processes.processes import ProcessKind, classify
from tests.cli.commands import accept
from tests.paths import ROOT

EXAMPLES = ROOT / "docs" / "examples"
# The manifests that start a server; the Job of fleet checks starts none.
LAUNCHES = sorted(set(EXAMPLES.glob("*.yaml")) - {EXAMPLES / "kubernetes-check.yaml"})
# What a Pod's container may have, of what the examples use (Kubernetes core/v1 Container).
CONTAINER = {"name", "image", "command", "args", "env", "resources", "volumeMounts"}
CONTAINER |= {"securityContext"}


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("slurm-*.sh")), ids=lambda path: path.name)
def test_scripts_are_scripts_that_call_the_command_as_it_is(path: Path) -> None:
    subprocess.run(["sh", "-n", str(path)], check=True)
    calls = re.findall(r"mooncake-preflight (check [^\n)]*)", path.read_text())
    assert calls
    for call in calls:
        accept(command, call.replace('"$LAUNCH"', "launch.sh").split())


@pytest.mark.parametrize("path", LAUNCHES, ids=lambda path: path.name)
def test_manifests_are_read_as_the_launch_that_they_are(path: Path) -> None:
    documents = list(yaml.safe_load_all(path.read_text()))
    (pod,) = (one for one in documents if one["kind"] == "Pod")
    assert {one["apiVersion"] for one in documents} == {"v1"}
    volumes = {volume["name"] for volume in pod["spec"]["volumes"]}
    containers = [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]
    for container in containers:
        assert set(container) <= CONTAINER
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
        if container["image"] == "mooncake-preflight":
            for line in container["args"][0].splitlines():
                accept(command, line.removeprefix("mooncake-preflight ").split())
            continue
        resources = container["resources"]
        assert resources["requests"] == resources["limits"]  # huge pages must be
    reading = read_source(str(path), {})
    assert [classify(one)[0] for one in reading.commands] == [ProcessKind.SGLANG]


@pytest.mark.parametrize("path", LAUNCHES, ids=lambda path: path.name)
def test_the_program_finds_nothing_wrong_with_its_own_examples(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What only the node can tell is unknown; nothing fails, and nothing is warned of."""
    run(["check", "--root", "demo:h800", "--timeout", "600", "--json", str(path)])
    found = json.loads(capsys.readouterr().out)["findings"]
    assert [one["check"] for one in found if one["status"] in ("fail", "warn")] == []
    assert {one["check"] for one in found if one["status"] == "pass"} > {"memory.host"}


def test_the_monitor_calls_the_command_in_the_protocol_of_the_detector() -> None:
    monitor = json.loads((EXAMPLES / "node-problem-detector.json").read_text())
    assert monitor["plugin"] == "custom"
    (rule,) = monitor["rules"]
    accept(command, rule["args"])
    assert rule["args"][rule["args"].index("--format") + 1] == "npd"
    assert rule["condition"] in {condition["type"] for condition in monitor["conditions"]}
    assert monitor["pluginConfig"]["max_output_length"] >= 80


@pytest.mark.parametrize("name", ["entrypoint.Dockerfile", "job.Dockerfile"])
def test_dockerfiles_end_in_the_command(name: str) -> None:
    lines = (EXAMPLES / name).read_text().splitlines()
    (entry,) = [line for line in lines if line.startswith("ENTRYPOINT ")]
    words = json.loads(entry.removeprefix("ENTRYPOINT "))
    assert words[0] == "mooncake-preflight"
    if words[1:]:
        accept(command, [*words[1:], "python3", "-m", "sglang.launch_server"])
    assert any(line.startswith("FROM ") for line in lines)


_GATE = re.compile(
    r"mooncake-preflight\W+exec\b.* ?\W--\W|\bcheck\b.*--format\W+(?:k8s|npd|slurm-prolog)\b"
)
_PATCHED = re.compile(r"(.*)\n.*\bvalue\W+exec\b")


@pytest.mark.parametrize(
    "path",
    [*(path for path in EXAMPLES.rglob("*") if path.is_file()), *ROOT.glob("docs/howto-*.md")],
    ids=lambda path: path.name,
)
def test_every_gate_names_what_an_unknown_does(path: Path) -> None:
    """Unknown starts by default: who copies a gate has to see the choice."""
    text = path.read_text()
    gates = [line for line in text.splitlines() if _GATE.search(line)]
    gates += [match[1] for match in _PATCHED.finditer(text)]
    assert [line for line in gates if not re.search(r"--fail-on\W+(?:fail|unknown)\b", line)] == []
    assert gates or path.name not in HANDED_OUT


HANDED_OUT = {
    *("entrypoint.Dockerfile", "kubernetes-init.yaml", "kustomization.yaml"),
    *("node-problem-detector.json", "slurm-health-check.sh", "slurm-prolog.sh"),
    *("howto-container.md", "howto-kubernetes.md", "howto-slurm.md"),
}
