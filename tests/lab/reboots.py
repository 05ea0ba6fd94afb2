"""A machine that really restarts: what was said before each reboot, and what is after it.

``python -m tests.lab.reboots`` (root) records it: a disk with GRUB, its menu and two kernels of
Debian, below the layer that keeps what is changed. In each boot systemd's own programs apply
modules-load.d and sysctl.d. ``test_reboots.py`` holds what
the program says of the captures against what then was. The lab's other guests keep nothing.
"""

from __future__ import annotations

import base64
import compileall
import json
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.lab.guest import (
    CPU,
    FINISHED,
    INIT,
    ROOT,
    GuestError,
    build_initrd,
    output,
    unpacked_package,
)
from tests.lab.record import moved, moved_row, places
from tests.lab.results import record, record_captures

KERNELS = {"old": "linux-image-amd64", "new": "linux-image-6.12-amd64"}
GRUB = ("grub-common", "grub-pc-bin")
GRUB_MODULES = (
    "biosdisk ext2 normal configfile linux loadenv serial search test echo minicmd".split()
)
# Where the folders of modules lie that the guest's own /lib/modules has.
FOLLOWED = ("drivers/infiniband/core", "drivers/infiniband/sw", "drivers/block", "net", "crypto")
PLACE = Path("/run/reboots")
LIMIT_SECONDS = 900
WORDS = "console=ttyS0 quiet panic=-1 mitigations=off no_timer_check rdinit=/init maxcpus=2"
# What the disk and the host's files need; all others are loaded as a host loads them.
FIRST_MODULES = "virtio_pci virtio_blk crc32c_generic ext4 9pnet_virtio 9p overlay".split()
# Before the host's own files are shown: the disk, which is what stays.
_INIT = INIT.replace(
    "/bin/busybox mount -t tmpfs tmpfs /upper\n",
    "/bin/busybox mount -t ext4 /dev/vdb /upper\n",
).replace(
    "/bin/busybox mount -t proc proc /new/proc\n",
    "/bin/busybox mount --bind /upper/boot /new/boot\n"
    "/bin/busybox mount -t proc proc /new/proc\n",
).replace("mkdir /upper", "mkdir -p /upper")  # fmt: skip
_APPLY = """
rm -f /.dockerenv
/lib/systemd/systemd-modules-load 2>&1 || echo a module is missing
/lib/systemd/systemd-sysctl 2>&1
"""


class Boot(NamedTuple):
    """One boot: what is done in it after it was looked at, and before it is captured.

    entries: of the menu that this writes, kernel and words each, the first the default.
    """

    id: str
    change: str
    entries: tuple[tuple[str, str], ...]


# The first boots the kernel that it was installed with. Then another one is installed, without the
# package that has rdma_rxe; files of sysctl.d contradict each other, one only until the reboot;
# limits and a module are set by hand. The last goes back to the old kernel, by grubenv.
BOOTS = (
    Boot(
        "a kernel that was not booted yet",
        """
mkdir -p /etc/modules-load.d /etc/modprobe.d /etc/sysctl.d /usr/lib/sysctl.d /run/sysctl.d
printf 'ib_uverbs\\nrdma_rxe\\nib_umad\\n' > /etc/modules-load.d/lab.conf
echo 'blacklist ib_umad' > /etc/modprobe.d/lab.conf
echo 'vm.nr_hugepages = 64' > /etc/sysctl.d/50-lab.conf
echo 'vm.nr_hugepages = 16' > /usr/lib/sysctl.d/60-lab.conf
echo 'vm.nr_hugepages = 8' > /usr/lib/sysctl.d/95-lab.conf
ln -sf /dev/null /etc/sysctl.d/95-lab.conf
echo 'vm.nr_hugepages = 500' > /run/sysctl.d/99-run.conf
echo 'root - memlock 65536' > /etc/security/limits.d/lab.conf
sysctl -qw vm.nr_hugepages=100
/lib/systemd/systemd-modules-load
modprobe ib_umad
ulimit -l unlimited
INSTALL
""",
        (("new", "numa_balancing=disable"), ("old", "transparent_hugepage=never")),
    ),
    Boot(
        "back to the kernel before",
        """
rm /usr/lib/sysctl.d/60-lab.conf /etc/modprobe.d/lab.conf
echo 'vm.nr_hugepages = 24' >> /etc/sysctl.conf
echo 'root - memlock unlimited' > /etc/security/limits.d/lab.conf
sysctl -qw vm.nr_hugepages=10
ulimit -l 8192
modprobe ib_umad
GRUBENV set saved_entry=lab-old
""",
        (("new", "numa_balancing=disable"), ("old", "hugepages=40")),
    ),
    Boot("the last", "", ()),
)


