"""The synthetic hosts are complete: every reader is served, and a fitting launch passes on them."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from checks.base.needs import LaunchNeeds
from checks.base.unknown import Unknown
from checks.run.facts import READERS, Facts
from preflight.cli.main import run
from tests.builders.synthetic import (
    GIB,
    MIB,
    PATIENCE_SECONDS,
    SyntheticHost,
    build_host,
    erdma_host,
    gpu_host,
    limited_container,
    plain_host,
    read_host,
)
from tests.checks.ranks import launch, rank
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


def unknowns(record: Any, at: str) -> Iterator[tuple[str, Unknown]]:
    """Every Unknown below a record, with where it stands."""
    if isinstance(record, Unknown):
        yield at, record
    elif isinstance(record, dict):
        for key, value in record.items():
            yield from unknowns(value, f"{at}[{key}]")
    elif isinstance(record, tuple):
        names = getattr(record, "_fields", range(len(record)))
        for name, value in zip(names, record, strict=True):
            yield from unknowns(value, f"{at}.{name}")


def missing(facts: Facts) -> dict[str, str]:
    """What no file and no answer told, and that is not simply absent."""
    return {
        at: fact.reason
        for topic in READERS
        for at, fact in unknowns(facts.topic(topic), topic)
        if not fact.absent
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("host", "needs"),
    [
        (gpu_host(), launch(rank(0, gpu_registered_bytes=GIB))),
        (gpu_host(), None),
        (erdma_host(), None),
        (plain_host(), None),
    ],
)
def test_every_reader_is_served(
    tmp_path: Path, host: SyntheticHost, needs: LaunchNeeds | None
) -> None:
    """Nothing that a reader asks for is "not recorded"."""
    found = missing(read_host(tmp_path, host, needs))
    if needs:  # whose ranks name no address of their own
        assert found.pop("network.addresses").startswith("no name of the launch")
    assert found == {}


def test_what_a_container_cannot_see_says_why(tmp_path: Path) -> None:
    """Devices without nodes are the one thing unknown in the limited container."""
    found = missing(read_host(tmp_path, limited_container()))
    assert {at.split(".")[0] for at in found} <= {"rdma"}
    assert all("cannot open" in reason for reason in found.values())
