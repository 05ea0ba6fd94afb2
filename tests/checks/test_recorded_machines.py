"""The Linux machines that other projects record for their own tests, as facts read them.

Those of hwloc, util-linux, libvirt, procfs and node_exporter are in Debian's source packages, which
``.ci/run`` downloads to ``.cache/machines``. What stands in the files is read a second time, by
small readers that know nothing of ours.
"""

from __future__ import annotations

import contextlib
import io
import json
import posixpath
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from checks.framework.root import Root
from checks.framework.unknown import Unknown
from checks.host_snapshot.capture import open_root
from checks.pci.facts import read_function
from checks.run_checks.facts import read_facts
from checks.run_checks.runner import every_check
from preflight.cli.main import run
from tests.checks.test_recorded_hosts import LAUNCH
from tests.paths import ROOT

MACHINES = ROOT / ".cache" / "machines"
# Of each package: its source, the folders of its machines there, and how many it has at least.
PACKAGES = {
    "hwloc": ("hwloc_*.orig.tar.*", r"/tests/hwloc/(?:x86\+)?linux/", 45),
    # Debian 12's; later releases have more.
    "util-linux": ("util-linux_*.orig.tar.*", "/tests/ts/lscpu/dumps/", 16),
    # Their processors and nodes; some of its folders are links to others.
    "libvirt": ("libvirt_*.orig.tar.xz", "/tests/vir(?:caps2xml|hostcpu)data/", 24),
    # One host, in parts of several: memory, limits, networks, RDMA devices.
    "procfs": ("golang-github-prometheus-procfs_*.orig.tar.*", "/testdata/", 1),
    "node_exporter": ("prometheus-node-exporter_*.orig.tar.*", "/collector/fixtures/", 1),
}
_NUMBER = re.compile(r"\d+")
NODES = "/sys/devices/system/node"
GPUS = "/proc/driver/nvidia/gpus"
PCI = "/sys/bus/pci/devices"
POOLS = "/sys/kernel/mm/hugepages"

pytestmark = pytest.mark.slow


class Files(NamedTuple):
    """An archive as it is: absolute names, without the folder that holds all."""

    files: dict[str, bytes]
    links: dict[str, str]
    folders: dict[str, set[str]]

    def word(self, name: str) -> str | None:
        content = self.files.get(name)
        return None if content is None else content.decode().strip(" \n\0")

    def below(self, folder: str) -> set[str]:
        """The names in a folder."""
        return self.folders.get(folder, set())


def _files(archive: Path) -> Files:
    found = Files({}, {}, {})
    with tarfile.open(archive) as tar:
        for member in tar:
            name = "/" + member.name.removeprefix("./")
            if not name.startswith(("/etc", "/proc", "/sys")):
                name = "/" + name[1:].partition("/")[2]
            if member.issym():
                found.links[name] = member.linkname
            elif member.isfile():
                content = tar.extractfile(member)
                assert content is not None
                found.files[name] = content.read()
            while name != "/":
                folder, _, entry = name.rpartition("/")
                found.folders.setdefault(folder, set()).add(entry)
                name = folder or "/"
    return found


def _add_ttar(text: str, tar: tarfile.TarFile) -> None:
    """Add what a ttar has: entries of text, with a number of lines and words for what is none."""
    for entry in re.split(r"(?m)^# ttar(?: -)+\n", text):
        head, _, rest = entry.partition("\n")
        while head.startswith("#"):
            head, _, rest = rest.partition("\n")
        kind, _, name = head.partition(": ")
        member = tarfile.TarInfo(name)
        first, _, body = rest.partition("\n")
        content = b""
        if not name:
            continue
        if kind == "Directory":
            member.type = tarfile.DIRTYPE
        elif first.startswith("SymlinkTo: "):
            member.type, member.linkname = tarfile.SYMTYPE, first.removeprefix("SymlinkTo: ")
        else:
            lines = "".join(body.splitlines(True)[: int(first.removeprefix("Lines: "))])
            lines = lines.replace("NULLBYTE", "\0")
            content = re.sub(r"EOF\n$", "", lines).encode(errors="surrogateescape")
            member.size = len(content)
        tar.addfile(member, io.BytesIO(content))


