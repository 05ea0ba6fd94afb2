"""Whatever becomes of a file that is read, no reader breaks and no bad verdict becomes a good one.

Each answer that the readers ask a host for is in turn refused, or turned into garbage, and the
host is judged again. A check that failed or warned must still do so, or say that it does not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from checks.framework.finding import Finding, Status
from checks.framework.unknown import Unknown
from checks.run_checks.facts import READERS
from tests.builders.examples import some
from tests.builders.mutated_hosts import CHECKS, GOOD, LAUNCH, NICS, REGULAR, Bench, Key, two_of
from tests.builders.synthetic import GIB, MIB, SyntheticHost, limited_container, plain_host
from tests.checks.test_synthetic import MASTER, fitted

pytestmark = pytest.mark.slow

PREFILL = f"{LAUNCH} --disaggregation-mode prefill --disaggregation-ib-device {NICS}"
TOPICS_OF = {check.id: check.about for check in CHECKS}
GARBAGE = "not what stands here\n"


NIC, OTHER = GOOD.nics
FREE = "free_hugepages"
NODE_POOL = f"/sys/devices/system/node/node1/hugepages/hugepages-2048kB/{FREE}"
POOL = f"/sys/kernel/mm/hugepages/hugepages-2048kB/{FREE}"


def changed(files: Mapping[str, str], **fields: Any) -> SyntheticHost:
    return replace(GOOD, files={**GOOD.files, **files}, **fields)


# name -> host, launch, and what of it is bad.
BROKEN: dict[str, tuple[SyntheticHost, str, set[str]]] = {
    "a limited container": (
        two_of(fitted(limited_container(), 0)),
        LAUNCH,
        {
            *("hugetlb.shortage", "hugetlb.node-shortage", "hugetlb.cgroup-limit", "gpu.count"),
            *("numa.policy-refused", "rdma.uverbs-permission", "sglang.admission-gate"),
        },
    ),
    "nothing there": (
        replace(plain_host(), services={MASTER: "master"}),
        LAUNCH,
        {"hugetlb.shortage", "hugetlb.reservation", "rdma.device-missing", "gpu.count"},
    ),
    "a small pool": (
        replace(GOOD, pools={2 * MIB: 100, GIB: 0}),
        LAUNCH,
        {"hugetlb.shortage", "hugetlb.node-shortage"},
    ),
    "a node without pages": (
        changed({NODE_POOL: "100", POOL: "80100"}),
        LAUNCH,
        {"hugetlb.node-shortage"},
    ),
    "no huge pages for the cgroup": (
        replace(GOOD, cgroup={"hugetlb.2MB.max": "0"}),
        LAUNCH,
        {"hugetlb.cgroup-limit"},
    ),
    "a limit of locked memory": (
        replace(GOOD, memlock=("8388608", "8388608"), capabilities=0, uid=1000),
        LAUNCH,
        {"memlock.limit"},
    ),
    "ports down": (
        replace(GOOD, nics=[nic._replace(state="1: DOWN") for nic in GOOD.nics]),
        LAUNCH,
        {"rdma.port-down"},
    ),
    "a NIC without GIDs": (
        replace(GOOD, nics=[NIC._replace(gids=()), OTHER]),
        LAUNCH,
        {"rdma.gid", "numa.gpu-nic-distance"},
    ),
    "iWARP": (
        replace(GOOD, nics=[NIC._replace(node_type="4: RNIC"), OTHER]),
        LAUNCH,
        {"rdma.node-type"},
    ),
    "NICs that are not alike": (
        replace(GOOD, nics=[NIC._replace(max_mr=2), OTHER._replace(active_mtu_bytes=1024)]),
        LAUNCH,
        {"rdma.resources", "rdma.port-mtu"},
    ),
    "a NIC that names no node": (
        replace(GOOD, nics=[NIC._replace(node=None), OTHER]),
        LAUNCH,
        {"numa.unknown-nic-node"},
    ),
    "a bad way from the GPUs to the NICs": (
        replace(
            changed({"/proc/sys/vm/max_map_count": "65530"}, nofile=("1024", "1024")),
            nics=[NIC._replace(lanes=(4, 16)), OTHER],
            gpus=[gpu._replace(mig=1, used_bytes=60 * GIB) for gpu in GOOD.gpus],
            modules=("nvidia", "ib_uverbs", "ib_core", "mlx5_ib", "mlx5_core"),
            acs_control=0x1D,
            iommu="DMA-FQ",
        ),
        PREFILL,
        {
            *("pci.link-degraded", "pci.acs", "pci.iommu", "gpu.peer-memory", "gpu.memory-busy"),
            *("gpu.mig", "memory.max-map-count", "limits.nofile"),
        },
    ),
    "a small cgroup": (
        replace(GOOD, cgroup={"memory.max": str(20 * GIB)}),
        REGULAR,
        {"memory.cgroup", "sglang.admission-gate"},
    ),
    "little memory": (
        changed({"/proc/sys/vm/overcommit_memory": "2"}, node_free_bytes=8 * GIB),
        REGULAR,
        {"memory.host", "memory.overcommit", "numa.node-memory", "sglang.admission-gate"},
    ),
}


def sees_what_the_server_sees(check: str, key: str) -> bool:
    """SGLang asks the same files, and admits a pool by the host's memory where it cannot."""
    of_cgroups = key.startswith(("/proc/self/", "/sys/fs/cgroup"))
    return check == "sglang.admission-gate" and of_cgroups


