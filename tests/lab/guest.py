"""A virtual machine with two NUMA nodes, HugeTLB pools on each, and soft-RoCE devices on both.

It runs under plain emulation, so any Linux machine will do. Its root file system is this machine's
own, read-only, below a layer in memory: it runs the very programs that are installed here, and
nothing that it writes survives. It reaches no network.
"""

from __future__ import annotations

import compileall
import lzma
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".cache" / "lab"
KERNEL_PACKAGE = "linux-image-amd64"
# What must be loaded before the root file system can be, and before rxe devices can be made.
MODULES = (
    "virtio_pci virtio_net 9pnet_virtio 9p overlay crc32_generic crc32c_generic ib_uverbs rdma_rxe "
    "rdma_ucm"
).split()
# Program -> the Debian package that has it.
PROGRAMS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "busybox": "busybox-static",
    "depmod": "kmod",
    "cpio": "cpio",
    "ip": "iproute2",
    "rdma": "iproute2",
    "numactl": "numactl",
    "gcc": "gcc",
    "dpkg": "dpkg",
    "setpriv": "util-linux",
    "apt-get": "apt",
}
LIBRARIES = {
    "/etc/libibverbs.d/rxe.driver": "ibverbs-providers",
    "/usr/include/stdlib.h": "libc6-dev",
}
# Fewer instructions are emulated than with "max", and no mitigations: a quarter less time in all.
# Without erms the kernel clears a page word by word, not byte by byte: six times as fast here.
CPU = "Haswell-v4,-erms"
BEGUN = "the guest's program begins"
FINISHED = "the guest's program ended: "
# On a busy machine a boot takes 10 to 30 s. With a thread for each processor one of some hundred
# never came to its program: they waited for each other. Such a guest is booted once more.
BEGIN_SECONDS = 150

# Mounts what the machine needs, runs the program, and powers the machine off.
INIT = """#!/bin/busybox sh
export PATH=/bin:/sbin:/usr/bin:/usr/sbin:/usr/local/bin
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sysfs /sys
/bin/busybox mount -t devtmpfs devtmpfs /dev
while read -r module; do /bin/busybox insmod "/modules/$module"; done < /modules/order
program=$(/bin/busybox sed 's/.*program=\\([^ ]*\\).*/\\1/' /proc/cmdline)
/bin/busybox mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=524288,cache=loose root /lower
/bin/busybox mount -t tmpfs tmpfs /upper
/bin/busybox mkdir /upper/changes /upper/work
/bin/busybox mount -t overlay -o lowerdir=/lower,upperdir=/upper/changes,workdir=/upper/work \\
    overlay /new
/bin/busybox mount -t proc proc /new/proc
/bin/busybox mount -t sysfs sysfs /new/sys
/bin/busybox mount -t devtmpfs devtmpfs /new/dev
/bin/busybox mkdir -p /new/dev/shm /new/run
/bin/busybox mount -t tmpfs tmpfs /new/dev/shm
/bin/busybox mount -t tmpfs tmpfs /new/run
/bin/busybox stty -F /dev/ttyS1 raw
/bin/busybox chroot /new /bin/sh "$program" > /dev/ttyS1
echo "FINISHED$?" > /dev/ttyS1
/bin/busybox sleep 1
/bin/busybox poweroff -f
""".replace("FINISHED", FINISHED)


def why_not() -> str | None:
    """Why the guest cannot be run here, or None."""
    if not (os.environ.get("CI") or os.environ.get("MOONCAKE_PREFLIGHT_REAL")):
        return "boots a virtual machine and installs wheels: set MOONCAKE_PREFLIGHT_REAL=1"
    if os.geteuid() != 0:
        return "needs root, to share this machine's files with the guest"
    if platform.machine() != "x86_64" or sys.platform != "linux":
        return "the guest is a Linux machine on x86-64"
    if sys.version_info[:2] > (3, 13):
        return "no wheel for this Python"
    missing = {package for program, package in PROGRAMS.items() if shutil.which(program) is None}
    missing |= {package for path, package in LIBRARIES.items() if not Path(path).exists()}
    if missing:
        return f"needs apt-get install {' '.join(sorted(missing))}"
    if not _built().image.exists() and _run("apt-cache", "show", KERNEL_PACKAGE).returncode:
        return f"needs Debian's {KERNEL_PACKAGE} to be known to apt (apt-get update)"
    return None


