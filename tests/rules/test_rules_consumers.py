"""Rules about the engines beside SGLang: an example of each, and the same launch written right."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from checks.base.unknown import Unknown
from preflight.launches.container import ContainerSettings
from preflight.launches.source import Command, Reading
from preflight.processes.processes import understand
from preflight.processes.unread import unread
from preflight.rules.launch_rules import findings
from tests.builders.launch_text import process
from tests.builders.rule_examples import Example, name_of, prove
from tests.tables import each_row

BY_ASSUMED = "consumer-refused-by-assumed"
FILE = {"MOONCAKE_CONFIG_PATH": "mc.json"}


def connector(name: str, **extra: object) -> str:
    config = {"kv_connector": name, "kv_role": "kv_both", "kv_connector_extra_config": extra}
    return f"vllm serve m --kv-transfer-config '{json.dumps(config)}'"


def store(**more: object) -> dict[str, str]:
    base = {"metadata_server": "P2PHANDSHAKE", "master_server_address": "10.0.0.1:50051"}
    return {"mc.json": json.dumps({**base, **more})}


STORE = connector("MooncakeStoreConnector")
NO_ROLE = json.dumps({"kv_connector": "MooncakeConnector"})
NO_ROLE_LINE = f"vllm serve m --kv-transfer-config '{NO_ROLE}'"
ROLE_GIVEN = json.dumps({"kv_connector": "MooncakeConnector", "kv_role": "kv_both"})
POOL = connector("OffloadingConnector", cpu_bytes_to_use=1 << 30)

LMCACHE = "vllm serve m --kv-transfer-config " + repr(
    json.dumps({"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"})
)


def lmcache_of(image: str) -> Command:
    command = process(LMCACHE, {"LMCACHE_ENABLE_CONTROLLER": "true"})
    return command._replace(container=ContainerSettings("docker", image))


EXAMPLES = (
    *(
        Example(
            "consumer-refused-by-assumed",
            f"controller_pull_url is required when enable_controller=True (LMCache 0.5.6 is {why})",
        ).of((lmcache_of(image),), (LMCACHE, lmcache_of("lmcache/vllm-openai:v0.5.6")))
        for image, why in (
            ("lmcache/vllm-openai:latest", "assumed, as nothing names its release"),
            ("lmcache/vllm-openai@sha256:ab", "assumed, as nothing names its release"),
            ("lmcache/vllm-openai:v0.4.2", "assumed, and its image has 0.4.2"),
        )
    ),
    Example("consumer-refused", "controller_pull_url is required when enable_controller=True").of(
        (lmcache_of("lmcache/vllm-openai:v0.5.6"),), (lmcache_of("lmcache/vllm-openai:latest"),)
    ),
    Example("lookup-socket-shared", "_dp_rank1 of vLLM server (launch.sh:1)").of(
        ((f"{STORE} --data-parallel-rank 1", FILE), (f"{STORE} --data-parallel-rank 1", FILE)),
        ((f"{STORE} --data-parallel-rank 0", FILE), (f"{STORE} --data-parallel-rank 1", FILE)),
        store(),
    ),
)


@pytest.mark.parametrize("example", EXAMPLES, ids=name_of)
def test_rule(example: Example) -> None:
    prove(example)


TWICE = connector("MultiConnector", connectors=[{**json.loads(ROLE_GIVEN), "engine_id": "e"}])
FORMER = (
    f"vllm serve m --kv-transfer-config '{json.dumps({**json.loads(ROLE_GIVEN), 'kv_rank': 0})}'"
)


@each_row(
    ("line", "releases"),
    [
        # Of what each release makes of it: None where nothing names it.
        (NO_ROLE_LINE, {None: "F", "0.7.3": "w", "0.8.5": "F", "0.16.0": "F", "0.34.0": "w"}),
        ("vllm serve m --kv-transfer-config {", {None: "F", "0.11.0": "F", "0.34.0": "w"}),
        (TWICE, {None: "w", "0.9.2": "", "0.10.0": "w", "0.11.0": "F", "0.33.0": "F"}),
        (FORMER, {None: "w", "0.23.0": "", "0.28.0": "w", "0.33.0": "F", "0.34.0": "w"}),
        (connector("OffloadingConnector"), {None: "w", "0.12.0": "w", "0.33.0": "F"}),
        (STORE, {None: "F", "0.11.0": "F", "0.34.0": "w"}),
    ],
)
@each_row("installed", [False, True])
def test_an_error_fails_where_the_release_that_runs_is_known_to_end_with_it(
    line: str, releases: Mapping[str | None, str], installed: bool
) -> None:
    """By its image, or by what the host has where it runs in no container."""
    for release, expected in releases.items():
        command = process(line)
        host = {"vllm": release} if installed and release else {}
        if not installed and release is not None:
            image = ContainerSettings("docker", f"vllm/vllm-openai:v{release}")
            command = command._replace(container=image)
        found = findings(understand([command], lambda name: Unknown(name), installed=host))
        ids = [one.rule.id for one in found if one.rule.id.startswith("consumer-refused")]
        says = {"F": ["consumer-refused"], "w": [BY_ASSUMED], "": []}[expected]
        assert ids == says, (release, [one.text for one in found])


def test_what_a_host_has_installed_says_nothing_of_an_image() -> None:
    command = process(NO_ROLE_LINE)._replace(container=ContainerSettings("docker", "vllm:latest"))
    (one,) = understand([command], lambda name: Unknown(name), installed={"vllm": "0.34.0"})
    assert one.consumer is not None
    assert one.consumer.named == {}


def test_what_another_release_may_take_is_not_counted_and_named() -> None:
    """A launch whose connector nobody read fits nowhere for certain."""
    commands = [process(connector("OffloadingConnector"))]
    for host, named in (({"vllm": "0.33.0"}, False), ({"vllm": "0.12.0"}, True), ({}, True)):
        found = understand(commands, lambda name: Unknown(name), installed=host)
        said = [one.text for one in unread(Reading(tuple(commands)), found)]
        assert any("its CPU pool" in text for text in said) is named