def whose_content_names_another(check: str, key: str) -> bool:
    """Garbage here is the name of another device, whose node it then is."""
    return key.endswith("/ibdev")


def bad(findings: list[Finding]) -> set[str]:
    return {one.check for one in findings if one.status in (Status.FAIL, Status.WARN)}


def doubtful(findings: list[Finding]) -> set[str]:
    return {one.check for one in findings if one.status is Status.UNKNOWN}


def refused(key: Key) -> Unknown:
    return Unknown(f"{key[1]}: Permission denied")


@pytest.mark.parametrize("name", BROKEN)
def test_no_refusal_and_no_garbage_makes_a_bad_verdict_good(tmp_path: Path, name: str) -> None:
    host, text, expected = BROKEN[name]
    bench = Bench(tmp_path, host, text)
    assert expected <= bad(bench.findings)
    assert doubtful(bench.findings) <= {"gpu.driver", "software.mooncake-missing"}
    topics = {topic for check in expected for topic in TOPICS_OF.get(check, ())}
    for key, answer in some(bench.keys(topics).items(), 2):
        mutations: list[Unknown | str] = [refused(key)]
        if key[0] == "texts" and not isinstance(answer, Unknown):
            mutations.append(GARBAGE)
        for mutation in mutations:
            found = bench.mutated(key, mutation, expected)
            lost = expected - bad(found) - doubtful(found)
            lost = {check for check in lost if not sees_what_the_server_sees(check, key[1])}
            if mutation is GARBAGE:
                lost = {check for check in lost if not whose_content_names_another(check, key[1])}
            assert not lost, (key, mutation)


ODD = ("", "-1\n", f"{1 << 64}\n", "9" * 5000, "\u00b2\n", "1\0\0\n")


def test_no_content_breaks_a_reader(tmp_path: Path) -> None:
    """Of files that hold a number or a few words; mutated raises where a reader does."""
    bench = Bench(tmp_path, GOOD, LAUNCH)
    assert not bad(bench.findings) | doubtful(bench.findings)
    short = {
        key: answer
        for key, answer in bench.keys(set(READERS)).items()
        if key[0] == "texts" and isinstance(answer, str) and len(answer) < 40
    }
    assert len(short) > 50
    for at, key in enumerate(short):
        # Two of them for each file, in turn; all with --hypothesis-profile=random.
        for odd in some(ODD[at % len(ODD) :] + ODD[: at % len(ODD)], 3):
            for finding in bench.mutated(key, odd):
                assert not finding.text.startswith("defect"), (key, odd)


def test_no_answer_breaks_a_check(tmp_path: Path) -> None:
    """Of calls: other types, and values that no kernel gives."""
    bench = Bench(tmp_path, GOOD, LAUNCH)
    calls = {key: answer for key, answer in bench.keys(set(READERS)).items() if key[0] == "calls"}
    for key, answer in calls.items():
        odd: list[Any] = [None, -1, 1 << 64, "", [], {}, [None], [{}]]
        if isinstance(answer, dict):
            odd += [answer | {name: value} for name in answer for value in (None, 1 << 64, "x")]
        for value in some(odd, 3):
            for finding in bench.mutated(key, value):
                assert not finding.text.startswith("defect"), (key, value)