def menu(entries: tuple[tuple[str, str], ...], releases: dict[str, str], program: Path) -> str:
    """What grub-mkconfig writes, of the parts that decide."""
    head = """if [ -s $prefix/grubenv ]; then
  load_env
fi
if [ "${next_entry}" ] ; then
   set default="${next_entry}"
else
   set default="${saved_entry}"
fi
if [ x"${feature_menuentry_id}" = xy ]; then
  menuentry_id_option="--id"
else
  menuentry_id_option=""
fi
set timeout=0
"""
    return head + "".join(
        f"menuentry 'Debian {name}' --class debian $menuentry_id_option 'lab-{name}' {{\n"
        f"\tlinux\t/boot/vmlinuz-{releases[name]} {WORDS} program={program} {words}\n"
        f"\tinitrd\t/boot/initrd.img-{releases[name]}\n}}\n"
        for name, words in entries
    )


def script(boot: Boot, grub_folder: Path, installing: str, menu_text: str) -> str:
    """What one boot runs: apply, look, change, capture."""
    look = shlex.join([sys.executable, "-m", "tests.lab.reboots", "look"])
    capture = shlex.join([sys.executable, "-m", "preflight.cli.main", "capture"])
    change = boot.change.replace("INSTALL", installing)
    change = change.replace("GRUBENV", f"{grub_folder}/usr/bin/grub-editenv /boot/grub/grubenv")
    lines = [f"cd {ROOT}", f"mkdir -p {PLACE}", _APPLY, look]
    if boot.change:
        lines += [change, f"cat > /boot/grub/grub.cfg <<'END'\n{menu_text}END"]
        lines += [f"{capture} {PLACE}/capture.tar.gz >&2"]
        lines += [f"echo CAPTURE $(base64 -w0 {PLACE}/capture.tar.gz)", "sync"]
    return "\n".join(["set -e", *lines, ""])


def look() -> None:
    """Print what is, in the guest: the truth that was foretold in the boot before."""
    found = {
        "kernel": Path("/proc/sys/kernel/osrelease").read_text().strip(),
        "words": Path("/proc/cmdline").read_text().split(),
        "pages": int(Path("/proc/sys/vm/nr_hugepages").read_text()),
    }
    print(f"LOOK {json.dumps(found)}", flush=True)


def _disk(folder: Path, trees: dict[str, Path]) -> dict[str, str]:
    """Make the disk of the first boot, and what installs the other kernel; releases by name."""
    state = folder / "state"
    releases = {
        name: next((tree / "boot").glob("vmlinuz-*")).name[8:] for name, tree in trees.items()
    }
    for name, tree in trees.items():
        release = releases[name]
        made = state if name == "old" else folder / "install"
        (made / "boot" / "grub").mkdir(parents=True)
        shutil.copy(tree / "boot" / f"vmlinuz-{release}", made / "boot")
        initrd = made / "boot" / f"initrd.img-{release}"
        build_initrd(folder / f"initrd-{name}", tree, initrd, FIRST_MODULES, _INIT)
        source = next(path for top in ("lib", "usr/lib") for path in tree.glob(f"{top}/modules/*"))
        base = made / "changes/usr" if name == "old" else made
        target = base / "lib" / "modules" / release
        for part in FOLLOWED:
            shutil.copytree(source / "kernel" / part, target / "kernel" / part)
        for file in source.glob("modules.*"):
            shutil.copy(file, target)
        if name == "new":  # of a package that was not installed with it
            shutil.rmtree(target / "kernel/drivers/infiniband/sw/rxe")
        output("depmod", "-b", str(base), release)
    return releases


def main() -> None:
    if sys.argv[1:] == ["look"]:
        look()
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(folder)


