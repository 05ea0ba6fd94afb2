"""Every trap that is known of other engines on the store: which rule or check says it, and when.

A row: the trap, a launch that has it, the id that says it, words of what is said, and the same
launch without the trap, in which that id says nothing of it. Sources: vLLM 0.33.0, LMCache 0.5.6,
ai-dynamo 1.6.1.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from checks.framework.unknown import Unknown
from preflight.launch_problems.rules.launch_rules import findings, problems_of
from preflight.launches.container import ContainerSettings
from preflight.launches.source import Command
from preflight.processes.processes import understand
from tests.builders.launch_text import process
from tests.builders.rule_examples import Example
from tests.processes.test_unread import sized
from tests.tables import each_row

MASTER = "10.0.0.1:50051"
P2P = {"metadata_server": "P2PHANDSHAKE", "master_server_address": MASTER}


def vllm(name: str, words: str = "", role: str | None = "kv_both", **extra: Any) -> str:
    config = {"kv_connector": name, "kv_connector_extra_config": extra}
    config |= {} if role is None else {"kv_role": role}
    return f"vllm serve m {words} --kv-transfer-config '{json.dumps(config)}'"


def lmcache(**extra: Any) -> str:
    given = {"local_hostname": "a", "metadata_server": "P2PHANDSHAKE", **extra}
    values: dict[str, Any] = {
        "lmcache.remote_url": "mooncakestore://a:1",
        "lmcache.extra_config": given,
    }
    return vllm("LMCacheConnectorV1", **values)


def kvbm(cpu: str, words: str = "") -> str:
    return f"DYN_KVBM_CPU_CACHE_GB={cpu} " + vllm("DynamoConnector", words)


DYNAMO = (
    "docker run -e DYN_KVBM_CPU_CACHE_GB nvcr.io/nvidia/ai-dynamo/vllm-runtime:{} "
    "python3 -m dynamo.vllm --model m"
)
FILE = "MOONCAKE_CONFIG_PATH=mc.json "
STORE = FILE + vllm("MooncakeStoreConnector")
POOL = vllm("OffloadingConnector", cpu_bytes_to_use=1 << 30)
LM = lmcache(mooncake_master_server_addr=MASTER)
SERVICE = (
    f"MOONCAKE_MASTER={MASTER} MOONCAKE_LOCAL_HOSTNAME=a MOONCAKE_TE_META_DATA_SERVER={{}} "
    "python3 -m mooncake.mooncake_store_service"
)
SGLANG = (
    f"MOONCAKE_MASTER={MASTER} python3 -m sglang.launch_server --model-path m --page-size 64 "
    "--enable-hierarchical-cache --hicache-size 1 --hicache-storage-backend mooncake"
)
NO_ROLE = {"kv_connector": "MooncakeConnector"}
ROLE = {**NO_ROLE, "kv_role": "kv_both"}
ENGINE_ID = (
    "vllm serve m --port {} --kv-transfer-config "
    """'{{"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both", "engine_id": "e"}}'"""
)
LMC_SERVER = "lmcache server {} --eviction-policy LRU"
REPLACED = "--kv-offloading-size takes its place"


class Trap(NamedTuple):
    id: str
    says: str
    launch: str | tuple[str, ...] = ""
    right: str | tuple[str, ...] = ""
    file: Mapping[str, Any] = P2P
    right_file: Mapping[str, Any] = P2P

    def of(self, launch: str | tuple[str, ...], right: str | tuple[str, ...]) -> Trap:
        return self._replace(launch=launch, right=right)


def of_file(
    key: str,
    value: Any,
    says: str,
    id_: str = "consumer-refused",
    line: str = STORE,
    right: Any = None,
) -> Trap:
    """A trap of one key of the store's file; right: what mends it, None for leaving it out."""
    fixed = P2P if right is None else {**P2P, key: right}
    return Trap(id_, says, line, line, {**P2P, key: value}, fixed)