@pytest.fixture(scope="module", params=PACKAGES)
def machines(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> list[tuple[Path, Files]]:
    pattern, place, least = PACKAGES[request.param]
    sources = sorted(MACHINES.glob(pattern), key=lambda one: [*map(int, _NUMBER.findall(one.name))])
    if not sources:
        pytest.skip(f"no {pattern} in .cache/machines: bash .ci/run puts it there")
    folder = tmp_path_factory.mktemp(request.param)
    together = folder / f"{sources[-1].name.partition('.orig.')[0]}.tar"
    with contextlib.ExitStack() as opened:
        tar, made = (
            opened.enter_context(tarfile.open(*at)) for at in ((sources[-1],), (together, "w"))
        )
        parts: dict[str, tarfile.TarFile] = {}
        for member in tar:
            name = re.split(place, member.name, maxsplit=1)[-1]
            content = tar.extractfile(member) if name != member.name and member.isfile() else None
            if content is None:
                continue
            part = re.match(r"(linux-[^/.]+)/(?:system/)?((?:cpu|node)/.*)", name)
            if part:
                own = folder / f"{part[1]}.tar"
                if part[1] not in parts:
                    parts[part[1]] = opened.enter_context(tarfile.open(own, "w"))
                named = tarfile.TarInfo(f"sys/devices/system/{part[2]}")
                named.size = member.size
                parts[part[1]].addfile(named, content)
            elif name.endswith("s.ttar"):
                _add_ttar(content.read().decode(errors="surrogateescape"), made)
            elif name.startswith("proc/"):
                member.name = name
                made.addfile(member, content)
            elif re.search(r"\.tar\.\w+$", name):
                (folder / Path(name).name).write_bytes(content.read())
    every = [(archive, _files(archive)) for archive in sorted(folder.iterdir())]
    every = [
        (archive, files)
        for archive, files in every
        if "/sys" in files.folders or "/proc" in files.folders
    ]
    assert len(every) >= least
    return every


def _cpus(files: Files, folder: str) -> tuple[int, ...] | None:
    """From the list of ranges, else from the map of bits."""
    listed, mapped = files.word(f"{folder}/cpulist"), files.word(f"{folder}/cpumap")
    if listed is not None:
        ranges = re.findall(r"(\d+)(?:-(\d+))?", listed)
        return tuple(cpu for one, two in ranges for cpu in range(int(one), int(two or one) + 1))
    if mapped is None:
        return None
    bits = bin(int("".join(word.zfill(8) for word in mapped.split(",")), 16))[:1:-1]
    return tuple(cpu for cpu, bit in enumerate(bits) if bit == "1")


def _kib(files: Files, name: str, row: str) -> int | None:
    """A row of a table of memory; of a node's, too."""
    text = files.word(name)
    found = re.search(rf"(?m)^(?:Node\s+\d+\s+)?{row}:\s*(\d+) kB", text or "")
    return int(found[1]) * 1024 if found else None


def _count(files: Files, name: str) -> int | None:
    word = files.word(name)
    return None if word is None else int(word)


def _in_files(files: Files) -> Iterator[tuple[str, Any]]:
    """What stands there; None for what does not."""
    memory = _kib(files, "/proc/meminfo", "MemTotal")
    for gpu in files.below(GPUS):  # whose own memory the kernel counts too
        place = re.search(r"Node:\s*(\d+)", files.word(f"{GPUS}/{gpu}/numa_status") or "")
        own = _kib(files, f"{NODES}/node{place[1]}/meminfo", "MemTotal") if place else None
        memory = memory - own if memory is not None and own is not None else memory
    yield "memory", memory
    names = (re.fullmatch(r"node(\d+)", name) for name in files.below(NODES))
    nodes = sorted(int(name[1]) for name in names if name)
    yield "nodes", tuple(nodes)
    for node in nodes:
        folder = f"{NODES}/node{node}"
        yield f"node {node} cpus", _cpus(files, folder)
        for row in ("MemTotal", "MemFree"):
            yield f"node {node} {row}", _kib(files, f"{folder}/meminfo", row)
    default = _kib(files, "/proc/meminfo", "Hugepagesize")
    sizes = files.below(POOLS)
    if default is not None and not sizes:
        sizes = {f"hugepages-{default // 1024}kB"}
        text = files.word("/proc/meminfo") or ""
        for kind, row in (("nr", "Total"), ("free", "Free"), ("resv", "Rsvd"), ("surplus", "Surp")):
            found = re.search(rf"(?m)^HugePages_{row}:\s*(\d+)", text)
            none = 0 if kind == "surplus" else None  # kernels before 2.6.24 make none
            yield f"hugepages-{default // 1024}kB {kind}", int(found[1]) if found else none
    for size in sorted(sizes):
        for kind in ("nr", "free", "resv", "surplus") if files.below(POOLS) else ():
            yield f"{size} {kind}", _count(files, f"{POOLS}/{size}/{kind}_hugepages")
        for node in nodes:
            folder = f"{NODES}/node{node}/hugepages/{size}"
            for kind in ("nr", "free"):
                yield f"{size} {kind} node {node}", _count(files, f"{folder}/{kind}_hugepages")
    for address in sorted(files.below(PCI)):
        link = files.links.get(f"{PCI}/{address}", ".")
        folder = posixpath.normpath(f"{PCI}/{link}") if link != "." else f"{PCI}/{address}"
        for name in ("vendor", "device", "class"):
            yield f"{address} {name}", files.word(f"{folder}/{name}")
        near = _count(files, f"{folder}/numa_node")
        yield f"{address} node", "none" if near == -1 else near


def _as_facts(root: Root) -> Iterator[tuple[str, Any]]:
    """The same of our facts, under the same names."""
    facts = read_facts(root, None, 30.0, topics=("memory", "numa", "hugetlb"))
    yield "memory", facts.memory.value("MemTotal")
    numa, pools = facts.numa, facts.hugetlb.hugetlb.pools
    yield "nodes", tuple(node.node for node in numa.nodes)
    for node in numa.nodes:
        yield f"node {node.node} cpus", node.cpus
        yield f"node {node.node} MemTotal", node.total_bytes
        yield f"node {node.node} MemFree", node.free_bytes
    if not isinstance(pools, Unknown):
        for size, pool in pools.items():
            if isinstance(pool, Unknown):
                continue
            name = f"hugepages-{size // 1024}kB"
            yield f"{name} nr", pool.total_pages
            yield f"{name} free", pool.free_pages
            yield f"{name} resv", pool.reserved_pages
            yield f"{name} surplus", pool.surplus_pages
            for number, share in pool.nodes.items():
                yield f"{name} nr node {number}", share.total_pages
                yield f"{name} free node {number}", share.free_pages
    for address in root.listed(PCI):
        function = read_function(root, address)
        yield f"{address} vendor", function.vendor
        yield f"{address} device", function.device
        yield f"{address} class", function.kind
        yield f"{address} node", "none" if function.node is None else function.node


def test_facts_are_what_stands_in_the_files(machines: list[tuple[Path, Files]]) -> None:
    wrong = {}
    compared = 0
    for archive, files in machines:
        expected = dict(_in_files(files))
        read = {
            name: None if isinstance(value, Unknown) else value
            for name, value in _as_facts(open_root(str(archive)))
        }
        compared += sum(value is not None for value in expected.values())
        for name in {*expected, *read}:
            if expected.get(name) != read.get(name):
                wrong[f"{archive.name} {name}"] = (expected.get(name), read.get(name))
    assert wrong == {}
    assert compared > 2 * len(machines)


RDMA = ("/sys/class/infiniband", "/sys/module")
# Of each check that speaks of the host, what of a recording it is about: one of these at least.
PARTS = {
    "gpu.count": (PCI, GPUS),
    "gpu.driver": (PCI, GPUS),
    "gpu.memory-busy": (PCI, GPUS),
    "gpu.mig": (PCI, GPUS),
    "hugetlb.after-reboot": ("/etc/sysctl.d",),
    "hugetlb.cgroup-limit": ("/proc/self/mountinfo", "/sys/fs/cgroup"),
    "hugetlb.page-size": (POOLS, "/proc/meminfo"),
    "hugetlb.reservation": ("/proc/meminfo",),
    "hugetlb.shortage": (POOLS, "/proc/meminfo"),
    "limits.memory": ("/proc/self/limits",),
    "limits.nofile": ("/proc/self/limits",),
    "limits.run-as": ("/proc/self/status",),
    "limits.threads": ("/proc/loadavg", "/proc/self/limits", "/sys/fs/cgroup"),
    "memlock.inert-capability": ("/proc/self/mountinfo",),
    "memlock.limit": ("/proc/self/limits", *RDMA),
    "memlock.user-namespace": ("/proc/self/uid_map",),
    "memory.cgroup": ("/proc/self/cgroup",),
    "memory.host": ("/proc/meminfo",),
    "memory.max-map-count": ("/proc/sys/vm",),
    "memory.overcommit": ("/proc/sys/vm",),
    "network.port-range": ("/proc/sys/net",),
    "network.port-taken": (),
    "numa.cpuset-excludes": (PCI, RDMA[0]),
    "numa.gpu-nic-distance": (PCI,),
    "numa.policy-refused": (PCI, RDMA[0]),
    "numa.unknown-nic-node": RDMA,
    "pci.acs": (PCI,),
    "pci.iommu": ("/sys/kernel/iommu_groups",),
    "pci.link-degraded": (PCI,),
    "rdma.device-missing": RDMA,
    "rdma.erdma-compat": RDMA,
    "rdma.erdma-driver": (PCI,),
    "rdma.no-device": RDMA,
    "service.reachable": (),
    "shm.space": (),
    "software.library-missing": (),
    "software.mooncake-duplicate": (),
    "software.mooncake-missing": (),
    "software.version-skew": (),
    "storage.files": ("/m",),
    "system.kernel-old": ("/proc/sys/kernel", "/proc/version"),
    "system.page-size": (),
    # Only the machine itself tells whether a device opens, and with that all that is asked of it.
    **dict.fromkeys(
        (
            *("rdma.cgroup-limit", "rdma.fork-safe", "rdma.gid", "rdma.node-type", "rdma.pkey"),
            *("rdma.port-down", "rdma.port-mtu", "rdma.provider-missing", "rdma.resources"),
            *("rdma.region-too-large", "rdma.subnets", "rdma.table-capacity"),
            "rdma.uverbs-permission",
        ),
        (),
    ),
}
# What the launch asks nothing of: whatever the host has, nothing of it is judged.
NOT_ASKED = {
    *("gpu.imex", "gpu.peer-memory", "hugetlb.node-shortage", "io-uring.unavailable"),
    *("memlock.io-uring-buffers", "memlock.runtime-limit", "network.advertised-address"),
    *("network.time-wait", "numa.node-memory", "service.address", "software.numactl-missing"),
    *("storage.offload-path", "storage.offload-space", "topology.mooncake-view"),
    "software.not-built-in",
}


def test_no_check_is_left_out() -> None:
    checks = {check.id for check in every_check()}
    why = "a new check: write into PARTS which folders of a recording it is about"
    assert checks == PARTS.keys() | NOT_ASKED, why


def test_what_is_not_recorded_is_unknown(
    machines: list[tuple[Path, Files]], tmp_path: Path
) -> None:
    """Neither a pass, nor a failure, nor skipped as what is not there."""
    script = tmp_path / "launch.sh"
    script.write_text(LAUNCH)
    wrong = set()
    asked = 0
    for archive, files in machines:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            run(["check", "--json", "--timeout", "60", "--root", str(archive), str(script)])
        statuses: dict[str, set[str]] = {}
        for finding in json.loads(out.getvalue())["findings"]:
            statuses.setdefault(finding["check"], set()).add(finding["status"])
        every = {*files.files, *files.links, *files.folders}
        own = f"/proc/{files.links.get('/proc/self', 'self')}/"
        every |= {f"/proc/self/{name.removeprefix(own)}" for name in every if name.startswith(own)}
        for check, parts in PARTS.items():
            if not every.intersection(parts):
                asked += 1
                if statuses[check] != {"unknown"}:
                    wrong.add((archive.name, check, *sorted(statuses[check])))
        for check in NOT_ASKED:
            if not statuses[check] <= {"pass", "skip"}:
                wrong.add((archive.name, check, *sorted(statuses[check])))
    assert wrong == set()
    assert asked > 10 * len(machines)