def run(folder: Path) -> None:
    for package in ("checks", "preflight", "tests"):
        compileall.compile_dir(ROOT / package, quiet=1)
    trees = {name: unpacked_package(folder / name, package) for name, package in KERNELS.items()}
    grub = folder / "grub"
    for package in GRUB:
        unpacked_package(grub, package)
    releases = _disk(folder, trees)
    early = folder / "early.cfg"
    early.write_text(
        "serial --unit=0\nterminal_output serial\nset root=hd1\nset prefix=(hd1)/boot/grub\n"
        "configfile /boot/grub/grub.cfg\n"
    )
    images = grub / "usr/lib/grub/i386-pc"
    command = [str(grub / "usr/bin/grub-mkimage"), "-O", "i386-pc", "-d", str(images)]
    command += ["-c", str(early), "-p", "(hd1)/boot/grub", "-o", str(folder / "core.img")]
    output(*command, *GRUB_MODULES)
    loader = (images / "boot.img").read_bytes() + (folder / "core.img").read_bytes()
    (folder / "grub.disk").write_bytes(loader.ljust(1 << 20, b"\0"))
    state = folder / "state"
    (state / "boot/grub/grub.cfg").write_text(
        menu((("old", "transparent_hugepage=never"),), releases, folder / "run.sh")
    )
    output(str(grub / "usr/bin/grub-editenv"), str(state / "boot/grub/grubenv"), "create")
    disk = folder / "disk"
    output(
        "mkfs.ext4",
        "-q",
        "-O",
        "^metadata_csum,^64bit,^has_journal",
        "-d",
        str(state),
        str(disk),
        "600M",
    )
    new = releases["new"]
    installing = (
        f"cp {folder}/install/boot/*-{new} /boot/ && mkdir -p /usr/lib/modules "
        f"&& cp -r {folder}/install/lib/modules/{new} /usr/lib/modules/"
    )
    rows, captures, seen = [], {}, []
    for boot in BOOTS:
        program = folder / "run.sh"
        program.write_text(
            script(
                boot,
                grub,
                installing,
                menu(boot.entries, releases, program) if boot.entries else "",
            )
        )
        said = _boot(folder, disk)
        seen.append(json.loads(_after(said, "LOOK ")))
        print(boot.id, seen[-1], flush=True)
        if boot.change:
            captures[f"reboots/{boot.id}"] = base64.b64decode(_after(said, "CAPTURE "))
    for boot, before, then in zip(BOOTS, seen, seen[1:], strict=False):
        row = {"id": boot.id, "order": boot._asdict(), "before": before, "then": then}
        rows.append(moved_row(row, folder))
    record("reboots", rows, [boot.id for boot in BOOTS])
    record_captures({name: moved(each, places(folder)) for name, each in captures.items()})


def _after(said: list[str], mark: str) -> str:
    found = [line.removeprefix(mark) for line in said if line.startswith(mark)]
    if not found:
        raise GuestError("\n".join([f"no {mark}", *said[-40:]]))
    return found[0]


def _boot(folder: Path, disk: Path) -> list[str]:
    """Let GRUB boot the disk, as it is now, until the machine powers itself off."""
    answers, console = folder / "answers", folder / "console"
    for file in (answers, console):
        file.unlink(missing_ok=True)
    command = "setpriv --pdeathsig KILL nice -n 5 qemu-system-x86_64 -M q35 -accel tcg,thread=multi"
    command += f" -cpu {CPU} -smp 2 -m 2560 -no-reboot -display none -monitor none -nodefaults"
    command += f" -serial file:{console} -serial file:{answers}"
    command += f" -drive file={folder}/grub.disk,if=none,id=grub,format=raw"
    command += " -device virtio-blk-pci,drive=grub,bootindex=0,addr=4"
    command += f" -drive file={disk},if=none,id=state,format=raw"
    command += " -device virtio-blk-pci,drive=state,bootindex=1,addr=5"
    command += " -fsdev local,id=root,path=/,security_model=none,readonly=on,multidevs=remap"
    command += " -device virtio-9p-pci,fsdev=root,mount_tag=root"
    done = subprocess.run(
        command.split(), capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
    )
    said = answers.read_text(errors="replace").splitlines() if answers.exists() else []
    if f"{FINISHED}0" not in said:
        log = console.read_text(errors="replace")[-2500:] if console.exists() else ""
        raise GuestError("\n".join([done.stderr[-800:], log, *(line[:300] for line in said[-30:])]))
    return said


if __name__ == "__main__":
    main()
