"""HugeTLB pools held against launches: shortage, nodes, limits, reservation, the next boot."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks.framework.finding import Consequence, Finding, Kind, Setting, Status
from checks.framework.needs import ContainerLimits, LaunchNeeds, ProcessNeeds, RdmaUse
from checks.framework.pages import Spot, Usage
from checks.framework.root import Root
from checks.framework.units import GIB, MIB
from checks.framework.unknown import Unknown
from checks.hugetlb.facts import HugetlbFacts
from checks.hugetlb.pools import HugeTlb, NodePool, Pool
from checks.numa.nodes import Meminfo
from checks.run_checks.facts import Facts
from preflight.host_tuning.commands import Context, commands
from tests.builders.hosts import Host, HostPool
from tests.checks.launches import PAGE, facts_of, findings, launch, usage
from tests.tables import each_row

NODE_FREE = "sys/devices/system/node/node{}/meminfo"
ANY, NODE_0, NODE_1 = Spot(PAGE, None), Spot(PAGE, 0), Spot(PAGE, 1)
TAKES_100 = [usage({ANY: 100})]


def _found(root: Root, needs: LaunchNeeds | list[Usage], check: str) -> list[Finding]:
    """Return what a check says of a launch, or of one that takes these pages."""
    facts = facts_of(root, "hugetlb", "system")
    needs = launch(needs) if isinstance(needs, list) else needs
    return findings(facts, needs, f"hugetlb.{check}")


def _status(root: Root, usages: list[Usage], check: str) -> list[Status]:
    return [finding.status for finding in _found(root, usages, check)]


def _after_reboot(root: Root, usages: list[Usage]) -> Finding:
    (found,) = _found(root, usages, "after-reboot")
    return found


@each_row(
    ("pool", "expected"),
    [
        (HostPool(total=100), Status.PASS),
        (HostPool(total=99), Status.FAIL),
        # The documented helper counts nr_hugepages: pages that others hold are not there.
        (HostPool(total=100, free=50), Status.FAIL),
        (HostPool(total=100, reserved=1), Status.FAIL),
        (HostPool(total=101, reserved=1), Status.PASS),
        # Surplus pages are made on demand out of memory that is there.
        (HostPool(total=0, overcommit=100), Status.PASS),
    ],
)
def test_what_counts_is_what_a_new_mapping_can_have(pool: HostPool, expected: Status) -> None:
    root = Host(pools={PAGE: pool}, memory_bytes=64 * GIB).root()
    assert _status(root, [usage({ANY: 60}), usage({ANY: 40})], "shortage") == [expected]


def test_a_pool_that_does_not_exist_never_passes() -> None:
    """The documented helper takes a missing pool for "planning only" and exits 0."""
    root = Host(pools={PAGE: HostPool(total=500)}).root()
    usages = [usage({Spot(GIB, None): 1})]
    assert _status(root, usages, "shortage") == [Status.FAIL]
    assert _status(root, usages, "page-size") == [Status.FAIL]


def test_the_remedy_keeps_the_pages_of_others_and_makes_the_check_pass() -> None:
    before = Host(pools={PAGE: HostPool(total=100, free=30)}).root()
    usages = [usage({ANY: 50})]
    found = _found(before, usages, "shortage")[0]
    # 70 pages are held by others, and 50 are needed.
    assert found.settings == (Setting(Kind.SYSCTL, "vm.nr_hugepages", "120", "100"),)
    after = Host(pools={PAGE: HostPool(total=120, free=50)}).root()
    assert _status(after, usages, "shortage") == [Status.PASS]


@each_row("free", ["Node 1 MemFree: 8192 kB", "Node 1 MemFree: 8191 kB", ""])
def test_a_short_node_fails_although_the_sum_suffices(free: str) -> None:
    """What apply refuses is no command either: a sentence says why, and who knows what fits."""
    pool = HostPool(nodes={0: (36, 36), 1: (24, 24)})
    files = {NODE_FREE.format(1): free}
    root = Host(nodes=(0, 1), pools={PAGE: pool}, files=files).root()
    bound = [usage({NODE_0: 20, NODE_1: 28})]
    assert _status(root, bound, "shortage") == [Status.PASS]
    first, short = _found(root, bound, "node-shortage")
    assert (first.status, short.status) == (Status.PASS, Status.FAIL)
    assert "SIGBUS" in short.text
    if "8192" in free:
        path = "/sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages"
        assert short.settings == (Setting(Kind.SYSFS, path, "28", "24"),)
    else:
        assert (short.settings, short.asks) == ((), "fit")
        assert "cannot be reserved now (2 MiB pages on node 1" in short.advice


def test_a_pool_needs_what_its_nodes_need_together() -> None:
    """The number of the pool is the one that is set, and it says what of it is taken at once."""
    pool = HostPool(nodes={0: (20, 20), 1: (20, 20)})
    files = {NODE_FREE.format(node): f"Node {node} MemFree: 1048576 kB" for node in (0, 1)}
    root = Host(nodes=(0, 1), pools={PAGE: pool}, files=files).root()
    usages = [usage({NODE_0: 20, NODE_1: 28})._replace(headroom={NODE_0: 4, NODE_1: 4})]
    found = _found(root, usages, "shortage")[0]
    assert found.need == "56 pages (112.00 MiB, at most 96.00 MiB in use)"
    assert found.formula.startswith("24 on node 0 + 32 on node 1; at most 48 are taken at once")
    assert sum(int(setting.wanted) for setting in found.settings) == 56
    # What is never taken at once is charged to no cgroup.
    assert [one.need for one in _found(root, usages, "cgroup-limit")] == ["96.00 MiB"]


def test_pages_from_overcommit_come_to_lie_where_they_are_asked_for() -> None:
    """56 are enough wherever they lie; 48, which are in use at most, may do; 47 cannot."""
    usages = [usage({NODE_0: 20, NODE_1: 28})._replace(headroom={NODE_0: 4, NODE_1: 4})]
    unsure = Status.UNKNOWN
    for pages, status in ((56, Status.PASS), (55, unsure), (48, unsure), (47, Status.FAIL)):
        pool = HostPool(nodes={0: (0, 0), 1: (0, 0)}, overcommit=pages)
        root = Host(nodes=(0, 1), pools={PAGE: pool}).root()
        assert _status(root, usages, "shortage") == [status], pages


def test_an_arena_that_may_fall_back_is_a_warning() -> None:
    root = Host(pools={PAGE: HostPool(total=50)}).root()
    with_arena = Usage("rank", {ANY: 60}, {ANY: 20}, True, {})
    assert _status(root, [with_arena], "shortage") == [Status.WARN]


@each_row(
    ("limit", "expected"),
    [("max", Status.PASS), (str(100 * PAGE), Status.PASS), ("0", Status.FAIL)],
)
def test_the_cgroup_may_forbid_what_the_pool_has(limit: str, expected: Status) -> None:
    """Kubernetes sets the limit to 0 where a Pod asks for no hugepages."""
    cgroup = {"hugetlb.2MB.max": limit, "hugetlb.2MB.current": "0"}
    root = Host(pools={PAGE: HostPool(total=1000)}, cgroup=cgroup).root()
    assert _status(root, TAKES_100, "shortage") == [Status.PASS]
    assert _status(root, TAKES_100, "cgroup-limit") == [expected]


@each_row(
    ("counted", "rdma", "consequence"),
    [
        ("", False, Consequence.DIES_LATER),  # the mapping is granted, and not touched
        ("", True, None),  # registering touches it at the start
        ("rsvd.", False, None),  # the mapping is refused
    ],
)
def test_a_cgroup_that_counts_what_is_touched_lets_a_launch_start(
    counted: str, rdma: bool, consequence: Consequence | None
) -> None:
    cgroup = {f"hugetlb.2MB.{counted}max": str(40 * PAGE), f"hugetlb.2MB.{counted}current": "0"}
    root = Host(pools={PAGE: HostPool(total=1000)}, cgroup=cgroup).root()
    use = RdmaUse(("mlx5_0",), "l.sh:1") if rdma else None
    user = ProcessNeeds("client", "mooncake_client", {}, rdma=use)
    (finding,) = _found(root, launch([usage({ANY: 100})], user), "cgroup-limit")
    assert (finding.status, finding.consequence) == (Status.FAIL, consequence)
    assert ("-800" in finding.text) == (consequence is not None)


@each_row(("asked", "expected"), [(199, Status.FAIL), (200, Status.PASS)])
def test_a_manifest_must_ask_for_its_huge_pages(asked: int, expected: Status) -> None:
    root = Host(pools={PAGE: HostPool(total=1000)}).root()
    limits = ContainerLimits("pod.yaml:7", "kubernetes", hugepages_bytes={PAGE: asked * PAGE})
    ranks = [
        ProcessNeeds(f"rank {rank}", "sglang", {}, hugetlb_bytes=100 * PAGE, container=limits)
        for rank in range(2)
    ]
    needs = launch([usage({ANY: 100}), usage({ANY: 100})], *ranks)
    found = _found(root, needs, "cgroup-limit")
    assert [finding.status for finding in found] == [Status.PASS, expected]


@each_row(
    ("blocks", "memory_bytes", "expected"),
    [
        ("0 0 0 0 0 0 0 0 0 100 0", 4 * GIB, Status.PASS),
        ("0 0 0 0 0 0 0 0 0 0 50", 4 * GIB, Status.PASS),  # one of order 10 is two pages
        ("90000 0 0 0 0 0 0 0 0 99 0", 4 * GIB, Status.WARN),
        ("0 0 0 0 0 0 0 0 0 100 0", 199 * MIB, Status.FAIL),
        ("broken", 4 * GIB, Status.UNKNOWN),
    ],
)
def test_a_reservation_needs_memory_in_one_piece(
    blocks: str, memory_bytes: int, expected: Status
) -> None:
    files = {"proc/buddyinfo": f"Node 0, zone   Normal   {blocks}"}
    root = Host({PAGE: HostPool()}, memory_bytes=memory_bytes, files=files).root()
    (found,) = _found(root, TAKES_100, "reservation")
    assert found.status is expected
    # It stands behind what sets the pool: what it says is right in that place.
    assert "first" not in found.advice


EARLY, LATE = "etc/sysctl.d/50-a.conf", "usr/lib/sysctl.d/60-b.conf"
ENOUGH, NONE = "vm.nr_hugepages = 100", "vm.nr_hugepages=0"
TUNED = {"etc/tuned/active_profile": "hpc"}
TUNED["usr/lib/tuned/hpc/tuned.conf"] = f"[sysctl]\n{ENOUGH}"
UNIT = "[Service]\nExecStart=/bin/sh -c 'echo 100 > "
UNIT += "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages'"


@each_row(
    ("files", "expected", "have"),
    [
        ({}, Status.WARN, "none set at boot"),
        ({"proc/cmdline": "quiet hugepages=100"}, Status.PASS, "100 pages at boot"),
        ({"proc/cmdline": "hugepagesz=1G hugepages=100"}, Status.WARN, "none set at boot"),
        ({"proc/cmdline": "hugepagesz=2M hugepages=0:60,1:40"}, Status.PASS, "100 pages"),
        ({EARLY: ENOUGH}, Status.PASS, "100 pages"),
        # The later name wins, in whatever folder it stands; /etc masks the same name elsewhere.
        ({EARLY: ENOUGH, LATE: NONE}, Status.WARN, "0 pages at boot"),
        (
            {LATE.replace("usr/lib", "etc"): ENOUGH.replace(".", "/"), LATE: NONE},
            Status.PASS,
            "100",
        ),
        ({EARLY: f"# {ENOUGH}"}, Status.WARN, "none set at boot"),
        (TUNED, Status.PASS, "100 pages"),
        ({"etc/systemd/system/pages.service": UNIT}, Status.PASS, "100 pages"),
    ],
)
def test_who_sets_the_pool_after_a_reboot(
    files: dict[str, str], expected: Status, have: str
) -> None:
    root = Host({PAGE: HostPool(total=100)}, files=files).root()
    found = _after_reboot(root, TAKES_100)
    assert found.status is expected
    assert have in found.have


NOWHERE = "/dev/null"
OURS, LATER = "etc/sysctl.d/90-mooncake.conf", "99-other.conf"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("files", "then"),
    [
        ({}, {}),
        ({OURS: "vm.swappiness = 1\n-vm/nr_hugepages = 7\n"}, {OURS: "vm.swappiness = 1"}),
        # What earlier releases of this program wrote, and another's guide: read before ours.
        ({"etc/sysctl.d/90-mooncake-hugepages.conf": "vm.nr_hugepages = 7"}, {}),
        ({f"etc/sysctl.d/{LATER}": "vm.nr_hugepages = 7\n"}, {}),
        ({f"etc/sysctl.d/{LATER}": "  - vm/nr_hugepages=7\n# vm.nr_hugepages = 700\n"}, {}),
        ({f"etc/sysctl.d/{LATER}": "vm.nr_hugepages = 7\n", OURS: "vm.nr_hugepages = 700\n"}, {}),
        ({"etc/sysctl.conf": "vm.nr_hugepages = 7"}, {}),  # the line is not ended
        # What packages and the boot itself write is copied to where it lasts.
        (
            {f"usr/lib/sysctl.d/{LATER}": "vm.swappiness = 1\nvm.nr_hugepages = 7\n"},
            {f"etc/sysctl.d/{LATER}": "vm.swappiness = 1"},
        ),
        ({f"run/sysctl.d/{LATER}": "vm.nr_hugepages = 7\n"}, {}),
        # Enough while it is there, and gone after a boot that does not write it again.
        ({f"run/sysctl.d/{LATER}": "vm.nr_hugepages = 700\n"}, {}),
        ({OURS.replace("etc", "usr/lib"): "vm.swappiness = 1\n"}, {OURS: "vm.swappiness = 1"}),
        # A mask is a link, through which a line would go to nowhere.
        ({OURS: NOWHERE}, {}),
        ({OURS.replace("etc", "run"): NOWHERE}, {}),
    ],
)
def test_the_line_that_is_printed_has_the_last_word(
    tmp_path: Path, files: dict[str, str], then: dict[str, str]
) -> None:
    """Run as printed, below the folder that stands for the host; what others wrote stays."""
    root = Host(pools={PAGE: HostPool(total=100)}).write(tmp_path)
    (root / "etc/sysctl.d").mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        if text == NOWHERE:
            (root / name).symlink_to(NOWHERE)
        else:
            (root / name).write_text(text)
    host = Root(str(root))
    found = _after_reboot(host, TAKES_100)
    assert found.status is Status.WARN
    printed = commands(found.settings, Context(root=True))
    for line in printed:
        below = re.sub(r"(?<= )/(etc|usr|run)/", rf"{root}/\1/", line)
        subprocess.run(["bash", "-c", below], check=True, capture_output=True)
    assert _after_reboot(host, TAKES_100).status is Status.PASS, printed
    for name, kept in then.items():
        assert kept in (root / name).read_text()


@each_row("source", ["usr/lib/tuned/x/tuned.conf", "etc/systemd/system/a.service"])
def test_where_a_line_of_sysctl_would_lose_no_command_is_printed(source: str) -> None:
    files = {"etc/tuned/active_profile": "x", source: "ExecStart=sysctl vm.nr_hugepages=7"}
    if source.endswith(".conf"):
        files[source] = "[sysctl]\nvm.nr_hugepages = 7"
    root = Host({PAGE: HostPool(total=100)}, files=files).root()
    found = _after_reboot(root, TAKES_100)
    assert found.status is Status.WARN
    assert not found.settings
    assert found.advice == f"set 100 pages where it is last set at boot: /{source}"


def test_a_node_that_boots_with_too_few_is_what_is_short() -> None:
    """The sum is enough: have and need are those of the node, not 200 pages where 160 do."""
    pool = HostPool(total=200, nodes={0: (100, 100), 1: (100, 100)})
    files = {"etc/sysctl.d/90-x.conf": "vm.nr_hugepages = 200"}
    root = Host({PAGE: pool}, nodes=(0, 1), files=files).root()
    found = _after_reboot(root, [usage({NODE_0: 160})])
    assert found.status is Status.WARN
    assert (found.have, found.need) == ("100 pages on node 0 at boot", "160 pages on node 0")


def _facts(free: int, reserved: int, node_1: int) -> Facts:
    total = free + reserved + node_1
    nodes = {0: NodePool(free + reserved, free), 1: NodePool(node_1, node_1)}
    pool = Pool(PAGE, "pool", total, free + node_1, reserved, 0, 0, nodes)
    hugetlb = HugeTlb(PAGE, {PAGE: pool}, True)
    memory = Meminfo("/proc/meminfo", {"MemAvailable": GIB})
    nothing = Unknown("not read")
    return Facts({"hugetlb": HugetlbFacts(hugetlb, memory, {}, nothing, {}, (), nothing, nothing)})


_ORDER = [Status.FAIL, Status.UNKNOWN, Status.WARN, Status.PASS]


@given(
    st.integers(0, 200),
    st.integers(0, 30),
    st.integers(0, 100),
    st.integers(0, 50),
    st.lists(st.tuples(st.integers(0, 80), st.integers(0, 80)), min_size=1, max_size=4),
)
def test_more_pages_never_worsen_a_verdict(
    free: int, reserved: int, node_1: int, more: int, ranks: list[tuple[int, int]]
) -> None:
    usages = [usage({ANY: unbound, NODE_1: bound}) for unbound, bound in ranks]
    needs = launch(usages)

    def worst(facts: Facts) -> int:
        found = findings(facts, needs, "hugetlb.")
        return min(_ORDER.index(f.status) for f in found if f.status is not Status.SKIP)

    if any(unbound or bound for unbound, bound in ranks):
        few, many = _facts(free, reserved, node_1), _facts(free + more, reserved, node_1 + more)
        assert worst(many) >= worst(few)
