"""The Linux machines that other projects record for their own tests, as facts read them.

Those of hwloc, util-linux and libvirt are in Debian's source packages, which ``.ci/run`` downloads
to ``.cache/machines``. What stands in the files is read a second time, by
small readers that know nothing of ours.
"""

import contextlib
import posixpath
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from checks.base.root import Root
from checks.base.unknown import Unknown
from checks.capture.capture import open_root
from checks.pci.facts import read_function
from checks.run.facts import read_facts
from tests.paths import ROOT

MACHINES = ROOT / ".cache" / "machines"
# Of each package: its source, the folders of its machines there, and how many it has at least.
PACKAGES = {
    "hwloc": ("hwloc_*.orig.tar.*", r"/tests/hwloc/(?:x86\+)?linux/", 45),
    # Debian 12's; later releases have more.
    "util-linux": ("util-linux_*.orig.tar.*", "/tests/ts/lscpu/dumps/", 16),
    # Their processors and nodes; some of its folders are links to others.
    "libvirt": ("libvirt_*.orig.tar.xz", "/tests/vir(?:caps2xml|hostcpu)data/", 24),
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


@pytest.fixture(scope="module", params=PACKAGES)
def machines(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> list[tuple[Path, Files]]:
    pattern, place, least = PACKAGES[request.param]
    sources = sorted(MACHINES.glob(pattern), key=lambda one: [*map(int, _NUMBER.findall(one.name))])
    if not sources:
        pytest.skip(f"no {pattern} in .cache/machines: bash .ci/run puts it there")
    folder = tmp_path_factory.mktemp(request.param)
    with contextlib.ExitStack() as opened:
        tar = opened.enter_context(tarfile.open(sources[-1]))
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
    """From the list of ranges; a kernel before 2.6.29 has none."""
    listed = files.word(f"{folder}/cpulist")
    ranges = re.findall(r"(\d+)(?:-(\d+))?", listed or "")
    numbers = tuple(cpu for one, two in ranges for cpu in range(int(one), int(two or one) + 1))
    return None if listed is None else numbers


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
