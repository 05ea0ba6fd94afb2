"""What ``advisories --affecting`` says of twenty hosts, held against tables.

They were written by reading the records: of each launch what every host has to hear, and of each
host what it adds. A record that is said beside it is said outside its range.
"""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from checks.framework.unknown import Unknown, require
from checks.run_checks.facts import Facts
from checks.system.facts import with_kernel
from preflight.command_inputs.launch_words import LaunchWords
from preflight.launch_problems.advisories.judge import _engine_protocol, verdicts
from preflight.verdict.judge_host import judge_host
from tests.lab.results import DATA
from tests.launch_problems.advisories.test_judge import (
    CACHE,
    DECODE,
    DSA,
    EAGLE,
    MASTER,
    MHA,
    NO_VMM,
    OFFLOAD,
    PREFILL,
    RADIX,
    RDMA,
    SSD,
    TCP,
    TOPICS,
    on_host,
)
from tests.paths import ROOT
from tests.tables import each_row

# Three pairs of releases, Mooncake's first.
OLD, MIDDLE, NEW = ("0.3.8.post1", "0.5.9"), ("0.3.10.post2", "0.5.12.post1"), ("0.3.14", "0.5.23")
HUGE = "MC_STORE_USE_HUGEPAGE=1 "
URING = "MOONCAKE_OFFLOAD_USE_URING=1 "
# Name -> text, and what of OLD, MIDDLE and NEW every host has to hear. Of all that register with a
# NIC: 65 to 67 (paths, subnets, no device), before 0.3.13 also 7, 24 and 52; of every user of
# Mooncake 19 and 22, by TCP 53; of HiCache 64, and 61 where a failed pin is ignored. Ranks that
# prefetch by timeout, the default from 0.5.12.post1 on, hear 34; those that copy by the kernel
# backend, the default, 39 from 0.5.14 on. HiCache's ranks hear 72 before 0.5.14, all of HiCache 73
# before 0.5.10; all with Mooncake as L3 80. OLD has no radix cache of a decode server (33), and
# does not read what turns SSD offload on.
LAUNCHES: dict[str, tuple[str, tuple[set[int], set[int], set[int]]]] = {
    "tcp": (
        TCP + MHA + CACHE,
        (
            {19, 22, 53, 61, 64, 72, 73, 80},
            {1, 19, 22, 34, 53, 61, 63, 64, 72, 80},
            {19, 22, 34, 39, 53, 64, 80},
        ),
    ),
    "rdma, huge pages": (
        HUGE + RDMA + MHA + CACHE,
        (
            {7, 19, 22, 24, 25, 52, 61, 64, 65, 66, 67, 72, 73, 80},
            {7, 19, 22, 24, 25, 34, 52, 61, 63, 64, 65, 66, 67, 72, 80},
            {19, 22, 28, 34, 39, 64, 65, 66, 67, 80},
        ),
    ),
    "offload by io_uring": (
        SSD + URING + TCP + MHA + CACHE,
        (
            {19, 22, 53, 61, 64, 72, 73, 80},
            {1, 6, 10, 12, 13, 15, 19, 22, 34, 53, 60, 61, 63, 64, 68, 72, 80},
            {14, 19, 22, 34, 39, 53, 64, 68, 80},
        ),
    ),
    "sparse attention, stages, a draft": (
        RDMA + DSA + " --pp-size 2" + CACHE + EAGLE,
        (
            {7, 19, 22, 24, 35, 36, 38, 52, 61, 64, 65, 66, 67, 72, 73, 74, 80},
            {7, 19, 22, 24, 34, 35, 38, 52, 61, 63, 64, 65, 66, 67, 72, 74, 77, 80},
            {19, 22, 34, 39, 64, 65, 66, 67, 80},
        ),
    ),
    "prefill, expandable segments": (
        NO_VMM + RDMA + MHA + CACHE + PREFILL,
        (
            {7, 19, 22, 24, 52, 61, 64, 65, 66, 67, 72, 73, 80},
            {7, 19, 22, 24, 34, 52, 61, 63, 64, 65, 66, 67, 72, 80},
            {9, 19, 22, 34, 39, 64, 65, 66, 67, 80},
        ),
    ),
    "decode, radix cache and offload": (
        TCP + MHA + DECODE + RADIX + OFFLOAD,
        (
            {7, 19, 22, 24, 52, 53, 65, 66, 67, 80},
            {1, 7, 19, 22, 24, 33, 34, 52, 53, 63, 65, 66, 67, 80},
            {19, 22, 33, 34, 53, 65, 66, 67, 80},
        ),
    ),
    "a master of several": (MASTER, ({19, 20, 22, 27}, {19, 20, 22, 27}, {19, 20, 22})),
    "a client, tcp": (
        "mooncake_client --protocol=tcp --global_segment_size=1GB",
        ({19, 22, 53}, {19, 22, 53}, {19, 22, 53}),
    ),
}
RDMA_LAUNCHES = {name for name, (_, said) in LAUNCHES.items() if 65 in said[0]}
HICACHE = {name for name, (_, said) in LAUNCHES.items() if 64 in said[0]}


