"""What ``plan --format k8s`` prints, held against Kubernetes' schema."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from checks.base.finding import Kind, Setting
from preflight.settings.dialects import ArtefactNames, render
from preflight.settings.plan import plan
from tests.builders.plans import facts_on, finding, launch, on_nodes, rank
from tests.fleet.kubernetes_schema import VERSIONS, problems

SETTINGS = (
    Setting(Kind.ENVIRONMENT, "MC_MTU", "1024", "4096"),
    Setting(Kind.ENVIRONMENT, "MC_GID_INDEX", "", "9"),
    Setting(Kind.SECURITY, "seccomp", "unconfined"),
    Setting(Kind.CAPABILITY, "IPC_LOCK", ""),
)


@pytest.fixture(scope="module")
def patch(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Of two ranks on two nodes with 8 NICs."""
    needs = launch(on_nodes(10, 20), rank(0), rank(1))
    facts = facts_on(tmp_path_factory.mktemp("host"))
    found = plan(needs, facts, [finding(setting) for setting in SETTINGS])
    loaded: dict[str, Any] = yaml.safe_load(render(found, "k8s", ArtefactNames()).text)
    return loaded


@pytest.mark.parametrize("version", VERSIONS)
def test_the_patch_has_fields_of_a_pod_alone(patch: dict[str, Any], version: str) -> None:
    """But for ``$patch``, which is the merge's own word."""
    (container,) = patch["spec"]["containers"]
    assert {one.get("$patch") for one in container["env"]} == {None, "delete"}
    variables = [
        {name: value for name, value in one.items() if name != "$patch"} for one in container["env"]
    ]
    spec = {**patch["spec"], "containers": [{**container, "env": variables}]}
    assert {"hostNetwork", "volumes"} <= spec.keys()
    assert {"resources", "securityContext", "volumeMounts"} <= container.keys()
    assert problems({"apiVersion": "v1", "kind": "Pod", "spec": spec}, version) == []
