"""A launch that fits passes every check, on a host of eight GPUs and on an instance with eRDMA."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from preflight.cli.main import run
from tests.builders.synthetic import (
    GIB,
    MIB,
    PATIENCE_SECONDS,
    SyntheticHost,
    build_host,
    erdma_host,
    gpu_host,
)
from tests.rows import statuses

MASTER = ("10.0.0.100", 50051)
SYSCTL = "/etc/sysctl.d/90-mooncake.conf"
NICS = ",".join(nic.name for nic in gpu_host().nics)
ERDMA = ",".join(nic.name for nic in erdma_host().nics)
FLAGS = (
    "--enable-hierarchical-cache --hicache-size 30 --hicache-mem-layout page_first --page-size 64"
    " --hicache-write-policy write_through --hicache-io-backend kernel"
    " --hicache-storage-prefetch-policy timeout --hicache-storage-backend mooncake"
)


def script(model: str, ranks: int, devices: str, segment: str) -> str:
    """A launch with no fault of its own."""
    return "\n".join(
        (
            f"export MOONCAKE_MASTER={MASTER[0]}:{MASTER[1]}",
            "export MOONCAKE_TE_META_DATA_SERVER=P2PHANDSHAKE",
            "export MOONCAKE_PROTOCOL=rdma",
            f"export MOONCAKE_GLOBAL_SEGMENT_SIZE={segment}",
            f"export MOONCAKE_DEVICE={devices}",
            "export MC_STORE_USE_HUGEPAGE=1",
            f"python3 -m sglang.launch_server --model-path {model} --tp {ranks} --host 0.0.0.0"
            f" --port 30000 --mooncake-ib-device {devices} {FLAGS}",
        )
    )


def fitted(host: SyntheticHost, pages_per_node: int) -> SyntheticHost:
    """With a pool that a reboot brings back, and the master of the launch."""
    setting = f"vm.nr_hugepages = {pages_per_node * host.nodes}"
    return replace(
        host,
        pools={2 * MIB: pages_per_node, GIB: 0},
        services={MASTER: "master"},
        files={**host.files, SYSCTL: setting},
    )


FITTED = fitted(gpu_host(), 80000)
LAUNCH = script("Qwen/Qwen3-32B", 8, NICS, "64gb")


class Checked(NamedTuple):
    """What ``mooncake-preflight check --root TREE launch.sh`` says: by check, its statuses."""

    code: int
    statuses: Mapping[str, set[str]]


def check(
    capsys: pytest.CaptureFixture[str], path: Path, host: SyntheticHost, text: str
) -> Checked:
    tree, file = path / "tree", path / "launch.sh"
    tree.mkdir()
    file.write_text(text)
    words = ["check", "--json", "--root", str(build_host(tree, host)), str(file)]
    words += ["--timeout", str(PATIENCE_SECONDS)]
    code = run([*words, "--mooncake-version", "0.3.13.post1", "--sglang-version", "0.5.23"])
    return Checked(code, statuses(capsys.readouterr().out))


@pytest.mark.parametrize(
    ("host", "text"),
    [(FITTED, LAUNCH), (fitted(erdma_host(), 46000), script("Qwen/Qwen3-8B", 2, ERDMA, "32gb"))],
    ids=["8 GPUs and 8 NICs", "eRDMA"],
)
def test_a_fitting_launch_passes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, host: SyntheticHost, text: str
) -> None:
    code, found = check(capsys, tmp_path, host, text)
    bad = {name: one for name, one in found.items() if one - {"pass", "skip"}}
    assert (code, bad) == (0, {})
    assert "pass" in found["hugetlb.shortage"]