class GuestError(Exception):
    """The guest could not be built, or did not finish; carries what it said."""


@dataclass(frozen=True)
class Kernel:
    image: Path
    initrd: Path


def kernel() -> Kernel:
    """The distribution's kernel and an initrd for it, built once. Nothing is installed. The project
    is compiled too: a guest, which keeps nothing, takes half a minute for that."""
    for package in ("checks", "preflight", "tests"):
        compileall.compile_dir(ROOT / package, quiet=1)
    built = _built()
    if not (built.image.exists() and built.initrd.exists()):
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as scratch:
            tree = unpacked_kernel(Path(scratch) / "kernel")
            build_initrd(Path(scratch) / "initrd", tree, built.initrd)
            built.image.write_bytes(_unpacked(next((tree / "boot").glob("vmlinuz-*")).read_bytes()))
    return built


def _unpacked(image: bytes) -> bytes:
    """The kernel without what unpacks it, which takes as long emulated as all the rest of a boot.
    As it is where it is packed with anything but xz."""
    begin = image.find(b"\xfd7zXZ\0")
    return image if begin < 0 else lzma.decompress(image[begin:])


def _built() -> Kernel:
    return Kernel(CACHE / "vmlinux", CACHE / "initrd")


def unpacked_kernel(tree: Path) -> Path:
    """Unpack Debian's kernel, of which ``KERNEL_PACKAGE`` is the meta-package; installs nothing."""
    depends = output("apt-cache", "depends", "--important", KERNEL_PACKAGE)
    kernels = [word for word in depends.split() if word.startswith("linux-image-")]
    tree.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        output("apt-get", "download", "-qq", (kernels or [KERNEL_PACKAGE])[-1], cwd=Path(scratch))
        output("dpkg", "-x", str(next(Path(scratch).glob("*.deb"))), str(tree))
    return tree


def build_initrd(root: Path, tree: Path, initrd: Path) -> None:
    """Pack ``INIT`` and the modules that it loads, with what they need."""
    modules = next(path for top in ("lib", "usr/lib") for path in tree.glob(f"{top}/modules/*"))
    release = modules.name
    base = modules.parents[2]
    if base.name == "usr":  # modprobe looks below lib
        (tree / "lib").symlink_to("usr/lib")
        base = tree
    output("depmod", "-b", str(base), release)
    for name in ("bin", "dev", "proc", "sys", "lower", "upper", "new", "modules"):
        (root / name).mkdir(parents=True)
    order: list[str] = []
    for module in MODULES:
        found = output("modprobe", "-d", str(base), "-S", release, "--show-depends", module)
        for line in found.splitlines():
            if not line.startswith("insmod"):
                continue  # built into the kernel
            file = Path(line.split()[1])
            if file.name not in order:
                order.append(file.name)
                shutil.copy(file, root / "modules" / file.name)
    (root / "modules" / "order").write_text("".join(f"{name}\n" for name in order))
    shutil.copy(str(shutil.which("busybox")), root / "bin" / "busybox")
    (root / "bin" / "sh").symlink_to("busybox")
    (root / "init").write_text(INIT)
    (root / "init").chmod(0o755)
    files = "\n".join(str(path.relative_to(root)) for path in root.rglob("*"))
    with initrd.open("wb") as packed:
        words = ["cpio", "--quiet", "-o", "-H", "newc"]
        subprocess.run(words, input=files.encode(), cwd=root, stdout=packed, check=True)


