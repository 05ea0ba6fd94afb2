"""Engines beside SGLang on the real library: each one's own sequence of calls, not its code.

Neither vLLM's connector nor LMCache's is imported: a process calls Mooncake as they do, with what
their configuration comes to, and maps LMCache's pool on its own huge pages. Pages taken are pages
predicted, over TCP with a real master.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from checks.base.pages import Spot
from checks.base.root import Root
from preflight.consumers.lmcache import mooncake_setup
from preflight.consumers.vllm import store_config
from preflight.inputs.written_launch import read_launch, size_written
from preflight.mooncake.replay import pages_by_spot
from preflight.processes.processes import LaunchOptions
from tests.real.conftest import HugePages, Store, Wheel, free_port

pytestmark = pytest.mark.real
MIB = 1 << 20
VERSION = "0.3.13.post1"
# vLLM: setup(host, metadata, segment, local, protocol, device, master). LMCache: its pool first,
# MAP_HUGETLB of 2 MiB (csrc alloc_hugepage_pinned_ptr), then setup(dict), whose answer it ignores.
WORKER = """
import json, mmap, os, sys
def used():
    with open("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages") as a, \\
         open("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages") as b, \\
         open("/sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages") as c:
        return int(a.read()) - int(b.read()) + int(c.read())
from mooncake.store import MooncakeDistributedStore
order = json.load(sys.stdin)
before, kept = used(), []
if order["pool"]:
    size = -(-order["pool"] // (2 << 20)) * (2 << 20)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000 | (21 << 26)
    kept.append(mmap.mmap(-1, size, flags))
store, setup = MooncakeDistributedStore(), order["setup"]
store.setup(setup) if isinstance(setup, dict) else store.setup(*setup)
print(used() - before)
sys.stdout.flush()
os._exit(0)
"""
ENVIRONMENTS: dict[str, dict[str, str]] = {
    "huge pages": {"MC_STORE_USE_HUGEPAGE": "1"},
    "regular pages": {},
    "arena": {"MC_STORE_USE_HUGEPAGE": "1", "MC_MMAP_ARENA_POOL_SIZE": "100mb"},
}
VLLM_SIZES = ((83886081, 16777217), ("0.05gb", "1.5mb"), (0, "32MB"))
LMCACHE_SIZES = (("83886081", "1000000"), ("0", "32mb"), ("64MiB", "16mb"))
POOLS = (0, 64.5)
# One process each, or two, in turn.
VLLM_CASES = [(*case, 1 + at % 2) for at, case in enumerate(product(ENVIRONMENTS, VLLM_SIZES))]
LMCACHE_CASES = list(product(ENVIRONMENTS, LMCACHE_SIZES, POOLS))


@pytest.fixture
def store(wheel_0_3_13: Wheel, stores: Callable[[Wheel], Store], huge_pages: HugePages) -> Store:
    assert huge_pages.set(600, 0, 0) is None
    return stores(wheel_0_3_13)


def predicted(folder: Path, line: str, environment: dict[str, str]) -> int:
    """Pages of 2 MiB that the launch takes."""
    script = folder / "launch.sh"
    exports = "".join(f"export {name}={value}\n" for name, value in environment.items())
    script.write_text(f"{exports}{line}\n")
    host = Root(str(folder / "host"))
    launch = read_launch((str(script),), (), {}, host)
    options = LaunchOptions(1 << 40, (), mooncake_version=VERSION)
    sizing = size_written(launch, options, host)
    assert (sizing.unread, sizing.shown is not None) == ((), True)
    assert sizing.most is not None
    return sum(
        pages_by_spot(one.allocations).get(Spot(2 * MIB, None), 0) for one in sizing.most.asked
    )


def taken(store: Store, environment: dict[str, str], pool: int, setup: Any) -> int:
    """Pages of 2 MiB that a process takes: its pool, and what Mooncake maps in its setup."""
    done = subprocess.run(
        [sys.executable, "-c", WORKER],
        input=json.dumps({"pool": pool, "setup": setup}),
        env=store.wheel.environment(environment),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-1500:]
    return int(done.stdout.splitlines()[-1])


def connector(name: str, **extra: Any) -> str:
    config = {"kv_connector": name, "kv_role": "kv_both", "kv_connector_extra_config": extra}
    return f"vllm serve m --kv-transfer-config '{json.dumps(config)}'"


@pytest.mark.parametrize(("environment", "sizes", "workers"), VLLM_CASES)
def test_vllm(
    environment: str, sizes: tuple[Any, Any], workers: int, store: Store, tmp_path: Path
) -> None:
    file = {
        "metadata_server": "P2PHANDSHAKE",
        "protocol": "tcp",
        "master_server_address": store.address,
        "global_segment_size": sizes[0],
        "local_buffer_size": sizes[1],
        "mode": "embedded" if sizes[0] else "standalone-store",
    }
    (tmp_path / "mc.json").write_text(json.dumps(file))
    config = store_config(json.dumps(file))
    both = (config["global_segment_size"], config["local_buffer_size"])
    setup = [f"127.0.0.1:{free_port()}", "P2PHANDSHAKE", *both, "tcp", "", store.address]
    variables = ENVIRONMENTS[environment]
    pages = sum(taken(store, variables, 0, setup) for _ in range(workers))
    line = f"{connector('MooncakeStoreConnector')} -tp {workers}"
    path = {"MOONCAKE_CONFIG_PATH": str(tmp_path / "mc.json")}
    assert pages == predicted(tmp_path, line, {**variables, **path})


@pytest.mark.parametrize(("environment", "sizes", "pool"), LMCACHE_CASES)
def test_lmcache(
    environment: str, sizes: tuple[str, str], pool: float, store: Store, tmp_path: Path
) -> None:
    extra = {
        "local_hostname": f"127.0.0.1:{free_port()}",
        "metadata_server": "P2PHANDSHAKE",
        "mooncake_master_server_addr": store.address,
        "global_segment_size": sizes[0],
        "local_buffer_size": sizes[1],
    }
    gib, variables = pool / 1024, ENVIRONMENTS[environment]
    settings = {
        "lmcache.max_local_cpu_size": gib,
        "lmcache.local_cpu_use_hugepages": True,
        "lmcache.remote_url": "mooncakestore://unused:1",
        "lmcache.extra_config": extra,
    }
    pages = taken(store, variables, int(gib * (1 << 30)), mooncake_setup(extra))
    assert pages == predicted(tmp_path, connector("LMCacheConnectorV1", **settings), variables)
