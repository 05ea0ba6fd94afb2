"""Workers of engines beside SGLang in the guest: each one's own sequence of calls, not its code.

What they register on two soft-RoCE devices is held against what is predicted of their launch.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from checks.framework.root import Root
from checks.framework.units import GIB
from checks.framework.unknown import require
from checks.rdma.registration import pinned_bytes, registration_of
from preflight.command_inputs.written_launch import read_launch, size_written
from preflight.engines.consumers.lmcache import mooncake_setup
from preflight.engines.consumers.vllm import store_config
from preflight.needs.launch_needs import launch_needs
from preflight.processes.processes import LaunchOptions
from tests.lab.rehearse_guest import FIRST_RELEASE
from tests.real.conftest import Wheel

HERE = Path(__file__).parent
SECONDS_EACH = 20
DEVICES = 2
BASE_PAGE_BYTES = 4096
MASTER = "127.0.0.1:50051"  # of the launch; the guest's own takes its place
P2P = {"metadata_server": "P2PHANDSHAKE", "master_server_address": MASTER}
SETTLED: dict[str, str] = {"local_hostname": "127.0.0.1", "metadata_server": "P2PHANDSHAKE"}
HUGE = {"MC_STORE_USE_HUGEPAGE": "1"}
SIZES: dict[str, Any] = {"global_segment_size": "80mb", "local_buffer_size": "16mb"}


class Engine(NamedTuple):
    """A worker. file: of MOONCAKE_CONFIG_PATH. extra: LMCache's extra_config, or its server's
    --l2-adapter. pool_mib: of memory that it maps and registers itself."""

    id: str
    file: Mapping[str, Any] = {}
    extra: Mapping[str, Any] = {}
    environment: Mapping[str, str] = {}
    pool_mib: float = 0
    pool_huge: bool = False

    def __hash__(self) -> int:
        return hash(self.id)


def _vllm(name: str, environment: Mapping[str, str] = {}, **file: Any) -> Engine:
    return Engine(f"vLLM: {name}", {**SIZES, **file}, {}, environment)


def _lmcache(name: str, pool_mib: float, pool_huge: bool = False, **extra: Any) -> Engine:
    # libibverbs before 51 refuses a huge page that is registered in part, but for this variable.
    safe = {"RDMAV_HUGEPAGES_SAFE": "1"} if pool_huge else {}
    return Engine(f"LMCache: {name}", {}, {**SIZES, **extra}, safe, pool_mib, pool_huge)


ALL = (
    _vllm("regular pages"),
    _vllm("huge pages, odd segment", HUGE, global_segment_size=83886081),
    _vllm("standalone store", HUGE, local_buffer_size="32mb", global_segment_size=0,
          mode="standalone-store"),
    _vllm("arena", {**HUGE, "MC_MMAP_ARENA_POOL_SIZE": "128mb"}),
    _vllm("tcp", protocol="tcp"),
    _lmcache("regular pool", 31, protocol="rdma"),
    _lmcache("pool on huge pages, odd", 64.5, True, protocol="rdma"),
    _lmcache("pool alone", 20, protocol="rdma", global_segment_size="0"),
    _lmcache("tcp", 20),
    _lmcache("server, with an L2 adapter", 40, protocol="rdma"),
    # Both read the one file.
    Engine("vLLM and LMCache: two stores of a worker",
           {**SIZES, "protocol": "rdma", **SETTLED, "mooncake_master_server_addr": MASTER},
           {"protocol": "rdma"}, {}, 12),
)  # fmt: skip


def _launch(one: Engine) -> str:
    """Return the line of the launch; its file is mc.json."""
    front = "".join(f"{name}={text} " for name, text in one.environment.items())
    front += "MOONCAKE_CONFIG_PATH=mc.json " * bool(one.file)
    extra = {**SETTLED, **one.extra}
    gib = one.pool_mib / 1024
    if "server" in one.id:
        adapter = {"type": "mooncake_store", "master_server_addr": MASTER, **extra}
        words = f"--l1-size-gb {gib} --eviction-policy LRU --no-l1-use-lazy"
        return f"{front}lmcache server {words} --l2-adapter '{json.dumps(adapter)}'"
    lmcache = {
        "lmcache.max_local_cpu_size": gib,
        "lmcache.local_cpu_use_hugepages": one.pool_huge,
        "lmcache.remote_url": "mooncakestore://unused:1",
        "lmcache.extra_config": {"mooncake_master_server_addr": MASTER, **extra},
    }
    connectors: list[dict[str, Any]] = []
    if one.file:
        connectors.append({"kv_connector": "MooncakeStoreConnector", "kv_role": "kv_both"})
    if one.extra:
        connectors.append({"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both",
                           "kv_connector_extra_config": lmcache})  # fmt: skip
    config = connectors[0]
    if len(connectors) > 1:
        config = {"kv_connector": "MultiConnector", "kv_role": "kv_both",
                  "kv_connector_extra_config": {"connectors": connectors}}  # fmt: skip
    return f"{front}vllm serve m --kv-transfer-config '{json.dumps(config)}'"


def predicted_bytes(one: Engine, folder: Path) -> int:
    """Return what the worker pins on both devices together, by its launch."""
    (folder / "mc.json").write_text(json.dumps({**P2P, **one.file}))
    (folder / "launch.sh").write_text(_launch(one) + "\n")
    host = Root(str(folder / "host"))
    found = read_launch((str(folder / "launch.sh"),), (), {}, host)
    sizing = size_written(found, LaunchOptions(1 << 40, (), mooncake_version=FIRST_RELEASE), host)
    (worker,) = launch_needs(sizing).processes
    if worker.rdma is None:
        return 0
    return DEVICES * sum(
        pinned_bytes(registration_of(region, 0, None), BASE_PAGE_BYTES, region.offset_bytes)
        for region in require(worker.regions)
    )


def _order(one: Engine, port: int) -> dict[str, Any]:
    """Return what the guest's process does: the engine's own sequence of calls."""
    setups: list[Any] = []
    protocol = one.extra.get("protocol", "tcp")
    if one.file:
        file = store_config(json.dumps({**P2P, **one.file}))
        sizes = (file["global_segment_size"], file["local_buffer_size"])
        setups.append([f"127.0.0.1:{port}", "P2PHANDSHAKE", *sizes, file["protocol"], ""])
        protocol = file["protocol"]
    if one.extra:
        setup = mooncake_setup({**SETTLED, **(one.file or one.extra)})
        setups.append({**setup, "protocol": protocol, "local_hostname": f"127.0.0.1:{port + 1}"})
    return {
        "id": one.id,
        "environment": one.environment,
        "pool_bytes": int(one.pool_mib / 1024 * GIB),
        "pool_huge": one.pool_huge,
        "registers": protocol == "rdma",
        "setups": setups,
    }


def engines_script(engines: Iterable[Engine], wheel: Wheel, folder: Path) -> str:
    """Lines of sh that run them all in the guest, or none; with or without its devices up."""
    orders = [_order(one, 17000 + 10 * number) for number, one in enumerate(engines)]
    if not orders:
        return ""
    library = {
        "environment": {"PYTHONPATH": str(wheel.folder)},
        "master": wheel.command("mooncake_master"),
    }
    file = folder / "engines.json"
    file.write_text(json.dumps({"library": library, "engines": orders}))
    path = f"PYTHONPATH={shlex.quote(f'{wheel.folder}:{HERE.parents[1]}')}"
    program = shlex.join([sys.executable, str(HERE / "engine_runner.py"), str(file)])
    return f"env {path} {program} 2>&1\n"


def engines_in(folder: Path) -> dict[str, dict[str, Any]]:
    """By id: what each call said, and the bytes that were pinned."""
    lines = (folder / "answers").read_text(errors="replace").splitlines()
    rows = [json.loads(line) for line in lines if line.startswith('{"engine"')]
    return {row.pop("engine"): row for row in rows}