def _run(*command: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def output(*command: str, cwd: Path | None = None) -> str:
    """Return what a command prints. Raises GuestError where it fails."""
    done = _run(*command, cwd=cwd)
    if done.returncode:
        raise GuestError(f"{' '.join(command)}: {done.stderr[-500:]}")
    return done.stdout


def run_in_guest(
    script: str, folder: Path, limit_seconds: float, node_mib: int = 1792, node_cpus: int = 1
) -> list[str]:
    """Boot, run ``script`` as root with sh, power off; the lines that it wrote.

    ``folder``: where the script and the machine's logs are kept. ``node_mib``, ``node_cpus``: what
    each of the two nodes has. Raises GuestError if the script fails or ``limit_seconds`` pass; the
    machine is gone in every case."""
    program, console, answers = (folder / name for name in ("run.sh", "console", "answers"))
    program.write_text(f'echo "{BEGUN}"\n{script}')
    command = _machine(kernel(), program, console, answers, node_mib, node_cpus)
    ended = _boot(command, folder, answers, limit_seconds)
    if BEGUN not in _lines(answers):
        warnings.warn(f"a guest did not come to its program: {program}", stacklevel=2)
        ended = _boot(command, folder, answers, limit_seconds)
    said = _lines(answers)
    if not ended or f"{FINISHED}0" not in said:
        logs = [path.read_text(errors="replace")[-1500:] for path in (folder / "machine", console)]
        why = "failed" if ended else f"not done after {limit_seconds} s"
        text = "\n".join([f"{why}: {program}", *logs, *(line[:300] for line in said[-20:])])
        raise GuestError(text)
    return said[said.index(BEGUN) + 1 : said.index(f"{FINISHED}0")]


def _boot(command: Sequence[str], folder: Path, answers: Path, limit_seconds: float) -> bool:
    """Run the machine; whether it ended by itself within ``limit_seconds``."""
    machine = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=(folder / "machine").open("wb"),
    )
    begin_seconds = min(BEGIN_SECONDS, limit_seconds)
    try:
        machine.wait(begin_seconds)
    except subprocess.TimeoutExpired:
        if BEGUN not in _lines(answers):
            return False
        try:
            machine.wait(limit_seconds - begin_seconds)
        except subprocess.TimeoutExpired:
            return False
    finally:
        machine.kill()
        machine.wait()
    return True


def _lines(answers: Path) -> list[str]:
    return answers.read_text(errors="replace").splitlines() if answers.exists() else []


def _machine(
    built: Kernel, program: Path, console: Path, answers: Path, node_mib: int, node_cpus: int
) -> list[str]:
    # It never outlives the tests, and those beside it are the ones that have time limits. One
    # thread takes all processors in turn: with one for each they take three times as long in all.
    words = "setpriv --pdeathsig KILL nice -n 5 qemu-system-x86_64 -M q35 -accel tcg,thread=single"
    words += f" -cpu {CPU} -smp {2 * node_cpus} -m {2 * node_mib} -no-reboot -display none"
    command = f"{words} -monitor none -nodefaults".split()
    command += ["-serial", f"file:{console}", "-serial", f"file:{answers}"]
    command += ["-kernel", str(built.image), "-initrd", str(built.initrd)]
    # The kernel counts ticks while it starts, and gives up where this machine is busy meanwhile.
    # One processor of each node; the others wait, at no cost, until they are set online.
    arguments = "console=ttyS0 quiet panic=-1 mitigations=off no_timer_check rdinit=/init maxcpus=2"
    arguments += " init_on_alloc=0 lsm=capability"
    command += ["-append", f"{arguments} program={program}"]
    for node in (0, 1):
        command += ["-object", f"memory-backend-ram,id=memory{node},size={node_mib}M"]
        cpus = ",".join(f"cpus={cpu}" for cpu in range(node, 2 * node_cpus, 2))
        command += ["-numa", f"node,nodeid={node},{cpus},memdev=memory{node}"]
        bus = f"id=bus{node},bus=pcie.0,bus_nr={32 * (node + 1)},numa_node={node}"
        command += ["-device", f"pxb-pcie,{bus}"]
        command += ["-device", f"pcie-root-port,id=port{node},bus=bus{node},chassis={node + 1}"]
        command += ["-netdev", f"user,id=net{node},restrict=on"]
        command += ["-device", f"virtio-net-pci,netdev=net{node},bus=port{node},romfile="]
    share = "local,id=root,path=/,security_model=none,readonly=on,multidevs=remap"
    command += ["-fsdev", share, "-device", "virtio-9p-pci,fsdev=root,mount_tag=root,bus=pcie.0"]
    return command
