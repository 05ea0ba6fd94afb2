"""What the next boot makes of a host, read from trees as distributions write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from checks.base.finding import Finding
from checks.base.recording import no_answers
from checks.base.root import Root
from checks.base.unknown import Unknown
from checks.boot.bootloader import BootEntry, read_next_boot
from checks.boot.facts import read_boot
from checks.boot.judge import CHECKS
from checks.capture.anonymise import without_secrets
from checks.hugetlb.boot import pages_after_boot, read_pool_writers
from checks.hugetlb.facts import read_hugetlb_facts
from checks.hugetlb.sysctl_d import read_sysctl_files
from checks.run.facts import Facts
from checks.system.facts import Container, read_system
from tests.checks.limit_hosts import root_of

OLD, NEW = "6.1.0-29-amd64", "6.1.0-30-amd64"
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
\t\tlinux\t/boot/vmlinuz-6.1.0-30-amd64 root=UUID=1 ro quiet
\t}
\tmenuentry "old" --class debian $menuentry_id_option 'gnulinux-old' {
\t\tlinux\t/boot/vmlinuz-6.1.0-29-amd64 root=UUID=1 ro quiet
\t}
}
"""
BLS = "title Fedora\nversion {0}\nlinux /vmlinuz-{0}\noptions root=/dev/sda1 $kernelopts\n"


@pytest.mark.parametrize(
    ("default", "env", "release"),
    [
        ("0", "", NEW),
        ("gnulinux-advanced-1>gnulinux-old", "", OLD),
        ("1>1", "", OLD),
        ("1", "", NEW),  # the submenu's first
        ("Advanced options>old", "", OLD),
        ("${saved_entry}", "# GRUB\nsaved_entry=1>1\n", OLD),
        ("${saved_entry}", "", NEW),
        ("0", "next_entry=1>1\n", OLD),
        ("0", "next_entry=\n", NEW),
        ("7", "", None),
    ],
)
def test_the_entry_that_grub_takes(
    tmp_path: Path, default: str, env: str, release: str | None
) -> None:
    root = root_of(
        tmp_path,
        {"/boot/grub/grub.cfg": CFG.replace("DEFAULT", default), "/boot/grub/grubenv": env},
    )
    found = read_next_boot(root)
    assert (found.release if isinstance(found, BootEntry) else None) == release


@pytest.mark.parametrize(("saved", "release"), [("", "6.10.2"), ("a-6.9.11", "6.9.11")])
def test_entries_of_files_of_their_own(tmp_path: Path, saved: str, release: str) -> None:
    """The newest by its numbers, where none is saved."""
    env = f"saved_entry={saved}\n" if saved else ""
    files = {
        f"/boot/loader/entries/a-{each}.conf": BLS.format(each) for each in ("6.9.11", "6.10.2")
    }
    files |= {
        "/boot/grub2/grub.cfg": 'set default="${saved_entry}"\nblscfg\n',
        "/boot/grub2/grubenv": f"{env}kernelopts=ro hugepagesz=1G hugepages=4\n",
    }
    found = read_next_boot(root_of(tmp_path, files))
    assert isinstance(found, BootEntry)
    assert found.release == release
    assert found.words[-1] == "hugepages=4"


def test_without_a_menu_nothing_is_said(tmp_path: Path) -> None:
    assert isinstance(read_next_boot(Root(str(tmp_path))), Unknown)


MENU, DEP = "/boot/grub/grub.cfg", f"/lib/modules/{NEW}/modules.dep"
HOST = {
    "/boot/grub/grub.cfg": CFG.replace("DEFAULT", "0"),
    "/proc/sys/kernel/osrelease": f"{OLD}\n",
    "/proc/cmdline": "BOOT_IMAGE=/boot/vmlinuz root=UUID=1 ro quiet hugepages=100 kho=off\n",
    "/proc/modules": "nvidia 1 2 - Live\nmlx5_core 1 1 - Live\nrdma_rxe 1 0 -\nloop 1 0 - Live\n",
    f"/lib/modules/{NEW}/modules.dep": "kernel/net/mlx5/core/mlx5_core.ko.xz: kernel/x.ko\n",
    f"/lib/modules/{NEW}/modules.builtin": "kernel/drivers/block/loop.ko\n",
    f"/var/lib/dkms/nvidia/595.71.05/{OLD}/x86_64/log": "",
    "/etc/modprobe.d/own.conf": "# ours\nblacklist rdma-rxe\n",
    "/etc/apt/apt.conf.d/20auto-upgrades": 'APT::Periodic::Unattended-Upgrade "1";\n',
    "/etc/apt/apt.conf.d/50unattended-upgrades": '//Unattended-Upgrade::Automatic-Reboot "true";\n',
    "/etc/sysctl.d/90-mooncake.conf": "vm.overcommit_memory = 1\n",
}


