"""All engines of a host together: pages, pinned bytes, ports, one store's capacity, rehearsal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from checks.framework.units import GIB
from checks.framework.unknown import Unknown, require
from preflight.benchmark.rehearsal.plan import members_of
from preflight.benchmark.rehearsal.rehearse import prepare
from preflight.cache_sizing.capacity.deployment import Cluster
from preflight.cache_sizing.capacity.tiers import segments
from preflight.command_inputs.host_source import Host, Sized, open_host, size_and_needs
from preflight.command_inputs.launch_words import LaunchWords

MASTER = "mooncake_master --enable_http_metadata_server=true"
SGLANG = (
    "MOONCAKE_MASTER=127.0.0.1:50051 MOONCAKE_GLOBAL_SEGMENT_SIZE=2gb python3 -m "
    "sglang.launch_server --model-path Qwen/Qwen3-8B --tp 2 --page-size 64 "
    "--enable-hierarchical-cache --hicache-size 1 --hicache-storage-backend mooncake"
)
STORE = '{"kv_connector": "MooncakeStoreConnector", "kv_role": "kv_both"}'
VLLM = f"MOONCAKE_CONFIG_PATH=mc.json vllm serve Qwen/Qwen3-8B -tp 2 --kv-transfer-config '{STORE}'"
POOL = "vllm serve m --kv-offloading-size 1"


@pytest.fixture
def host(tmp_path: Path) -> Host:
    (tmp_path / "host" / "proc").mkdir(parents=True)
    return open_host(str(tmp_path / "host"))


def sized(folder: Path, host: Host, *lines: str) -> Sized:
    file = {"metadata_server": "P2PHANDSHAKE", "master_server_address": "127.0.0.1:50051"}
    file |= {"protocol": "rdma", "global_segment_size": "10GB", "local_buffer_size": "1GB"}
    (folder / "mc.json").write_text(json.dumps(file))
    path = folder / "launch.sh"
    path.write_text("export MC_STORE_USE_HUGEPAGE=1\n" + "".join(f"{one} &\n" for one in lines))
    found = size_and_needs(LaunchWords((str(path),), nic_nodes=()), host)
    assert found is not None
    return found


def test_one_stores_capacity_is_of_all_that_contribute(tmp_path: Path, host: Host) -> None:
    inputs = sized(tmp_path, host, MASTER, SGLANG, VLLM).sizing.inputs
    found = require(segments(inputs, Cluster()))
    assert sum(one.bytes * one.number for one in found) == 2 * GIB + 2 * 10 * GIB


def test_a_worker_of_vllm_is_rehearsed_and_a_pool_of_its_own_is_not(
    tmp_path: Path, host: Host
) -> None:
    plain = sized(tmp_path, host, MASTER, VLLM)
    launch = require(plain.sizing.inputs.most).launch
    members = members_of(launch, plain.sizing, plain.needs, None)
    assert [member.program for member in members] == ["vllm", "vllm"]
    library: Any = None  # refused before it is asked
    refused = prepare(sized(tmp_path, host, MASTER, POOL), host, library, 1)
    assert isinstance(refused, Unknown)
    assert "which is not rehearsed" in refused.reason