BY_ASSUMED = "consumer-refused-by-assumed"
REFUSED, MISREAD, IGNORED = "consumer-refused", "consumer-misread", "consumer-ignored"
READ_APART = "store-file-read-differently"
# Of one key of the store's file, by the id that says the trap: the key, its value, what is said,
# and the value that mends it, None for leaving it out.
FILE_TRAPS: dict[str, tuple[tuple[str, Any, str, Any], ...]] = {
    IGNORED: (("local_hostname", "a", "no such key", None),),
    BY_ASSUMED: (
        ("global_segment_size", "4GiB", "Invalid format: '4GiB'", "4GB"),
        ("global_segment_size", None, "TypeError", 1 << 30),
        ("global_segment_size", 0, "embedded mode requires", 1 << 30),
        ("mode", "standalone-store", "standalone-store mode requires", None),
        ("local_buffer_size", 0, "local_buffer_size must be > 0", 1 << 30),
    ),
    REFUSED: (
        ("global_segment_size", -5, "incompatible function arguments", 1 << 30),
        ("global_segment_size", True, "is 1 bytes", 1 << 30),
        ("protocol", "rmda", "is not one that Mooncake has", "rdma"),
        ("metadata_server", "", "metadata_server is empty", "P2PHANDSHAKE"),
    ),
    MISREAD: (("enable_offload", "false", "counts as true", False),),
    "device-name-syntax": (
        ("device_name", "mlx5_0:1", "NCCL's spelling", "mlx5_0"),
        ("device_name", "mlx5_0,mlx5_0:1", "NCCL's spelling", "mlx5_0,mlx5_0"),
    ),
}
TRAPS = (
    # 1. vLLM
    Trap(REFUSED, "Please specify kv_role").of(
        vllm("MooncakeConnector", role=None), vllm("MooncakeConnector")
    ),
    Trap(REFUSED, "Please specify kv_role").of(
        vllm("MultiConnector", connectors=[NO_ROLE]), vllm("MultiConnector", connectors=[ROLE])
    ),
    Trap(BY_ASSUMED, "multiple values for keyword argument 'engine_id'").of(
        vllm("MultiConnector", connectors=[{**ROLE, "engine_id": "e"}]),
        vllm("MultiConnector", connectors=[ROLE]),
    ),
    Trap(REFUSED, "'MOONCAKE_CONFIG_PATH' is not set").of(vllm("MooncakeStoreConnector"), STORE),
    Trap(IGNORED, "MooncakeStoreConnector reads mc.json alone").of(
        f"MOONCAKE_GLOBAL_SEGMENT_SIZE=8gb {STORE}", STORE
    ),
    Trap("device-name-syntax", "NCCL's spelling").of(
        vllm("MooncakeConnector", device_name="a,a:1"), vllm("MooncakeConnector", device_name="a,a")
    ),
    Trap(IGNORED, REPLACED).of(f"{STORE} --kv-offloading-size 1", STORE),
    Trap(IGNORED, "its LMCache server decides the size").of(
        f"{POOL} --kv-offloading-size 1 --kv-offloading-backend lmcache", POOL
    ),
    Trap(BY_ASSUMED, "cpu_bytes_to_use must be specified").of(vllm("OffloadingConnector"), POOL),
    Trap("lookup-socket-shared", "/tmp/lookup_rpc_port_0_host_<host>_dp_rank0").of(
        (f"{STORE} --port 1", f"{STORE} --port 2"),
        (f"{STORE} --port 1", FILE + vllm("MooncakeStoreConnector", "--port 2", lookup_rpc_port=1)),
    ),
    # 2. LMCache
    Trap(MISREAD, "Mooncake reads mooncake_master_server_addr there").of(
        lmcache(master_server_address=MASTER), LM
    ),
    Trap(MISREAD, "Mooncake reads mooncake_rdma_devices there").of(
        lmcache(mooncake_master_server_addr=MASTER, device_name="mlx5_0"),
        lmcache(mooncake_master_server_addr=MASTER, mooncake_rdma_devices="mlx5_0"),
    ),
    Trap(MISREAD, "metadata_server is missing").of(
        lmcache(mooncake_master_server_addr=MASTER, metadata_server=None), LM
    ),
    Trap(IGNORED, "LMCache takes the master from elsewhere").of(LM, vllm("LMCacheConnectorV1")),
    Trap(MISREAD, "Invalid remote url").of(
        vllm("LMCacheConnectorV1", **{"lmcache.remote_url": "a:1"}), vllm("LMCacheConnectorV1")
    ),
    Trap(MISREAD, "max_local_cpu_size").of(
        f"LMCACHE_MAX_LOCAL_CPU_SIZE=20GB {LM}", f"LMCACHE_MAX_LOCAL_CPU_SIZE=20 {LM}"
    ),
    Trap(BY_ASSUMED, "Hugepages are not supported with P2P").of(
        "LMCACHE_LOCAL_CPU_USE_HUGEPAGES=1 LMCACHE_ENABLE_P2P=1 "
        "LMCACHE_ENABLE_CONTROLLER=1 LMCACHE_CONTROLLER_PULL_URL=a "
        "LMCACHE_CONTROLLER_REPLY_URL=a "
        "LMCACHE_LMCACHE_WORKER_PORTS=1 LMCACHE_P2P_HOST=a LMCACHE_P2P_INIT_PORTS=1 "
        f"LMCACHE_P2P_LOOKUP_PORTS=1 LMCACHE_TRANSFER_CHANNEL=nixl {LM}",
        f"LMCACHE_LOCAL_CPU_USE_HUGEPAGES=1 {LM}",
    ),
    Trap("lookup-socket-shared", "engine_e_lmcache_rpc_port_0").of(
        tuple(ENGINE_ID.format(port) for port in (1, 2)),
        tuple(vllm("LMCacheConnectorV1", f"--port {port}") for port in (1, 2)),
    ),
    Trap(BY_ASSUMED, "incompatible with shared memory").of(
        LMC_SERVER.format("--l1-size-gb 1 --l1-use-hugepages --shm-name x"),
        LMC_SERVER.format("--l1-size-gb 1 --l1-use-hugepages"),
    ),
    # 3. Dynamo
    Trap(REFUSED, "--connector is no longer supported").of(
        f"{DYNAMO.format('1.1.1')} --connector kvbm",
        f"DYN_KVBM_CPU_CACHE_GB=1 {DYNAMO.format('0.7.0')} --connector kvbm",
    ),
    Trap(IGNORED, "less than the KV cache on the GPU").of(
        kvbm("1", "-tp 2 --kv-cache-memory-bytes 2g"), kvbm("5", "-tp 2 --kv-cache-memory-bytes 2g")
    ),
    # 6. Between them
    of_file(
        "global_segment_size",
        "1.5gb",
        "refused to SGLang server",
        READ_APART,
        line=f"{STORE} &\nSGLANG_HICACHE_MOONCAKE_CONFIG_PATH=mc.json {SGLANG}",
        right=1 << 30,
    ),
    Trap("metadata-mixed", "has 'P2PHANDSHAKE'").of(
        (STORE, SERVICE.format("http://10.0.0.1:8080/metadata")),
        (STORE, SERVICE.format("P2PHANDSHAKE")),
    ),
    Trap("consumer-release", "read as vLLM 0.33.0").of(
        "docker run --entrypoint vllm vllm/vllm-openai:v0.11.0 serve m",
        "docker run --entrypoint vllm vllm/vllm-openai:v0.33.0 serve m",
    ),
    *(of_file(*row[:3], id_, right=row[3]) for id_, rows in FILE_TRAPS.items() for row in rows),
)


