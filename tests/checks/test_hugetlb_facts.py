"""Pools, NUMA nodes, devices and the next boot's pages, read as the kernel and GRUB mean them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from checks.framework.device_nodes import device_numa_nodes
from checks.framework.pages import Spot
from checks.framework.recording import Answers
from checks.framework.root import Root
from checks.framework.unknown import Unknown
from checks.host_snapshot.anonymise import without_secrets
from checks.hugetlb.boot import (
    pages_after_boot,
    read_next_words,
)
from checks.hugetlb.facts import read_hugetlb_facts
from checks.hugetlb.fit import Stock
from checks.hugetlb.pools import HugeTlb, Pool, read_hugetlb
from checks.hugetlb.stock import HugeTlbLimit, hugetlb_limit, read_stock, stated_stock
from checks.numa.nodes import memory_nodes, numa_nodes, parse_node_list, read_meminfo
from tests.builders.hosts import GIB, MIB, Host, HostPool, in_memory
from tests.checks.recorded import recorded
from tests.tables import each_row


def read(root: Root) -> HugeTlb:
    return read_hugetlb(root, read_meminfo(root))


def pool_of(root: Root, size: int) -> Pool:
    pool = read(root).pool(size)
    assert not isinstance(pool, Unknown)
    return pool


def test_an_unknown_fact_is_neither_true_nor_false() -> None:
    unknown = Unknown("why")
    with pytest.raises(TypeError, match="why"):
        bool(unknown)
    with pytest.raises(TypeError):
        unknown < Unknown("other")  # type: ignore[operator]  # noqa: B015


@each_row(
    ("pool", "memory", "available"),
    [
        (HostPool(total=100), 0, 100),
        (HostPool(total=100, free=30), 0, 30),
        (HostPool(total=100, free=30, reserved=30), 0, 0),
        (HostPool(total=100, free=30, reserved=40), 0, 0),  # reserved beyond free: surplus to come
        (HostPool(total=0, overcommit=60), GIB, 60),
        (HostPool(total=60, surplus=50, overcommit=60), GIB, 70),
        (HostPool(total=70, surplus=70, overcommit=60), GIB, 70),  # the limit was lowered since
        (HostPool(total=0, overcommit=60), 20 * MIB, 10),  # surplus pages need memory
    ],
)
def test_available_pages(pool: HostPool, memory: int, available: int) -> None:
    root = Host({2 * MIB: pool}).root()
    assert pool_of(root, 2 * MIB).available_pages(memory) == available


def test_a_missing_size_is_no_pool_and_an_unreadable_one_unknown() -> None:
    host = Host({2 * MIB: HostPool(total=9)})
    missing = read(host.root()).pool(GIB)
    assert isinstance(missing, Unknown)
    assert missing.absent
    wrong = {"sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages": "x"}
    unreadable = read(replace(host, files=wrong).root()).pool(2 * MIB)
    assert isinstance(unreadable, Unknown)
    assert not unreadable.absent
    assert "resv_hugepages: not a number" in unreadable.reason


def test_meminfo_serves_the_default_size_where_sysfs_is_missing() -> None:
    rows = "MemTotal: 1024 kB\nHugePages_Total: 100\nHugePages_Free: 60\nHugePages_Rsvd: 10\n"
    rows += "HugePages_Surp: 0\nHugepagesize: 2048 kB\n"
    root = in_memory({"/proc/meminfo": rows})
    assert pool_of(root, 2 * MIB).available_pages(0) == 50
    other = read(root).pool(GIB)
    assert isinstance(other, Unknown)
    assert not other.absent  # it may well be there


def test_reservations_bound_what_a_node_has() -> None:
    """They may all come from one node, or only as many as the others cannot bear."""
    pool = HostPool(nodes={0: (100, 60), 1: (100, 20)}, reserved=30)
    root = Host({2 * MIB: pool}, nodes=(0, 1)).root()
    spots = [Spot(2 * MIB, None), Spot(2 * MIB, 0), Spot(2 * MIB, 1), Spot(2 * MIB, 7)]
    stock = read_stock(root, read(root), 0, spots)
    assert [stock[spot] for spot in spots] == [
        Stock(50, 50),
        Stock(30, 50),
        Stock(0, 20),
        Stock(0, 0),
    ]


def test_a_stated_pool_is_spread_as_the_kernel_spreads_it() -> None:
    stock = stated_stock(11, 2 * MIB, (0, 1, 4))
    assert stock[Spot(2 * MIB, None)] == Stock(11, 11)
    assert [stock[Spot(2 * MIB, node)].least_pages for node in (0, 1, 4)] == [4, 4, 3]


def counts(folder: str, limit: object, used: int, part: str = "") -> dict[str, str]:
    stem = f"{folder}hugetlb.2MB.{part}"
    return {f"{stem}max": str(limit), f"{stem}current": str(used)}


@each_row(
    ("memberships", "files", "limit"),
    [
        (
            "0::/pod/main\n",
            {
                **counts("pod/main/", "max", 0),
                **counts("pod/", 10 * MIB, 4 * MIB),
                **counts("pod/", 10 * MIB, 8 * MIB, "rsvd."),
            },
            HugeTlbLimit(2 * MIB, "/sys/fs/cgroup/pod/hugetlb.2MB.rsvd.max"),
        ),
        (
            "5:hugetlb:/\n",
            {
                "hugetlb/hugetlb.2MB.limit_in_bytes": "9223372036852678656",
                "hugetlb/hugetlb.2MB.usage_in_bytes": "0",
            },
            None,
        ),
        (
            "0::/../../other\n",
            counts("", 0, 0),
            HugeTlbLimit(0, "/sys/fs/cgroup/hugetlb.2MB.max", False),
        ),
    ],
)
def test_cgroup_limits(memberships: str, files: dict[str, str], limit: HugeTlbLimit | None) -> None:
    root = Host(cgroup=files, files={"proc/self/cgroup": memberships}).root()
    assert hugetlb_limit(root, 2 * MIB) == limit


def test_an_unreadable_cgroup_limit_is_unknown() -> None:
    root = Host(cgroup={"hugetlb.2MB.max": "lots"}).root()
    assert isinstance(hugetlb_limit(root, 2 * MIB), Unknown)


@each_row(("text", "nodes"), [("0-1\n", (0, 1)), ("8-9,2", (2, 8, 9)), ("0,0", (0,))])
def test_node_lists(text: str, nodes: tuple[int, ...]) -> None:
    assert parse_node_list(text) == nodes


@each_row("text", ["", "a", "-1", "1-", "2-1", "0-5000", "0;1", "1.0"])
def test_what_is_no_node_list(text: str) -> None:
    with pytest.raises(ValueError, match="NUMA nodes"):
        parse_node_list(text)


@pytest.mark.slow
def test_recorded_host_with_pools_on_four_nodes() -> None:
    root = Root(str(recorded("40intel64-2g2n4c+pcilocality")))
    assert numa_nodes(root) == (0, 1, 2, 3)
    assert memory_nodes(root) == (0, 1, 2, 3)
    pool = pool_of(root, 2 * MIB)
    assert sorted(pool.nodes) == [0, 1, 2, 3]
    assert pool.total_pages == sum(share.total_pages for share in pool.nodes.values())
    assert device_numa_nodes(root) == {"qib0": 2}


def test_recorded_host_without_numa() -> None:
    root = Root(str(recorded("2i386-2t-hugepagesizecount")))
    assert numa_nodes(root) == ()
    # Two pools, one of pages of 16 GiB; every page in use.
    for size in (2 * MIB, 16 * GIB):
        pool = pool_of(root, size)
        assert (pool.total_pages, pool.free_pages, pool.available_pages(0)) == (1, 0, 0)


FIRST, NEW, OLD = "iommu=pt", "lab=new", "lab=old"  # the last word of each entry
CFG = """
set superusers="root"
password visitor LETMEIN
password_pbkdf2 root grub.pbkdf2.sha512.10000.C0FFEE.DECAF
if [ "${next_entry}" ] ; then
   set default="${next_entry}"