def of(topic: str, **values: Any) -> Callable[[Facts], Facts]:
    def changed(facts: Facts) -> Facts:
        return Facts({**facts.topics, topic: require(facts.topic(topic))._replace(**values)})

    return changed


def kernel(release: str) -> Callable[[Facts], Facts]:
    return lambda facts: Facts({**facts.topics, "system": with_kernel(facts.system, release)})


def spark(release: str, cma_bytes: int, line: str) -> Callable[[Facts], Facts]:
    """A board of which the kernel gives its contiguous memory away."""

    def change(facts: Facts) -> Facts:
        meminfo: Any = facts.memory.meminfo
        values = {**meminfo.values, "CmaTotal": cma_bytes}
        changed = {
            "system": with_kernel(facts.system, release)._replace(architecture="aarch64"),
            "memory": facts.memory._replace(meminfo=meminfo._replace(values=values)),
            "pci": facts.pci._replace(command_line=line),
        }
        return Facts({**facts.topics, **changed})

    return change


def library(version: int) -> Callable[[Facts], Facts]:
    return lambda facts: of("rdma", libraries=facts.rdma.libraries._replace(version=version))(facts)


def nics(driver: str, node: int) -> Callable[[Facts], Facts]:
    def change(facts: Facts) -> Facts:
        made = tuple(nic._replace(driver=driver, node=node) for nic in facts.rdma.present)
        return of("rdma", nics=made)(facts)

    return change


def driver(release: str) -> Callable[[Facts], Facts]:
    def change(facts: Facts) -> Facts:
        nvml: Any = facts.gpus.nvml
        nvml = nvml if isinstance(nvml, Unknown) else nvml._replace(driver=release)
        return of("gpus", kernel_module_version=release, nvml=nvml)(facts)

    return change


Hears = dict[int, set[tuple[str, int]]]


def hears(number: int, launches: set[str], pairs: str) -> Hears:
    """A record that a host adds. pairs: of o, m and n, the releases that it is about."""
    return {number: {(name, "omn".index(pair)) for name in launches for pair in pairs}}


