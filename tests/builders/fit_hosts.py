"""Random hosts and launches for ``fit``, a plan applied to a host's files, and checks of both."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import strategies as st

from checks.framework.archive import TreeRoot
from checks.framework.finding import Finding, Status
from checks.framework.problem import Problem
from checks.framework.recording import RecordingRoot
from checks.run_checks.facts import READERS, Facts, read_facts
from checks.run_checks.runner import every_check, judge
from preflight.command_inputs.host_source import Host, size_and_needs
from preflight.command_inputs.launch_words import LaunchWords
from preflight.host_tuning.records import PoolTarget, pools
from preflight.verdict.launch_checks import launch_findings
from tests.builders.synthetic import (
    EVERY_HOST,
    GIB,
    MIB,
    PATIENCE_SECONDS,
    SyntheticHost,
    erdma_host,
    gpu_host,
    plain_host,
)
from tests.builders.synthetic_devices import Tree

KIB = 1024
WANTING = (Status.FAIL, Status.UNKNOWN, Status.WARN)


def root_of(tree: Tree) -> TreeRoot:
    """A host in memory; texts end as the kernel ends them."""
    files = {name: f"{text}\n".encode() for name, text in tree.files.items()}
    files["/calls.json"] = json.dumps(tree.calls).encode()
    return TreeRoot(files, tree.links, {}, frozenset(EVERY_HOST))


def host_of(tree: Tree) -> Host:
    return Host(RecordingRoot(root_of(tree)), "host", {}, None)


class Checked(NamedTuple):
    """problems: check, status and subject of all that does not pass, without line numbers. What the
    next boot makes of the pools is none: ``applied`` sets those of now alone."""

    findings: tuple[Finding, ...]
    pools: tuple[PoolTarget, ...]

    @property
    def problems(self) -> set[tuple[str, Status, str]]:
        return {
            (found.check, found.status, re.sub(r":\d+", "", found.subject))
            for found in self.findings
            if found.status in WANTING and found.check != "hugetlb.after-reboot"
        }


# Topics that a plan changes; ``test_a_plan_changes_no_other_topic`` holds it.
PLANNED = ("memory", "hugetlb", "numa")


def checked(tree: Tree, words: LaunchWords, others: dict[str, Any] | None = None) -> Checked:
    """Every check of the host and of the launch, as ``check`` makes them. others: topics of this
    host that no plan changes, read at the first call and taken from there."""
    return _checked(tree, words, list(every_check()), tuple(READERS), others)


def check_after_plan(
    tree: Tree, words: LaunchWords, others: dict[str, Any] | None = None
) -> Checked:
    """Set the pools that are short, and check; what cannot be reserved stays said."""
    reservation = [check for check in every_check() if check.id == "hugetlb.reservation"]
    before = _checked(tree, words, reservation, ("hugetlb",))
    bad = (Status.FAIL, Status.UNKNOWN)
    reserved = (each for each in before.findings if each.check == "hugetlb.reservation")
    if cannot := [each for each in reserved if each.status in bad]:
        return before._replace(findings=tuple(cannot))
    return checked(applied(tree, before.pools), words, others)


def _checked(
    tree: Tree,
    words: LaunchWords,
    checks: Sequence[Problem],
    topics: Sequence[str],
    others: dict[str, Any] | None = None,
) -> Checked:
    host = host_of(tree)
    sized = size_and_needs(words, host)
    assert sized is not None
    known = others or {}
    wanted = [topic for topic in topics if topic not in known]
    read = read_facts(host.root, sized.needs, PATIENCE_SECONDS, wanted)
    facts = Facts({name: known[name] if name in known else read.topic(name) for name in topics})
    if others is not None:
        others.update({topic: facts.topic(topic) for topic in topics if topic not in PLANNED})
    findings = [*judge(facts, sized.needs, checks), *launch_findings(sized.sizing)]
    return Checked(tuple(findings), pools(sized.needs, facts.topic("hugetlb"))[0])


def applied(tree: Tree, targets: Sequence[PoolTarget]) -> Tree:
    """The files of a host once ``nr_hugepages`` has been written: pages appear, memory is gone."""
    files = dict(tree.files)
    nodes = sorted(
        int(match[1])
        for name in files
        if (match := re.fullmatch(r"/sys/devices/system/node/node(\d+)/meminfo", name))
    )
    for target in targets:
        more = target.pages - (target.now_pages or 0)
        if more <= 0:
            continue
        pool = f"hugepages-{target.page_bytes // KIB}kB"
        where = nodes if target.node is None else [target.node]
        for place, node in enumerate(where):
            share = more // len(where) + (place < more % len(where))
            folder = f"/sys/devices/system/node/node{node}"
            _count(files, f"{folder}/hugepages/{pool}", share)
            _memory(files, f"{folder}/meminfo", share * target.page_bytes, ("MemFree",))
        _count(files, f"/sys/kernel/mm/hugepages/{pool}", more)
        rows = ("MemFree", "MemAvailable")
        _memory(files, "/proc/meminfo", more * target.page_bytes, rows)
    return replace(tree, files=files)


def _count(files: dict[str, str], folder: str, more: int) -> None:
    for name in ("nr_hugepages", "free_hugepages"):
        path = f"{folder}/{name}"
        files[path] = str(int(files[path]) + more)


def _memory(files: dict[str, str], path: str, less: int, rows: Sequence[str]) -> None:
    assert less % KIB == 0
    for row in rows:

        def lower(match: re.Match[str]) -> str:
            return f"{match[1]}{max(0, int(match[2]) - less // KIB)} kB"

        files[path] = re.sub(rf"(\b{row}: *)(\d+) kB", lower, files[path])


def mended(host: SyntheticHost) -> SyntheticHost:
    """The host with what the plan sets beside the pools: fit counts none of it."""
    files = {name: text for name, text in host.files.items() if name != OVERCOMMIT}
    memlock = ("unlimited", "unlimited")
    return replace(host, files=files, memlock=memlock, shm_bytes=64 * GIB)


OVERCOMMIT = "/proc/sys/vm/overcommit_memory"


class Case(NamedTuple):
    host: SyntheticHost
    script: str
    goal: str
    keep_bytes: int
    sglang: str = "0.5.23"
    mooncake: str = "0.3.14"


_KB = st.integers(0, 1 << 18).map(lambda pages: pages * 4 * KIB)


@st.composite
def hosts(draw: st.DrawFn) -> SyntheticHost:
    """Machines of different sizes, idle and busy, with limits here and there."""
    base = draw(st.sampled_from((plain_host, plain_host, erdma_host, gpu_host)))()
    node_bytes = draw(st.integers(24, 400)) * GIB + draw(_KB)
    busy = draw(st.integers(0, 60))
    pages = draw(st.sampled_from((0, 0, 0, 512, 3000)))
    gigantic = draw(st.sampled_from((0, 0, 2)))
    left = node_bytes - pages * 2 * MIB - gigantic * GIB
    free = left * (100 - busy) // 100 // (4 * KIB) * 4 * KIB
    cgroup = {}
    if draw(st.integers(0, 4)) == 0:
        limit = draw(st.integers(16, 300)) * GIB
        cgroup["memory.max"] = str(limit)
    if draw(st.integers(0, 6)) == 0:
        cgroup["hugetlb.2MB.rsvd.max"] = str(draw(st.integers(1, 200)) * GIB)
    memlock, capabilities = ("unlimited", "unlimited"), base.capabilities
    if draw(st.integers(0, 3)) == 0:
        bytes_ = str(draw(st.integers(8, 400)) * GIB + draw(_KB))
        memlock, capabilities = (bytes_, bytes_), 0
    nodes = base.nodes if base.gpus else draw(st.integers(1, 2))
    files: dict[str, str | None] = {}
    if pages and draw(st.booleans()):
        files |= _held(pages, draw(st.integers(1, pages)), nodes)
    if draw(st.integers(0, 9)) == 0:
        files[OVERCOMMIT] = "2"
    return replace(
        base,
        nodes=nodes,
        node_bytes=node_bytes,
        node_free_bytes=free,
        pools={2 * MIB: pages, GIB: gigantic},
        cgroup=cgroup,
        memlock=memlock,
        capabilities=capabilities,
        shm_bytes=draw(st.sampled_from((64 * MIB, 32 * GIB))),
        services={("10.0.0.1", 50051): "master"},
        files={**base.files, **files},
    )


def _held(pages: int, held: int, nodes: int) -> dict[str, str | None]:
    """So many pages of each node's 2 MiB pool are somebody's."""
    pool = "hugepages-2048kB/free_hugepages"
    files: dict[str, str | None] = {
        f"/sys/devices/system/node/node{node}/hugepages/{pool}": str(pages - held)
        for node in range(nodes)
    }
    return {**files, f"/sys/kernel/mm/hugepages/{pool}": str((pages - held) * nodes)}


MODELS = ("Qwen/Qwen3-8B", "Qwen/Qwen3-14B", "deepseek-ai/DeepSeek-V3", "meta-llama/Llama-3.1-8B")


@st.composite
def scripts(draw: st.DrawFn) -> str:
    """Shell scripts with a server, sometimes two, sometimes a store service of its own."""
    tp = draw(st.sampled_from((1, 1, 2, 4)))
    lines = ["#!/bin/bash", "export MOONCAKE_MASTER=10.0.0.1:50051"]
    if draw(st.integers(0, 3)):
        lines.append("export MC_STORE_USE_HUGEPAGE=1")
        if draw(st.integers(0, 4)) == 0:
            lines.append("export MC_STORE_HUGEPAGE_SIZE=1GB")
        arena = draw(st.sampled_from(("", "", "4gb", "16gb")))
        if arena:
            lines.append(f"export MC_MMAP_ARENA_POOL_SIZE={arena}")
    segment = draw(st.integers(1, 12))
    lines.append(f"export MOONCAKE_GLOBAL_SEGMENT_SIZE={segment}gb")
    lines.append(f"export MOONCAKE_PROTOCOL={draw(st.sampled_from(('tcp', 'rdma')))}")
    size = draw(st.integers(1, 9))
    layout = draw(st.sampled_from(("page_first", "layer_first")))
    model = draw(st.sampled_from(MODELS))
    lines.append(
        f"python3 -m sglang.launch_server --model-path {model} --tp {tp} --page-size 64 "
        f"--enable-hierarchical-cache --hicache-size {size} --hicache-mem-layout {layout} "
        "--hicache-io-backend kernel --hicache-storage-backend mooncake"
    )
    if draw(st.integers(0, 4)) == 0:
        lines.append(
            "python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B --tp 1 --page-size 32 "
            "--base-gpu-id 1 --port 30001 --enable-hierarchical-cache --hicache-size 2 "
            "--hicache-storage-backend mooncake"
        )
    if draw(st.integers(0, 4)) == 0:
        lines.append("python3 -m mooncake.mooncake_store_service --port 9300")
    return "\n".join(lines) + "\n"


@st.composite
def cases(draw: st.DrawFn) -> Case:
    return Case(
        draw(hosts()),
        draw(scripts()),
        draw(st.sampled_from(("l2", "pool", "balanced"))),
        draw(st.sampled_from((0, 0, 10 * GIB, 40 * GIB))),
        draw(st.sampled_from(("0.5.23", "0.5.23", "0.5.16", "0.5.2"))),
        draw(st.sampled_from(("0.3.14", "0.3.13.post1", "0.3.10"))),
    )


def written(folder: Path, case: Case, text: str | None = None) -> LaunchWords:
    """The case's script, or another ``text`` of it, as a file."""
    path = folder / "launch.sh"
    path.write_text(case.script if text is None else text)
    words = LaunchWords((str(path),))
    return words._replace(sglang_version=case.sglang, mooncake_version=case.mooncake)