else
   set default="DEFAULT"
fi
function load_video {
  insmod all_video
}
menuentry 'Debian GNU/Linux' --class debian $menuentry_id_option 'gnulinux-simple-1' {
\tinsmod gzio
\tlinux\t/boot/vmlinuz-6.1.0-30-amd64 root=UUID=1 ro quiet hugepages=512 iommu=pt
\tinitrd\t/boot/initrd.img-6.1.0-30-amd64
}
submenu 'Advanced options' $menuentry_id_option 'gnulinux-advanced-1' {
\tmenuentry 'new' --class debian $menuentry_id_option 'gnulinux-new' {
\t\tlinux\t/boot/vmlinuz-6.1.0-30-amd64 root=UUID=1 ro quiet lab=new
\t}
\tmenuentry "old" --class debian $menuentry_id_option 'gnulinux-old' {
\t\tlinux\t/boot/vmlinuz-6.1.0-29-amd64 root=UUID=1 ro quiet lab=old
\t}
}
"""
BLS = (
    "title Fedora\nversion {0}\nlinux /vmlinuz-{0}\noptions root=/dev/sda1 entry={0} $kernelopts\n"
)


@each_row(
    ("default", "env", "word"),
    [
        ("0", "", FIRST),
        ("gnulinux-advanced-1>gnulinux-old", "", OLD),
        ("1>1", "", OLD),
        ("1", "", NEW),  # the submenu's first
        ("Advanced options>old", "", OLD),
        ("${saved_entry}", "# GRUB\nsaved_entry=1>1\n", OLD),
        ("${saved_entry}", "", FIRST),
        ("0", "next_entry=1>1\n", OLD),
        ("0", "next_entry=\n", FIRST),
        ("7", "", None),
    ],
)
def test_the_entry_that_grub_takes(default: str, env: str, word: str | None) -> None:
    root = in_memory(
        {"/boot/grub/grub.cfg": CFG.replace("DEFAULT", default), "/boot/grub/grubenv": env}
    )
    found = read_next_words(root)
    assert (None if isinstance(found, Unknown) else found[-1]) == word


@each_row(("saved", "release"), [("", "6.10.2"), ("a-6.9.11", "6.9.11")])
def test_entries_of_files_of_their_own(saved: str, release: str) -> None:
    """The newest by its numbers, where none is saved."""
    env = f"saved_entry={saved}\n" if saved else ""
    files = {
        f"/boot/loader/entries/a-{each}.conf": BLS.format(each) for each in ("6.9.11", "6.10.2")
    }
    files |= {
        "/boot/grub2/grub.cfg": 'set default="${saved_entry}"\nblscfg\n',
        "/boot/grub2/grubenv": f"{env}kernelopts=hugepages=4\n",
    }
    assert isinstance(read_next_words(in_memory({})), Unknown)  # no menu yet
    found = read_next_words(in_memory(files))
    assert not isinstance(found, Unknown)
    assert found[-2:] == (f"entry={release}", "hugepages=4")


@each_row(("run", "pages"), [("500", 16), ("7", 7), ("", 8)])
def test_what_is_in_run_may_be_gone_after_the_boot(run: str, pages: int) -> None:
    """Or the boot writes it again: what gives fewer pages counts. A mask of /run is gone too."""
    files = {
        "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "0\n",
        "/proc/meminfo": "Hugepagesize: 2048 kB\n",
        "/etc/sysctl.d/50-lab.conf": "vm.nr_hugepages = 64\n",
        "/usr/lib/sysctl.d/60-lab.conf": f"vm.nr_hugepages = {16 if run else 8}\n",
        "/run/sysctl.d/99-run.conf": f"vm.nr_hugepages = {run}\n" if run else "",
    }
    if not run:
        files["/run/sysctl.d/60-lab.conf"] = "vm.nr_hugepages = 400\n"
    facts = read_hugetlb_facts(in_memory(files), None)
    found = pages_after_boot(facts.boot_writers(2 << 20), 2 << 20, 2 << 20)
    assert found is not None
    assert found[0] == pages


def test_a_password_of_the_menu_is_in_no_capture() -> None:
    recorded = Answers({"/boot/grub/grub.cfg": CFG}, {}, {}, {}, {})
    cleaned = str(without_secrets(recorded).texts["/boot/grub/grub.cfg"])
    assert [word for word in ("DECAF", "LETMEIN") if word in cleaned] == []
    assert "password visitor" in cleaned
