"""A master that takes cachelib refuses what the rule refuses, and takes what it lets pass."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator

import pytest

from preflight.launch_problems.rules.launch_rules import findings
from preflight.launch_problems.rules.programs import SLAB_BYTES
from tests.builders.launch_text import understood
from tests.real.conftest import Wheel, free_port

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def cachelib(wheel_0_3_13: Wheel) -> Iterator[str]:
    """The address of a running master that takes cachelib."""
    port = free_port()
    flags = (f"--rpc_port={port}", f"--metrics_port={free_port()}", "--memory_allocator=cachelib")
    master = subprocess.Popen(
        [wheel_0_3_13.command("mooncake_master"), *flags],
        env=wheel_0_3_13.environment({}),
        stderr=subprocess.DEVNULL,
    )
    yield f"127.0.0.1:{port}"
    master.terminate()
    master.wait(timeout=100)


@pytest.mark.parametrize("size", [4 * SLAB_BYTES, 5 * SLAB_BYTES + 4096, 5 * SLAB_BYTES + 1])
def test_the_master_takes_whole_slabs_alone(wheel_0_3_13: Wheel, cachelib: str, size: int) -> None:
    """The client's log has no reason, its exit does."""
    wheel = wheel_0_3_13
    client = (
        "mooncake_client",
        f"--global_segment_size={size}B",
        "--metadata_server=P2PHANDSHAKE",
        f"--master_server_address={cachelib}",
        f"--port={free_port()}",
    )
    rule = "segment-not-slabs"
    launch = ("mooncake_master --memory_allocator=cachelib", " ".join(client))
    refused = any(finding.id == rule for finding in findings(understood(*launch)))
    assert refused == bool(size % SLAB_BYTES)
    process = subprocess.Popen(
        [wheel.command(client[0]), *client[1:]],
        env=wheel.environment({}),
        stderr=subprocess.PIPE,
        text=True,
    )
    said = []
    deadline = time.monotonic() + 20
    assert process.stderr is not None
    for line in process.stderr:
        said.append(line)
        over = "Starting real client service" in line or "INVALID_PARAMS" in line
        if over or time.monotonic() > deadline:
            break
    process.kill()
    process.wait(timeout=100)
    assert ("INVALID_PARAMS" in said[-1]) == refused, "".join(said)