def said(
    folder: Path, launch: str | tuple[str, ...], file: Mapping[str, Any], id_: str
) -> list[str]:
    """What that rule or check says of the launch."""
    folder.mkdir()
    (folder / "mc.json").write_text(json.dumps(file))
    lines = (launch,) if isinstance(launch, str) else launch
    sizing = sized(folder, " &\n".join(lines) + "\n")
    return [one.text for one in problems_of(sizing.inputs) if one.id == id_]


@pytest.mark.parametrize("trap", TRAPS, ids=lambda trap: f"{trap.id}: {trap.says}")
def test_each_trap_is_said_and_nothing_where_it_is_not(trap: Trap, tmp_path: Path) -> None:
    texts = said(tmp_path / "wrong", trap.launch, trap.file, trap.id)
    assert any(trap.says in text for text in texts), texts
    texts = said(tmp_path / "right", trap.right, trap.right_file, trap.id)
    assert not any(trap.says in text for text in texts), texts


UNNAMED = vllm("MooncakeStoreConnector")
RANKS = [
    (f"{UNNAMED} --data-parallel-rank {rank}", {"MOONCAKE_CONFIG_PATH": "mc.json"})
    for rank in (0, 1)
]
NO_ROLE_LINE = vllm("MooncakeConnector", role=None)


def lmcache_of(image: str) -> Command:
    command = process(vllm("LMCacheConnectorV1"), {"LMCACHE_ENABLE_CONTROLLER": "true"})
    return command._replace(container=ContainerSettings("docker", image))


EXAMPLES = (
    *(
        Example(BY_ASSUMED, f"(LMCache 0.5.6 is assumed, {why})").of(
            (lmcache_of(f"lmcache/vllm-openai{tag}"),), (lmcache_of("lmcache/vllm-openai:v0.5.6"),)
        )
        for tag, why in (
            ("@sha256:ab", "as nothing names its release"),
            (":v0.4.2", "and its image has 0.4.2"),
        )
    ),
    Example("lookup-socket-shared", "_dp_rank1 of vLLM server (launch.sh:1)").of(
        (RANKS[1], RANKS[1]), (RANKS[0], RANKS[1]), {"mc.json": json.dumps(P2P)}
    ),
)


TWICE = vllm("MultiConnector", connectors=[{**ROLE, "engine_id": "e"}])
FORMER = f"vllm serve m --kv-transfer-config '{json.dumps({**ROLE, 'kv_rank': 0})}'"


@each_row(
    ("line", "releases"),
    [
        # Of what each release makes of it: None where nothing names it.
        (NO_ROLE_LINE, {None: "F", "0.7.3": "w", "0.8.5": "F", "0.16.0": "F", "0.34.0": "w"}),
        ("vllm serve m --kv-transfer-config {", {None: "F", "0.11.0": "F", "0.34.0": "w"}),
        (TWICE, {None: "w", "0.9.2": "", "0.10.0": "w", "0.11.0": "F", "0.33.0": "F"}),
        (FORMER, {None: "w", "0.23.0": "", "0.28.0": "w", "0.33.0": "F", "0.34.0": "w"}),
        (vllm("OffloadingConnector"), {None: "w", "0.12.0": "w", "0.33.0": "F"}),
        (UNNAMED, {None: "F", "0.11.0": "F", "0.34.0": "w"}),
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
        ids = [one.id for one in found if one.id.startswith("consumer-refused")]
        says = {"F": ["consumer-refused"], "w": [BY_ASSUMED], "": []}[expected]
        assert ids == says, (release, [one.text for one in found])