# In the demo host NICs sit on both nodes (50: huge pages, 0.3.10.post2 to before 0.3.12).
BOTH_NODES = hears(50, {"rdma, huge pages"}, "m")
FORK = hears(44, {"rdma, huge pages"}, "omn")
# 4: the loader of the oldest wheels asks for 2.34, 5: the tag of newer ones for 2.35. 46: mlx5 in
# mainline kernels. 45: the board.
OLD_GLIBC = hears(4, set(LAUNCHES), "o") | hears(5, set(LAUNCHES), "m")
MLX5, KHO = hears(46, RDMA_LAUNCHES, "omn"), hears(45, RDMA_LAUNCHES, "omn")
GUESTS = "healthy both-ports-down hugetlb-cgroup-limit memlock-for-one-nic".split()
GUESTS += ["pool-on-the-wrong-node"]
HOSTS: dict[str, tuple[Callable[[Facts], Facts] | None, Hears]] = {
    "demo:h800": (None, BOTH_NODES),
    "small-vm": (None, FORK),
    # Guests with RDMAV_HUGEPAGES_SAFE set.
    **dict.fromkeys(GUESTS, (None, {})),
    "mainline 5.14": (kernel("5.14.0"), BOTH_NODES | MLX5),
    "mainline 5.15.9": (kernel("5.15.9"), BOTH_NODES | MLX5),
    "mainline 5.15.10": (kernel("5.15.10"), BOTH_NODES),
    "RHEL 9": (kernel("5.14.0-427.13.1.el9_4.x86_64"), BOTH_NODES),
    "Ubuntu 22.04": (kernel("5.15.0-100-generic"), BOTH_NODES),
    "a board": (spark("7.0.0-31-generic", 0, "ro"), BOTH_NODES | KHO),
    "a board, mended": (spark("7.0.0-31-generic", 0, "ro kho=off"), BOTH_NODES),
    "a board, with memory": (spark("7.0.0-31-generic", 1 << 27, "ro"), BOTH_NODES),
    "a board, before": (spark("7.0.0-30-generic", 0, "ro"), BOTH_NODES),
    "glibc 2.31": (of("system", glibc="2.31"), BOTH_NODES | OLD_GLIBC),
    "rdma-core 50": (library(50), BOTH_NODES | FORK),
    "driver 580": (driver("580.95.05"), BOTH_NODES | hears(47, HICACHE, "omn")),
    "NICs on one node": (nics("mlx5_core", 0), {}),
}


def capture_of(host: str) -> str:
    """Return what --root takes for a host that is recorded or written."""
    folder = ROOT / "tests/data/hosts" if host == "small-vm" else DATA
    return host if host.startswith("demo:") else str(folder / f"{host}.tar.gz")


@pytest.mark.slow
@pytest.mark.parametrize("name", LAUNCHES)
def test_no_record_is_said_of_what_it_is_not_about(name: str, tmp_path: Path) -> None:
    assert len(HOSTS) == 20
    path = tmp_path / "launch.sh"
    text, by_pair = LAUNCHES[name]
    path.write_text(f"{text}\n")
    wrong = {}
    for at, (mooncake, sglang) in enumerate((OLD, MIDDLE, NEW)):
        words = LaunchWords((str(path),), mooncake_version=mooncake, sglang_version=sglang)
        demo = judge_host(words, "demo:h800", 20, [], TOPICS)
        for host, (change, adds) in HOSTS.items():
            seen = demo
            if change is not None:
                seen = demo._replace(facts=change(demo.facts))
            elif host != "demo:h800":
                seen = judge_host(words, capture_of(host), 20, [], TOPICS)
            said = {
                int(one.advisory.id[-4:]) for one in verdicts(*on_host(seen)) if one.holds is True
            }
            table = by_pair[at] | {number for number, where in adds.items() if (name, at) in where}
            if said != table:
                wrong[host, mooncake] = (sorted(said - table), sorted(table - said))
    assert wrong == {}


@each_row(
    ("named", "forced", "protocol"),
    [("rdma", False, "rdma"), ("rdma", True, "tcp"), ("", True, None), ("", False, None)],
)
def test_the_protocol_of_another_engines_transfers(
    named: str, forced: bool, protocol: str | None
) -> None:
    command = SimpleNamespace(environment={"MC_FORCE_TCP": ""} if forced else {})
    consumer = SimpleNamespace(transfer_protocol=named)
    process = SimpleNamespace(server=None, consumer=consumer, command=command)
    subject: Any = SimpleNamespace(process=process)
    assert _engine_protocol(subject) == protocol
    process.consumer = None
    assert _engine_protocol(subject) is None
