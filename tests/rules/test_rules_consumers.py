"""Rules about the engines beside SGLang: an example of each, and the same launch written right."""

from __future__ import annotations

import json

import pytest

from preflight.launches.container import ContainerSettings
from preflight.launches.source import Command
from tests.builders.launch_text import MASTER, SERVICE, process, service
from tests.builders.launch_text import STORE as SGLANG_STORE
from tests.builders.rule_examples import Example, name_of, prove

FILE = {"MOONCAKE_CONFIG_PATH": "mc.json"}


def connector(name: str, **extra: object) -> str:
    config = {"kv_connector": name, "kv_role": "kv_both", "kv_connector_extra_config": extra}
    return f"vllm serve m --kv-transfer-config '{json.dumps(config)}'"


def store(**more: object) -> dict[str, str]:
    base = {"metadata_server": "P2PHANDSHAKE", "master_server_address": "10.0.0.1:50051"}
    return {"mc.json": json.dumps({**base, **more})}


def of_image(image: str) -> Command:
    return process("vllm serve m")._replace(container=ContainerSettings("docker", image))


STORE = connector("MooncakeStoreConnector")
NO_ROLE = json.dumps({"kv_connector": "MooncakeConnector"})
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
            (lmcache_of(image),),
            f"controller_pull_url is required when enable_controller=True (LMCache 0.5.6 is {why})",
            (LMCACHE, lmcache_of("lmcache/vllm-openai:v0.5.6")),
        )
        for image, why in (
            ("lmcache/vllm-openai:latest", "assumed, as nothing names its release"),
            ("lmcache/vllm-openai@sha256:ab", "assumed, as nothing names its release"),
            ("lmcache/vllm-openai:v0.4.2", "assumed, and its image has 0.4.2"),
        )
    ),
    Example(
        "consumer-refused",
        (lmcache_of("lmcache/vllm-openai:v0.5.6"),),
        "controller_pull_url is required when enable_controller=True",
        (lmcache_of("lmcache/vllm-openai:latest"),),
    ),
    Example(
        "consumer-refused",
        (f"vllm serve m --kv-transfer-config '{NO_ROLE}'",),
        "Please specify kv_role when kv_connector is set",
        (connector("MooncakeConnector"),),
    ),
    Example(
        "consumer-refused",
        (STORE,),
        "ValueError: The environment variable 'MOONCAKE_CONFIG_PATH' is not set.",
        ((STORE, FILE),),
        store(),
    ),
    Example(
        "consumer-refused",
        (connector("OffloadingConnector"),),
        "cpu_bytes_to_use must be specified in kv_connector_extra_config",
        (POOL,),
    ),
    Example(
        "consumer-refused",
        (connector("MultiConnector", connectors=[json.loads(NO_ROLE)]),),
        "Please specify kv_role",
        (connector("MultiConnector", connectors=[{**json.loads(NO_ROLE), "kv_role": "kv_both"}]),),
    ),
    Example(
        "consumer-release",
        (of_image("vllm/vllm-openai:v0.11.0"),),
        "0.11.0 by its image: read as vLLM 0.33.0",
        (of_image("vllm/vllm-openai:v0.33.0"),),
    ),
    Example(
        "consumer-misread",
        ((STORE, FILE),),
        "enable_offload in mc.json is a text: it counts as true",
        (STORE,),
        store(enable_offload="false"),
    ),
    Example(
        "store-file-read-differently",
        ((STORE, FILE), (SERVICE, FILE)),
        "refused to vLLM server (launch.sh:1); 1.50 GiB to Mooncake store service (launch.sh:2)",
        ((POOL, FILE), (SERVICE, FILE)),
        {"mc.json": service(global_segment_size="1.5g")},
    ),
    Example(
        "lookup-socket-shared",
        (
            (STORE, FILE),
            (f"{STORE} --data-parallel-size 2", {**FILE, "VLLM_RPC_BASE_PATH": "/tmp"}),
        ),
        "/tmp/lookup_rpc_port_0_host_<host>_dp_rank0 of vLLM server (launch.sh:1) is vLLM server",
        ((STORE, FILE), (STORE, {**FILE, "VLLM_RPC_BASE_PATH": "/run"})),
        store(),
    ),
    Example(
        "lookup-socket-shared",
        ((f"{STORE} --data-parallel-rank 1", FILE), (f"{STORE} --data-parallel-rank 1", FILE)),
        "_dp_rank1 of vLLM server (launch.sh:1)",
        ((f"{STORE} --data-parallel-rank 0", FILE), (f"{STORE} --data-parallel-rank 1", FILE)),
        store(),
    ),
    Example(
        "store-reset-shared",
        ((STORE, {**FILE, "VLLM_SERVER_DEV_MODE": "1"}), (SERVICE, FILE)),
        "empty the store of 10.0.0.1:50051, which Mooncake store service (launch.sh:2) uses too",
        ((STORE, {**FILE, "VLLM_SERVER_DEV_MODE": "1"}),),
        {"mc.json": service()},
    ),
    Example(
        "metadata-mixed",
        ((STORE, FILE), (SGLANG_STORE, {**MASTER, "MOONCAKE_TE_META_DATA_SERVER": "etcd://a:1"})),
        "has 'P2PHANDSHAKE', SGLang server (launch.sh:2) has 'etcd://a:1'",
        ((STORE, FILE), (SGLANG_STORE, {"MOONCAKE_MASTER": "10.0.0.1"})),
        store(),
    ),
    Example(
        "consumer-ignored",
        (f"{STORE} --kv-offloading-size 10",),
        "MooncakeStoreConnector of --kv-transfer-config: --kv-offloading-size takes its place",
        (f"{POOL} --port 8001",),
    ),
)
FILES = (
    ({"global_segment_size": "4GiB"}, "consumer-refused", "ValueError: Invalid format: '4GiB'"),
    ({"global_segment_size": 0}, "consumer-refused", "embedded mode requires global_segment_size"),
    ({"local_buffer_size": 0}, "consumer-refused", "local_buffer_size must be > 0"),
    ({"metadata_server": ""}, "consumer-refused", "Initialize MooncakeDistributedStore failed."),
    ({"protocol": "rmda"}, "consumer-refused", "protocol 'rmda' is not one that Mooncake has"),
    ({"local_hostname": "a"}, "consumer-ignored", "MooncakeStoreConnector has no such key"),
)


@pytest.mark.parametrize("example", EXAMPLES, ids=name_of)
def test_rule(example: Example) -> None:
    prove(example)


@pytest.mark.parametrize(("config", "id_", "says"), FILES)
def test_a_stores_file(config: dict[str, object], id_: str, says: str) -> None:
    prove(Example(id_, ((STORE, FILE),), says, (POOL,), store(**config)))


def test_what_other_programs_read_is_named() -> None:
    line = (STORE, {**FILE, "MOONCAKE_GLOBAL_SEGMENT_SIZE": "80gb"})
    says = "MOONCAKE_GLOBAL_SEGMENT_SIZE (launch.sh:1): MooncakeStoreConnector reads mc.json alone"
    prove(Example("consumer-ignored", (line,), says, ((STORE, FILE),), store()))
