"""What the next boot makes of a host, read from trees as distributions write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from checks.base.recording import Answers
from checks.base.root import Root
from checks.base.unknown import Unknown
from checks.capture.anonymise import without_secrets
from checks.hugetlb.boot import (
    pages_after_boot,
    read_next_words,
    read_pool_writers,
    read_sysctl_files,
)
from checks.hugetlb.facts import read_hugetlb_facts
from tests.checks.limit_hosts import root_of

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


@pytest.mark.parametrize(
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
def test_the_entry_that_grub_takes(
    tmp_path: Path, default: str, env: str, word: str | None
) -> None:
    root = root_of(
        tmp_path,
        {"/boot/grub/grub.cfg": CFG.replace("DEFAULT", default), "/boot/grub/grubenv": env},
    )
    found = read_next_words(root)
    assert (None if isinstance(found, Unknown) else found[-1]) == word


@pytest.mark.parametrize(("saved", "release"), [("", "6.10.2"), ("a-6.9.11", "6.9.11")])
def test_entries_of_files_of_their_own(tmp_path: Path, saved: str, release: str) -> None:
    """The newest by its numbers, where none is saved."""
    env = f"saved_entry={saved}\n" if saved else ""
    files = {
        f"/boot/loader/entries/a-{each}.conf": BLS.format(each) for each in ("6.9.11", "6.10.2")
    }
    files |= {
        "/boot/grub2/grub.cfg": 'set default="${saved_entry}"\nblscfg\n',
        "/boot/grub2/grubenv": f"{env}kernelopts=hugepages=4\n",
    }
    found = read_next_words(root_of(tmp_path, files))
    assert not isinstance(found, Unknown)
    assert found[-2:] == (f"entry={release}", "hugepages=4")


def test_without_a_menu_nothing_is_said(tmp_path: Path) -> None:
    assert isinstance(read_next_words(Root(str(tmp_path))), Unknown)


HOST = {
    "/boot/grub/grub.cfg": CFG.replace("DEFAULT", "0"),
    "/proc/cmdline": "BOOT_IMAGE=/boot/vmlinuz root=UUID=1 ro quiet hugepages=100 kho=off\n",
    "/etc/sysctl.d/90-mooncake.conf": "vm.overcommit_memory = 1\n",
}


def test_pages_are_those_of_the_next_command_line(tmp_path: Path) -> None:
    """hugetlb.after-reboot counts them, and the sysctl that acts after it."""
    root = root_of(tmp_path, HOST)

    def pages() -> int | None:
        found = pages_after_boot(read_pool_writers(root, read_sysctl_files(root)), 2 << 20, 2 << 20)
        return found[0] if found else None

    assert pages() == 512
    root_of(tmp_path, {"/etc/sysctl.d/10-a.conf": "vm.nr_hugepages=7\n"})
    root_of(tmp_path, {"/usr/lib/sysctl.d/95-b.conf": "vm.nr_hugepages=9\n"})
    assert pages() == 9


@pytest.mark.parametrize(("run", "pages"), [("500", 16), ("7", 7), ("", 8)])
def test_what_is_in_run_may_be_gone_after_the_boot(tmp_path: Path, run: str, pages: int) -> None:
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
    facts = read_hugetlb_facts(root_of(tmp_path, files), None)
    found = pages_after_boot(facts.boot_writers(2 << 20), 2 << 20, 2 << 20)
    assert found is not None
    assert found[0] == pages


def test_a_password_of_the_menu_is_in_no_capture() -> None:
    recorded = Answers({"/boot/grub/grub.cfg": CFG}, {}, {}, {}, {})
    cleaned = str(without_secrets(recorded).texts["/boot/grub/grub.cfg"])
    assert [word for word in ("DECAF", "LETMEIN") if word in cleaned] == []
    assert "password visitor" in cleaned