def judged(root: Root) -> dict[str, Finding]:
    """By check and subject; the host is no container."""
    system = read_system(root, None)._replace(container=Container("none", ""))
    facts = Facts({"boot": read_boot(root, None), "system": system})
    return {
        f"{one.check} {one.subject}": one for _, run in CHECKS.checks for one in run(facts, None)
    }


def test_a_kernel_that_was_installed_and_not_booted(tmp_path: Path) -> None:
    found = judged(root_of(tmp_path, HOST))
    assert {name: one.status.value for name, one in found.items()} == {
        "boot.kernel kernel": "warn",
        "boot.modules mlx5_core": "pass",
        "boot.modules nvidia": "warn",
        "boot.modules rdma_rxe": "warn",
        "boot.command-line kernel command line": "warn",
        "boot.upgrades unattended upgrades": "warn",
    }
    assert found["boot.kernel kernel"].have == f"{NEW} starts next"
    assert found["boot.modules nvidia"].advice == f"dkms install nvidia/595.71.05 -k {NEW}"
    assert "/etc/modprobe.d/own.conf keeps it" in found["boot.modules rdma_rxe"].text
    said = found["boot.command-line kernel command line"].text
    assert said == "after the next boot kho=off is gone, and iommu=pt is new"


@pytest.mark.parametrize(
    ("name", "text", "changed"),
    [
        (
            "/boot/grub/grub.cfg",
            CFG.replace("DEFAULT", "1>1"),
            {"kernel": "pass", "nvidia": "pass"},
        ),
        (
            f"/lib/modules/{NEW}/modules.dep",
            "a/nvidia.ko: \n",
            {"nvidia": "pass", "mlx5_core": "warn"},
        ),
        ("/etc/modprobe.d/own.conf", "install rdma_rxe /bin/false\n", {"rdma_rxe": "warn"}),
        ("/etc/modprobe.d/own.conf", "", {"rdma_rxe": "warn"}),  # and not of the next kernel
        ("/proc/cmdline", "iommu=pt", {"kernel command line": "pass"}),
        (
            "/etc/apt/apt.conf.d/20auto-upgrades",
            'APT::Periodic::Unattended-Upgrade "0";\n',
            {"unattended upgrades": "pass"},
        ),
        ("/calls.json", '{"boot.held": ["linux-image-amd64"]}', {"unattended upgrades": "pass"}),
        ("/etc/apt/apt.conf.d/99", 'Unattended-Upgrade::Automatic-Reboot "true";\n', {}),
    ],
)
def test_what_changes_it(tmp_path: Path, name: str, text: str, changed: dict[str, str]) -> None:
    found = judged(root_of(tmp_path, {**HOST, name: text}))
    by_subject = {one.subject: one.status.value for one in found.values()}
    assert {subject: by_subject[subject] for subject in changed} == changed
    reboots = "reboots into it by itself" in found["boot.upgrades unattended upgrades"].text
    assert reboots is (name == "/etc/apt/apt.conf.d/99")


def test_modules_that_cannot_be_read_are_unknown(tmp_path: Path) -> None:
    files = {name: text for name, text in HOST.items() if "modules.dep" not in name}
    found = judged(root_of(tmp_path, files))
    assert found["boot.modules nvidia"].status.value == "unknown"


def test_what_says_nothing_of_the_next_boot_is_skipped(tmp_path: Path) -> None:
    found = judged(Root(str(tmp_path)))
    assert {one.status.value for one in found.values()} == {"skip"}


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
    answers = no_answers()
    answers.texts["/boot/grub/grub.cfg"] = CFG
    cleaned = str(without_secrets(answers).texts["/boot/grub/grub.cfg"])
    assert [word for word in ("DECAF", "LETMEIN") if word in cleaned] == []
    assert "password visitor" in cleaned
