"""/dev/shm, seccomp profiles, and root file systems that nobody may write."""

from __future__ import annotations

import shutil

import pytest

from tests.containers.container import (
    DEFAULT_PROFILE,
    DOCKER_CAPABILITIES,
    MIB,
    POLICIES,
    RINGS,
    Limits,
    Machine,
    check,
    probe,
    product,
    sizing,
)
from tests.rows import told

pytestmark = pytest.mark.containers

BUS_ERROR = 135
SERVER = (
    "python3", "-m", "sglang.launch_server", "--model-path", "Qwen/Qwen3-14B", "--hicache-size",
    "1", "--enable-hierarchical-cache",
)  # fmt: skip
SPLIT = ("mooncake_client", "--protocol=rdma", "--global_segment_size=16MB")
RING_CLIENT = ("mooncake_client", "--global_segment_size=16MB", "--enable_offload=true")
RING = {"MOONCAKE_OFFLOAD_USE_URING": "true", "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH": "/dev/shm"}


@pytest.mark.parametrize(("size_mib", "expected"), [(64, "warn"), (256, "pass")])
def test_writing_beyond_a_small_shm_is_a_bus_error(
    containers: Machine, size_mib: int, expected: str
) -> None:
    """Two ranks that share 64 MiB are warned, and 65 MiB written there are death."""
    said, done = containers.run(
        Limits(shm_bytes=size_mib * MIB),
        check(*SERVER, "--tp", "2", only="shm.space"),
        probe("shm", 65 * MIB),
    )
    finding = said.finding("shm.space")
    assert finding["status"] == expected, finding
    assert f"of {size_mib}.00 MiB" in told(finding, "have")
    assert done.code == (BUS_ERROR if expected == "warn" else 0)


@pytest.mark.parametrize(
    ("refused", "user"), [((), 0), (DEFAULT_PROFILE, 0), (DEFAULT_PROFILE, 1000)]
)
def test_a_profile_that_refuses_memory_policies(
    containers: Machine, refused: tuple[str, ...], user: int
) -> None:
    """What the check says of a rank and of a split segment is what numactl and mbind meet."""
    if shutil.which("numactl") is None:
        pytest.skip("needs numactl")
    options = ("--rank-numa-nodes", "0", "--sglang-version")
    rank, newer, split, policy, binding, numactl = containers.run(
        Limits(user=user, refused=refused),
        check(*SERVER, only="numa.policy-refused", options=(*options, "0.5.14")),
        check(*SERVER, only="numa.policy-refused", options=(*options, "0.5.23")),
        check(*SPLIT, only="numa.policy-refused", options=("--nic-numa-nodes", "0,1")),
        probe("policy"),
        probe("binding"),
        "numactl --membind=0 true 2>&1",
    )
    said = [done.finding("numa.policy-refused")["status"] for done in (rank, newer, split)]
    assert said == (["warn", "warn", "fail"] if refused else ["pass", "pass", "pass"])
    assert (policy.code, binding.code) == ((1, 1) if refused else (0, 0))
    assert (numactl.code != 0) == bool(refused), numactl


def test_a_profile_that_refuses_setting_policies_and_not_asking(containers: Machine) -> None:
    """SGLang before 0.5.15 asks first: where it is answered, numactl ends the rank."""
    options = ("--rank-numa-nodes", "0", "--sglang-version", "0.5.14")
    rank, numactl = containers.run(
        Limits(refused=POLICIES[1:]),
        check(*SERVER, only="numa.policy-refused", options=options),
        "numactl --membind=0 true 2>&1",
    )
    assert (rank.finding("numa.policy-refused")["status"], numactl.code) == ("fail", 1)


@pytest.mark.parametrize(("refused", "user"), [((), 1000), (RINGS, 0), (RINGS, 1000)])
def test_a_profile_that_refuses_io_uring(
    containers: Machine, refused: tuple[str, ...], user: int
) -> None:
    """A ring can be made just where the check passes."""
    said, ring = containers.run(
        Limits(user=user, refused=refused, environment=RING),
        check(*RING_CLIENT, only="io-uring.unavailable"),
        probe("ring"),
    )
    finding = said.finding("io-uring.unavailable")
    assert (finding["status"], ring.code) == (("fail", 1) if refused else ("pass", 0)), finding
    assert not refused or finding["settings"][0]["kind"] == "security"


@pytest.mark.parametrize(
    "limits",
    [
        Limits(refused=DEFAULT_PROFILE),
        Limits(user=65534, capabilities=(), cgroup_namespace=False),
        Limits(users=100000, capabilities=DOCKER_CAPABILITIES),
    ],
    ids=["root", "nobody", "user namespace"],
)
def test_everything_works_where_nothing_may_be_written(containers: Machine, limits: Limits) -> None:
    """No home, no network, no place to write: every command answers, and no check is defective."""
    whole, sized, drawn, listed, gate, home = containers.run(
        limits,
        check(*SERVER),
        sizing(*SPLIT),
        product("topology", "--json"),
        product("explain", "--advisories"),
        product("exec", "--", "mooncake_master", "--rpc_port", "50999"),
        "cd ~ 2>&1; touch /tmp/x /run/x /x 2>/dev/null && echo written",
    )
    assert whole.code in (1, 2, 3)
    rows = whole.json["findings"]
    assert len({row["check"] for row in rows}) > 40
    assert [
        row for row in rows if "defect" in row["text"] or row["check"].endswith("not-loaded")
    ] == []
    assert sized.code == listed.code == gate.code == 0
    assert drawn.json["findings"]
    assert sized.out
    assert "written" not in home.out
